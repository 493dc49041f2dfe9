// The other side: segments of peers, and batches in them.
#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "transfer/segments/endpoint_impl.h"

namespace cachalot::transfer {

Result<ByteStream> place(const ByteStream& places, std::uint64_t base, std::uint64_t bytes,
                         const std::string& what) {
  std::vector<Strided> sections;
  for (const Strided& section : places.sections()) {
    if (section.end() > bytes) {
      return Error::make(Code::kInvalidArgument, "bytes %llu to %llu of %s; it has %llu bytes",
                         static_cast<unsigned long long>(section.lowest()),
                         static_cast<unsigned long long>(section.end()), what.c_str(),
                         static_cast<unsigned long long>(bytes));
    }
    CACHALOT_TRY_ASSIGN(
        Strided placed,
        Strided::make(base + section.base(), {section.axes().begin(), section.axes().end()},
                      section.run_bytes()));
    sections.push_back(std::move(placed));
  }
  return ByteStream::make(places.turns(), std::move(sections));
}

Status check_version(const PeerInfo& peer) {
  const auto found = peer.facts.find(kVersionFact);
  if (found != peer.facts.end() && found->second == kVersion) return {};
  return Error::make(
      Code::kVersionMismatch, "peer %.60s has segments of version \"%.20s\"; expected \"%s\"",
      peer.name.c_str(), found == peer.facts.end() ? "" : found->second.c_str(), kVersion);
}

}  // namespace cachalot::transfer

namespace cachalot {
namespace {

std::uint64_t raw(SegmentId id) {
  return static_cast<std::uint64_t>(id);
}
std::uint64_t raw(BatchId id) {
  return static_cast<std::uint64_t>(id);
}

Result<Strided> strided_of(const StridedBytes& given) {
  std::vector<Axis> axes;
  for (const StridedLoop& loop : given.loops) {
    if (!loop.offsets.empty() && loop.offsets.size() != loop.count) {
      return Error::make(Code::kInvalidArgument, "a loop of %llu steps has %zu offsets",
                         static_cast<unsigned long long>(loop.count), loop.offsets.size());
    }
    axes.push_back({loop.count, loop.stride_bytes, loop.offsets, 1});
  }
  return Strided::make(given.offset, std::move(axes), given.run_bytes);
}

struct Sides {
  ByteStream local, remote;  // offsets
};

Result<Sides> sides_of(std::span<const TransferDescriptor> descriptors) {
  if (descriptors.empty() || descriptors.size() > kMostDescriptors) {
    return Error::make(Code::kInvalidArgument, "%zu descriptors; expected 1 to %zu",
                       descriptors.size(), kMostDescriptors);
  }
  std::vector<Strided> local, remote;
  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    Result<Strided> mine = strided_of(descriptors[i].local);
    Result<Strided> theirs = strided_of(descriptors[i].remote);
    for (const Result<Strided>* side : {&mine, &theirs}) {
      if (side->ok()) continue;
      return Error::make(Code::kInvalidArgument, "descriptor %zu, %s: %.150s", i,
                         side == &mine ? "local" : "remote", side->error().message);
    }
    if (mine->bytes() != theirs->bytes()) {
      return Error::make(Code::kInvalidArgument,
                         "descriptor %zu has %llu local and %llu remote bytes; expected as many", i,
                         static_cast<unsigned long long>(mine->bytes()),
                         static_cast<unsigned long long>(theirs->bytes()));
    }
    local.push_back(*std::move(mine));
    remote.push_back(*std::move(theirs));
  }
  CACHALOT_TRY_ASSIGN(ByteStream locals, ByteStream::make(1, std::move(local)));
  CACHALOT_TRY_ASSIGN(ByteStream remotes, ByteStream::make(1, std::move(remote)));
  return Sides{std::move(locals), std::move(remotes)};
}

Error cancelled() {
  return Error::make(Code::kCancelled, "the batch was cancelled");
}

}  // namespace

std::optional<PeerId> TransferEndpoint::Impl::find_peer(const PeerEndpoint& wanted) const {
  if (wanted.addresses.empty()) {
    // The newest: an older one may be of a process that has ended.
    for (auto at = known.rbegin(); at != known.rend(); ++at) {
      if (at->second.is_called && at->second.name == wanted.name) return at->first;
    }
    return std::nullopt;
  }
  const auto found = reached.find(wanted.addresses);
  if (found == reached.end()) return std::nullopt;
  const auto peer = known.find(found->second);
  if (peer == known.end() || (!wanted.name.empty() && peer->second.name != wanted.name))
    return std::nullopt;
  return found->second;
}

