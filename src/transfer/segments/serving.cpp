// The owner's side: registered memory, and the batches of peers in it. Whatever a peer names is checked here.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "os/process.h"
#include "transfer/segments/endpoint_impl.h"

namespace cachalot {
namespace {

constexpr std::size_t kMostServed = 4096;  // batches of one peer at a time
constexpr std::uint64_t kMostDeadlineNs =
    3'600'000'000'000;  // a peer keeps memory open for so long at most

bool allows(SegmentAccess access, SegmentAccess needed) {
  return (static_cast<std::uint32_t>(access) & static_cast<std::uint32_t>(needed)) != 0;
}

std::uint64_t deadline_of(std::uint64_t from_now_ns) {
  return base::SteadyClock::read() + std::min(from_now_ns, kMostDeadlineNs);
}

}  // namespace

void TransferEndpoint::Impl::refuse(PeerId peer, std::uint64_t number, const Error& error) {
  ++counts.refused_batches;
  send(peer, RefusedMessage{number, error});
}

void TransferEndpoint::Impl::take_open(PeerId peer, const OpenMessage& message) {
  const auto found = std::find_if(registered.begin(), registered.end(), [&](const auto& entry) {
    return entry.second.name == message.name;
  });
  if (found == registered.end()) {
    const Error error = Error::make(Code::kNotFound, "endpoint %.60s has no segment \"%.60s\"",
                                    options.name.c_str(), message.name.c_str());
    send(peer, RefusedMessage{message.request, error});
    return;
  }
  engine->trust(peer);  // it knows the name of a segment
  send(peer, OpenedMessage{message.request, found->first, found->second.memory.size(),
                           found->second.access});
}

Result<ByteStream> TransferEndpoint::Impl::admit(PeerId peer, std::uint64_t batch,
                                                 std::uint64_t segment, SegmentAccess needed,
                                                 const ByteStream& places) const {
  const auto found = registered.find(segment);
  if (found == registered.end()) {
    return Error::make(Code::kStale, "endpoint %.60s has no such segment any more",
                       options.name.c_str());
  }
  const RegisteredMemory& memory = found->second;
  if (!allows(memory.access, needed)) {
    return Error::make(Code::kPermission, "segment \"%.60s\" is not open for %s",
                       memory.name.c_str(), needed == SegmentAccess::kRead ? "reading" : "writing");
  }
  if (served.contains({peer, batch}))
    return Error::make(Code::kBadInput, "batch %llu came twice",
                       static_cast<unsigned long long>(batch));
  if (const auto count = served_of.find(peer);
      count != served_of.end() && count->second >= kMostServed) {
    return Error::make(Code::kBusy, "%zu batches of this peer are in flight; expected fewer",
                       kMostServed);
  }
  return place(places, reinterpret_cast<std::uintptr_t>(memory.memory.data()), memory.memory.size(),
               "segment \"" + memory.name.substr(0, 60) + "\"");
}

void TransferEndpoint::Impl::take_write(PeerId peer, const WriteMessage& message) {
  Result<ByteStream> memory =
      admit(peer, message.batch, message.segment, SegmentAccess::kWrite, message.places);
  if (!memory) return refuse(peer, message.batch, memory.error());
  const Result<WindowKey> window =
      engine->open_window(peer, *std::move(memory), deadline_of(message.deadline_ns));
  if (!window) return refuse(peer, message.batch, window.error());
  const ServedKey key{peer, message.batch};
  served[key] = {message.segment, *window, std::nullopt};
  ++served_of[peer];
  served_windows[static_cast<std::uint64_t>(*window)] = key;
  ++counts.served_batches;
  send(peer, WindowMessage{message.batch, static_cast<std::uint64_t>(*window)});
}

void TransferEndpoint::Impl::take_read(PeerId peer, const ReadMessage& message) {
  Result<ByteStream> memory =
      admit(peer, message.batch, message.segment, SegmentAccess::kRead, message.places);
  if (!memory) return refuse(peer, message.batch, memory.error());
  const Result<PushId> push = engine->push(peer, WindowKey{message.window}, *std::move(memory),
                                           deadline_of(message.deadline_ns));
  if (!push) return refuse(peer, message.batch, push.error());
  const ServedKey key{peer, message.batch};
  served[key] = {message.segment, std::nullopt, *push};
  ++served_of[peer];
  served_pushes[*push] = key;
  ++counts.served_batches;
}

void TransferEndpoint::Impl::take_cancel(PeerId peer, std::uint64_t batch) {
  const Error error = Error::make(Code::kCancelled, "the peer has cancelled the batch");
  end_served({peer, batch}, &error);
}

// @param reason  null: it has ended by itself
void TransferEndpoint::Impl::end_served(const ServedKey& key, const Error* reason) {
  const auto found = served.find(key);
  if (found == served.end()) return;
  const ServedBatch batch = found->second;
  served.erase(found);
  if (const auto count = served_of.find(key.first); --count->second == 0) served_of.erase(count);
  // After this, nothing touches the memory.
  if (batch.window) {
    served_windows.erase(static_cast<std::uint64_t>(*batch.window));
    engine->release(*batch.window, reason);
  }
  if (batch.push) {
    served_pushes.erase(*batch.push);
    engine->release(*batch.push, reason);
  }
}

void TransferEndpoint::Impl::end_segment(const std::uint64_t* segment, const Error& error) {
  std::vector<ServedKey> ended;
  for (const auto& [key, batch] : served) {
    if (segment == nullptr || batch.segment == *segment) ended.push_back(key);
  }
  for (const ServedKey& key : ended) {
    // A batch whose first bytes are on their way would hear only that its window is closed.
    send(key.first, RefusedMessage{key.second, error});
    end_served(key, &error);
  }
}

// --- Public ---

Status TransferEndpoint::register_memory(std::string_view name, std::span<std::byte> memory,
                                         SegmentAccess access) {
  if (name.empty() || name.size() > kMostSegmentNameBytes) {
    return Error::make(Code::kInvalidArgument, "a segment's name has %zu bytes; expected 1 to %zu",
                       name.size(), kMostSegmentNameBytes);
  }
  const std::string text(name);
  if (memory.empty())
    return Error::make(Code::kInvalidArgument, "segment \"%.60s\" has 0 bytes", text.c_str());
  if (access < SegmentAccess::kRead || access > SegmentAccess::kReadWrite) {
    return Error::make(Code::kInvalidArgument, "segment \"%.60s\": access %u; expected 1 to 3",
                       text.c_str(), static_cast<unsigned>(access));
  }
  CACHALOT_TRY_ASSIGN(const os::Uuid number, os::random_uuid());
  const std::lock_guard lock(impl_->mutex);
  CACHALOT_TRY(impl_->check_open());
  for (const auto& [other, entry] : impl_->registered) {
    if (entry.name == name)
      return Error::make(Code::kBusy, "segment \"%.60s\" is registered already", text.c_str());
  }
  impl_->registered[number.low] = {text, memory, access};
  return {};
}

Status TransferEndpoint::unregister_memory(std::string_view name) {
  const std::lock_guard lock(impl_->mutex);
  Impl& impl = *impl_;
  CACHALOT_TRY(impl.check_open());
  const auto found = std::find_if(impl.registered.begin(), impl.registered.end(),
                                  [&](const auto& entry) { return entry.second.name == name; });
  if (found == impl.registered.end()) {
    return Error::make(Code::kNotFound, "no segment \"%.60s\" is registered",
                       std::string(name).c_str());
  }
  const std::uint64_t number = found->first;
  impl.registered.erase(found);
  const Error error =
      Error::make(Code::kStale, "segment \"%.60s\" was unregistered", std::string(name).c_str());
  impl.end_segment(&number, error);
  return {};
}

}  // namespace cachalot
