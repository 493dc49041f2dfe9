#include <cachalot/transfer_endpoint.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "transfer/segments/endpoint_impl.h"
#include "transfer/ucx/listening.h"

namespace cachalot {
namespace {

constexpr std::size_t kMostNotices = 4096;
constexpr std::size_t kMostNoticesBytes = 16 << 20;
constexpr std::uint64_t kPublishNs = 15'000'000'000;
constexpr std::uint64_t kWithdrawNs = 1'000'000'000;

}  // namespace

Status TransferEndpoint::Impl::start() {
  EngineOptions engine_options;
  engine_options.name = options.name;
  engine_options.facts = {{kVersionFact, kVersion}};
  engine_options.has_checksums = options.checksums;
  engine_options.peer_timeout_ns = options.peer_timeout_ns;
  CACHALOT_TRY_ASSIGN(Listening listening, make_listening(options.name, options.listen));
  CACHALOT_TRY_ASSIGN(engine_options.cluster_key,
                      read_cluster_key(options.cluster_key_file, options.listen));
  engine_options.listen = std::move(listening.addresses);
  {
    // An event may come before the engine is known here.
    const std::lock_guard lock(mutex);
    CACHALOT_TRY_ASSIGN(
        engine, TransferEngine::open(engine_options, this, std::move(listening.transports)));
  }
  if (options.registry.empty()) return {};
  CACHALOT_TRY_ASSIGN(registry, open_registry(options.registry, engine_options.cluster_key));
  if (engine->addresses().empty()) return {};  // it only looks for others
  CACHALOT_TRY_ASSIGN(PeerRecord own, PeerRecord::make(engine->name(), engine->addresses()));
  own.incarnation = engine->incarnation();
  own.facts = engine_options.facts;
  return registry->publish(own, base::SteadyClock::read() + kPublishNs);
}

TransferEndpoint::Impl::~Impl() {
  close();
}

// Calls that wait, and the progress thread, take `mutex`: it is free while this waits for the registry and that thread.
void TransferEndpoint::Impl::close() {
  const std::lock_guard calls(closing);
  {
    const std::lock_guard lock(mutex);
    if (!std::exchange(is_closed, true)) end_all();
  }
  // Others do not find it any more. A call of open() may be asking it, so it stays.
  if (registry) static_cast<void>(registry->withdraw(base::SteadyClock::read() + kWithdrawNs));
  if (engine) engine->close();
}

void TransferEndpoint::Impl::end_all() {
  const Error error =
      Error::make(Code::kCancelled, "endpoint %.60s was closed", options.name.c_str());
  for (const auto& [number, batch] : batches) end_batch(number, &error);
  for (auto& [number, segment] : segments) {
    if (!segment.error) segment.error = error;
  }
  end_segment(nullptr, error);
  registered.clear();
  changed.notify_all();
}

Status TransferEndpoint::Impl::check_open() const {
  if (!is_closed) return {};
  return Error::make(Code::kInvalidArgument, "endpoint %.60s: it was closed", options.name.c_str());
}

void TransferEndpoint::Impl::send(PeerId to, const SegmentMessage& message) {
  // A peer that is lost meanwhile: on_peer_lost() comes.
  static_cast<void>(engine->send(to, encode(message)));
}

void TransferEndpoint::Impl::on_peer(PeerId peer, const PeerInfo& info) {
  const std::lock_guard lock(mutex);
  // Messages of other peers, as ranks are, are not read.
  if (check_version(info).ok()) known[peer] = {info.name, info.is_called};
}

void TransferEndpoint::Impl::on_message(PeerId peer, std::span<const std::byte> bytes) {
  Result<SegmentMessage> message = decode_segment_message(bytes);
  const std::lock_guard lock(mutex);
  if (is_closed || !known.contains(peer)) return;
  if (!message) {
    base::log(base::LogLevel::kWarn, "transfer", "peer %s: %s", known[peer].name.c_str(),
              message.error().message);
    engine->disconnect(peer);
    return;
  }
  if (auto* open = std::get_if<OpenMessage>(&*message)) take_open(peer, *open);
  if (auto* opened = std::get_if<OpenedMessage>(&*message)) take_opened(peer, *opened);
  if (auto* read = std::get_if<ReadMessage>(&*message)) take_read(peer, *read);
  if (auto* write = std::get_if<WriteMessage>(&*message)) take_write(peer, *write);
  if (auto* window = std::get_if<WindowMessage>(&*message)) take_window(peer, *window);
  if (auto* refused = std::get_if<RefusedMessage>(&*message)) take_refused(peer, *refused);
  if (auto* cancel = std::get_if<CancelBatchMessage>(&*message)) take_cancel(peer, cancel->batch);
  if (auto* notice = std::get_if<NoticeMessage>(&*message)) take_notice(peer, std::move(*notice));
}

void TransferEndpoint::Impl::on_peer_lost(PeerId peer, const Error& error) {
  const std::lock_guard lock(mutex);
  known.erase(peer);
  std::erase_if(reached, [&](const auto& entry) { return entry.second == peer; });
  for (auto& [number, segment] : segments) {
    if (segment.peer != peer || segment.error) continue;
    segment.error = error;
    segment.is_lost = true;
  }
  std::vector<std::uint64_t> lost;
  for (const auto& [number, batch] : batches) {
    if (batch.peer == peer) lost.push_back(number);
  }
  for (const std::uint64_t number : lost) end_batch(number, &error);
  std::vector<ServedKey> ended;
  for (auto it = served.lower_bound({peer, 0}); it != served.end() && it->first.first == peer; ++it)
    ended.push_back(it->first);
  for (const ServedKey& key : ended) end_served(key, &error);
  changed.notify_all();
}

void TransferEndpoint::Impl::on_window(WindowKey key, const TransferStatus& status) {
  const std::lock_guard lock(mutex);
  if (const auto batch = batch_windows.find(static_cast<std::uint64_t>(key));
      batch != batch_windows.end()) {
    progress(batch->second, status);
    return;
  }
  const auto found = served_windows.find(static_cast<std::uint64_t>(key));
  if (found != served_windows.end() && status.state != TransferState::kRunning)
    end_served(ServedKey(found->second), nullptr);
}

void TransferEndpoint::Impl::on_push(PushId id, const TransferStatus& status) {
  const std::lock_guard lock(mutex);
  if (const auto batch = batch_pushes.find(id); batch != batch_pushes.end()) {
    progress(batch->second, status);
    return;
  }
  const auto found = served_pushes.find(id);
  if (found != served_pushes.end() && status.state != TransferState::kRunning)
    end_served(ServedKey(found->second), nullptr);
}

void TransferEndpoint::Impl::take_notice(PeerId peer, NoticeMessage message) {
  if (news.size() >= kMostNotices || news_bytes + message.text.size() > kMostNoticesBytes) {
    base::log(base::LogLevel::kWarn, "transfer",
              "peer %s: its notices are not read: %zu wait; the connection ends",
              known[peer].name.c_str(), news.size());
    engine->disconnect(peer);
    return;
  }
  news_bytes += message.text.size();
  news.push_back({known[peer].name, std::move(message.text), known[peer].is_called});
  changed.notify_all();
}

// --- Public ---

TransferEndpoint::TransferEndpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TransferEndpoint::TransferEndpoint(TransferEndpoint&&) noexcept = default;
TransferEndpoint& TransferEndpoint::operator=(TransferEndpoint&&) noexcept = default;
TransferEndpoint::~TransferEndpoint() = default;

void TransferEndpoint::close() {
  if (impl_) impl_->close();
}

Result<TransferEndpoint> TransferEndpoint::open(const TransferEndpointOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  CACHALOT_TRY(impl->start());
  return TransferEndpoint(std::move(impl));
}

const std::vector<std::string>& TransferEndpoint::addresses() const {
  return impl_->engine->addresses();
}

Status TransferEndpoint::notify(std::string_view peer, std::string_view text) {
  if (text.size() > kMostNoticeBytes) {
    return Error::make(Code::kInvalidArgument, "a notice of %zu bytes; expected at most %zu",
                       text.size(), kMostNoticeBytes);
  }
  const std::lock_guard lock(impl_->mutex);
  CACHALOT_TRY(impl_->check_open());
  // One that this endpoint has called, if there is one; of others the first.
  std::optional<PeerId> to;
  for (const auto& [id, other] : impl_->known) {
    if (other.name != peer || (to && !other.is_called)) continue;
    to = id;
    if (other.is_called) break;
  }
  if (to) return impl_->engine->send(*to, encode(NoticeMessage{std::string(text)}));
  return Error::make(Code::kNotFound, "no endpoint \"%.100s\" is connected",
                     std::string(peer).c_str());
}

std::vector<Notice> TransferEndpoint::notices(std::uint64_t timeout_ns) {
  std::unique_lock lock(impl_->mutex);
  const std::uint64_t begin_ns = base::SteadyClock::read();
  while (impl_->news.empty() && !impl_->is_closed) {
    const std::uint64_t passed_ns = base::SteadyClock::read() - begin_ns;
    if (passed_ns >= timeout_ns) return {};
    // Not more than an hour at once: the clock's type cannot hold all timeouts.
    impl_->changed.wait_for(lock, std::chrono::nanoseconds(std::min<std::uint64_t>(
                                      timeout_ns - passed_ns, 3'600'000'000'000)));
  }
  std::vector<Notice> all(std::make_move_iterator(impl_->news.begin()),
                          std::make_move_iterator(impl_->news.end()));
  impl_->news.clear();
  impl_->news_bytes = 0;
  return all;
}

EndpointStatistics TransferEndpoint::statistics() const {
  const EngineCounters engine = impl_->engine->counters();
  const std::lock_guard lock(impl_->mutex);
  EndpointStatistics s = impl_->counts;
  s.sent_bytes = engine.pushed_bytes;
  s.received_bytes = engine.received_bytes;
  s.copied_bytes = engine.copied_bytes;
  for (const auto& [number, batch] : impl_->batches)
    s.open_batches += batch.status.state == BatchState::kRunning;
  s.open_served_batches = impl_->served.size();
  return s;
}

}  // namespace cachalot