Result<PeerAddress> TransferEndpoint::Impl::address_of(const PeerEndpoint& peer,
                                                       std::uint64_t deadline_ns) const {
  if (!peer.addresses.empty()) return PeerAddress{peer.name, 0, peer.addresses};
  if (!registry || peer.name.empty()) {
    return Error::make(
        Code::kInvalidArgument, "endpoint \"%.60s\" is given without addresses; expected them%s",
        peer.name.c_str(),
        registry ? ", or the name of an endpoint" : ": this endpoint has no registry");
  }
  CACHALOT_TRY_ASSIGN(PeerRecord found, registry->find(peer.name, deadline_ns));
  return PeerAddress{std::move(found.name), found.incarnation, std::move(found.addresses)};
}

Result<Reached> TransferEndpoint::Impl::reach(const PeerEndpoint& peer, std::uint64_t deadline_ns,
                                              bool& was_connected) {
  std::optional<PeerId> id;
  {
    const std::lock_guard lock(mutex);
    CACHALOT_TRY(check_open());
    id = find_peer(peer);
  }
  was_connected = id.has_value();
  if (!id) {
    CACHALOT_TRY_ASSIGN(const PeerAddress address, address_of(peer, deadline_ns));
    CACHALOT_TRY_ASSIGN(id, engine->connect(address, deadline_ns));
  }
  CACHALOT_TRY_ASSIGN(PeerInfo info, engine->info(*id));
  CACHALOT_TRY(check_version(info));
  return Reached{*id, std::move(info)};
}

Result<Segment> TransferEndpoint::Impl::ask_for(const PeerEndpoint& peer, const Reached& at,
                                                std::string_view name, std::uint64_t deadline_ns,
                                                bool& is_lost) {
  std::unique_lock lock(mutex);
  CACHALOT_TRY(check_open());
  const std::uint64_t number = next_number++;
  OpenedSegment& segment = segments[number];
  segment.peer = at.id;
  segment.name = name;
  segment.peer_name = at.info.name;
  if (!peer.addresses.empty()) reached[peer.addresses] = at.id;
  if (const Status sent = engine->send(at.id, encode(OpenMessage{number, std::string(name)}));
      !sent) {
    is_lost = sent.error().code == Code::kNotFound;
    segments.erase(number);
    return sent.error();
  }
  for (;;) {
    const auto found = segments.find(number);
    if (found == segments.end())
      return Error::make(Code::kCancelled, "segment \"%.60s\" was closed",
                         std::string(name).c_str());
    const OpenedSegment& now = found->second;
    if (now.is_open && !now.error)
      return Segment{SegmentId{number}, now.peer_name, now.bytes, now.access};
    const std::uint64_t now_ns = base::SteadyClock::read();
    if (now.error || now_ns >= deadline_ns) {
      const Error error =
          now.error ? *now.error
                    : Error::make(Code::kTimeout, "endpoint %.60s has not answered in time",
                                  at.info.name.c_str());
      is_lost = now.is_lost;
      segments.erase(found);
      return error;
    }
    changed.wait_for(lock, std::chrono::nanoseconds(
                               std::min<std::uint64_t>(deadline_ns - now_ns, 3'600'000'000'000)));
  }
}

void TransferEndpoint::Impl::take_opened(PeerId peer, const OpenedMessage& message) {
  const auto found = segments.find(message.request);
  if (found == segments.end() || found->second.peer != peer || found->second.is_open) return;
  found->second.number = message.segment;
  found->second.bytes = message.bytes;
  found->second.access = message.access;
  found->second.is_open = true;
  changed.notify_all();
}

void TransferEndpoint::Impl::take_refused(PeerId peer, const RefusedMessage& message) {
  if (const auto segment = segments.find(message.number);
      segment != segments.end() && segment->second.peer == peer && !segment->second.is_open) {
    segment->second.error = message.error;
    changed.notify_all();
    return;
  }
  const auto batch = batches.find(message.number);
  if (batch != batches.end() && batch->second.peer == peer)
    end_batch(message.number, &message.error);
}

// The owner is ready for the bytes of a write.
void TransferEndpoint::Impl::take_window(PeerId peer, const WindowMessage& message) {
  expire(message.batch, base::SteadyClock::read());
  const auto found = batches.find(message.batch);
  if (found == batches.end() || found->second.peer != peer) return;
  Batch& batch = found->second;
  if (!batch.is_write || batch.push || batch.status.state != BatchState::kRunning) return;
  const Result<PushId> push = engine->push(peer, WindowKey{message.window},
                                           std::exchange(batch.memory, {}), batch.deadline_ns);
  if (!push) return end_batch(message.batch, &push.error());
  batch.push = *push;
  batch_pushes[*push] = message.batch;
}

void TransferEndpoint::Impl::progress(std::uint64_t number, const TransferStatus& status) {
  const auto found = batches.find(number);
  if (found == batches.end() || found->second.status.state != BatchState::kRunning) return;
  found->second.status.bytes = status.bytes;
  if (status.state == TransferState::kRunning) {
    changed.notify_all();
  } else {
    end_batch(number, status.state == TransferState::kDone ? nullptr : &status.error);
  }
}

void TransferEndpoint::Impl::expire(std::uint64_t number, std::uint64_t now_ns) {
  const auto found = batches.find(number);
  if (found == batches.end()) return;
  const Batch& batch = found->second;
  if (!batch.is_write || batch.push || batch.deadline_ns > now_ns) return;
  const Error error =
      Error::make(Code::kTimeout, "the owner of the segment has not answered before the deadline");
  end_batch(number, &error);
}

void TransferEndpoint::Impl::end_batch(std::uint64_t number, const Error* error) {
  const auto found = batches.find(number);
  if (found == batches.end() || found->second.status.state != BatchState::kRunning) return;
  Batch& batch = found->second;
  batch.status.state = error == nullptr ? BatchState::kDone : BatchState::kFailed;
  // After this, nothing touches the memory.
  if (batch.window) {
    batch_windows.erase(static_cast<std::uint64_t>(*batch.window));
    engine->release(*batch.window, error);
  }
  if (batch.push) {
    batch_pushes.erase(*batch.push);
    engine->release(*batch.push, error);
  }
  if (error == nullptr) {
    ++counts.done_batches;
    if (!batch.notice.empty()) send(batch.peer, NoticeMessage{batch.notice});
  } else {
    batch.status.error = *error;
    ++counts.failed_batches;
    send(batch.peer, CancelBatchMessage{number});
  }
  changed.notify_all();
}

Result<BatchId> TransferEndpoint::Impl::submit(SegmentId id, std::span<std::byte> local,
                                               std::span<const TransferDescriptor> descriptors,
                                               const BatchOptions& o, bool is_write) {
  CACHALOT_TRY_ASSIGN(Sides sides, sides_of(descriptors));
  CACHALOT_TRY_ASSIGN(ByteStream memory,
                      place(sides.local, reinterpret_cast<std::uintptr_t>(local.data()),
                            local.size(), "the local memory"));
  if (o.notice.size() > kMostNoticeBytes) {
    return Error::make(Code::kInvalidArgument, "a notice of %zu bytes; expected at most %zu",
                       o.notice.size(), kMostNoticeBytes);
  }
  const std::lock_guard lock(mutex);
  CACHALOT_TRY(check_open());
  const auto found = segments.find(raw(id));
  if (found == segments.end() || !found->second.is_open)
    return Error::make(Code::kNotFound, "no such segment is open");
  const OpenedSegment& segment = found->second;
  if (segment.error) {
    return Error::make(Code::kNotFound, "segment \"%.60s\": endpoint %.60s was lost: %.80s",
                       segment.name.c_str(), segment.peer_name.c_str(), segment.error->message);
  }
  const SegmentAccess needed = is_write ? SegmentAccess::kWrite : SegmentAccess::kRead;
  if ((static_cast<std::uint32_t>(segment.access) & static_cast<std::uint32_t>(needed)) == 0) {
    return Error::make(Code::kPermission, "segment \"%.60s\" of endpoint %.60s is not open for %s",
                       segment.name.c_str(), segment.peer_name.c_str(),
                       is_write ? "writing" : "reading");
  }
  // The owner checks this as well; here it costs no answer.
  CACHALOT_TRY(
      place(sides.remote, 0, segment.bytes, "segment \"" + segment.name.substr(0, 60) + "\""));
  const std::uint64_t for_ns = std::min<std::uint64_t>(o.deadline_ns, ~std::uint64_t{0} >> 2);
  const std::uint64_t number = next_number++;
  Batch batch;
  batch.segment = id;
  batch.peer = segment.peer;
  batch.is_write = is_write;
  batch.deadline_ns = base::SteadyClock::read() + for_ns;
  batch.notice = o.notice;
  std::vector<std::byte> message;
  if (is_write) {
    batch.memory = std::move(memory);
    message = encode(WriteMessage{number, segment.number, for_ns, std::move(sides.remote)});
  } else {
    CACHALOT_TRY_ASSIGN(batch.window,
                        engine->open_window(batch.peer, std::move(memory), batch.deadline_ns));
    message =
        encode(ReadMessage{number, segment.number, for_ns,
                           static_cast<std::uint64_t>(*batch.window), std::move(sides.remote)});
  }
  if (const Status sent = engine->send(batch.peer, message); !sent) {
    if (batch.window) engine->release(*batch.window);
    return sent.error();
  }
  if (batch.window) batch_windows[static_cast<std::uint64_t>(*batch.window)] = number;
  batches.emplace(number, std::move(batch));
  ++counts.batches;
  return BatchId{number};
}

// --- Public ---

Result<Segment> TransferEndpoint::open(const PeerEndpoint& peer, std::string_view name,
                                       std::uint64_t timeout_ns) {
  if (name.empty() || name.size() > kMostSegmentNameBytes) {
    return Error::make(Code::kInvalidArgument, "a segment's name has %zu bytes; expected 1 to %zu",
                       name.size(), kMostSegmentNameBytes);
  }
  const std::uint64_t end_ns =
      base::SteadyClock::read() + std::min<std::uint64_t>(timeout_ns, ~std::uint64_t{0} >> 2);
  for (;;) {
    bool was_connected = false;
    const Result<Reached> reached = impl_->reach(peer, end_ns, was_connected);
    {
      // First: closing it is why others fail.
      const std::lock_guard lock(impl_->mutex);
      CACHALOT_TRY(impl_->check_open());
    }
    bool is_lost = !reached && was_connected;
    if (!reached && !is_lost) return reached.error();
    Result<Segment> segment = reached ? impl_->ask_for(peer, *reached, name, end_ns, is_lost)
                                      : Result<Segment>(reached.error());
    // A connection from before may lead to an owner that has just ended, and its name or address to the next one.
    if (segment || !is_lost || !was_connected || base::SteadyClock::read() >= end_ns)
      return segment;
  }
}

void TransferEndpoint::close(SegmentId id) {
  const std::lock_guard lock(impl_->mutex);
  const Error error = cancelled();
  for (const auto& [number, batch] : impl_->batches) {
    if (batch.segment == id) impl_->end_batch(number, &error);
  }
  impl_->segments.erase(raw(id));
  impl_->changed.notify_all();
}

Result<BatchId> TransferEndpoint::read(SegmentId segment, std::span<std::byte> local,
                                       std::span<const TransferDescriptor> descriptors,
                                       const BatchOptions& options) {
  return impl_->submit(segment, local, descriptors, options, false);
}

Result<BatchId> TransferEndpoint::write(SegmentId segment, std::span<const std::byte> local,
                                        std::span<const TransferDescriptor> descriptors,
                                        const BatchOptions& options) {
  // A write only reads it.
  const std::span<std::byte> memory(const_cast<std::byte*>(local.data()), local.size());
  return impl_->submit(segment, memory, descriptors, options, true);
}

Result<BatchStatus> TransferEndpoint::status(BatchId batch) const {
  return wait(batch, 0);
}

Result<BatchStatus> TransferEndpoint::wait(BatchId id, std::uint64_t timeout_ns,
                                           std::uint64_t bytes) const {
  std::unique_lock lock(impl_->mutex);
  const std::uint64_t begin_ns = base::SteadyClock::read();
  const std::uint64_t end_ns = timeout_ns > ~begin_ns ? ~std::uint64_t{0} : begin_ns + timeout_ns;
  for (;;) {
    const std::uint64_t now_ns = base::SteadyClock::read();
    impl_->expire(raw(id), now_ns);
    const auto found = impl_->batches.find(raw(id));
    if (found == impl_->batches.end())
      return Error::make(Code::kNotFound, "no such batch, or it was released");
    const Batch& batch = found->second;
    if (batch.status.state != BatchState::kRunning || batch.status.bytes >= bytes ||
        now_ns >= end_ns) {
      return BatchStatus(batch.status);
    }
    // A transfer ends at its deadline, and tells it; a batch without one is looked at then.
    const std::uint64_t next_ns =
        batch.is_write && !batch.push ? std::min(end_ns, batch.deadline_ns) : end_ns;
    impl_->changed.wait_for(lock, std::chrono::nanoseconds(std::min<std::uint64_t>(
                                      next_ns - now_ns, 3'600'000'000'000)));
  }
}

void TransferEndpoint::cancel(BatchId id) {
  const std::lock_guard lock(impl_->mutex);
  const Error error = cancelled();
  impl_->end_batch(raw(id), &error);
}

void TransferEndpoint::release(BatchId id) {
  const std::lock_guard lock(impl_->mutex);
  const Error error = cancelled();
  impl_->end_batch(raw(id), &error);
  impl_->batches.erase(raw(id));
  impl_->changed.notify_all();
}

}  // namespace cachalot
