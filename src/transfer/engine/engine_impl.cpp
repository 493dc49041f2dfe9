#include "transfer/engine/engine.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "os/process.h"
#include "transfer/engine/engine_impl.h"
#include "transfer/link/socket_transport.h"

namespace cachalot::transfer {
namespace {

constexpr std::uint64_t kTickNs =
    100'000'000;  // how late a deadline may be noticed if the clock is coarse

// Not 0.
Result<std::uint64_t> random_number() {
  for (;;) {
    CACHALOT_TRY_ASSIGN(const os::Uuid uuid, os::random_uuid());
    if (uuid.low != 0) return uuid.low;
  }
}

constexpr std::uint64_t kLeastPeerTimeoutNs = 1'000'000;

Status check(const EngineOptions& options) {
  if (options.name.empty() || options.name.size() > kMostNameBytes) {
    return Error::make(Code::kInvalidArgument, "an engine's name has %zu bytes; expected 1 to %zu",
                       options.name.size(), kMostNameBytes);
  }
  std::size_t bytes = 0;
  for (const auto& [key, value] : options.facts) bytes += key.size() + value.size();
  if (bytes > kMostFactBytes) {
    return Error::make(Code::kInvalidArgument,
                       "an engine's facts have %zu bytes; expected at most %zu", bytes,
                       kMostFactBytes);
  }
  if (options.chunk_bytes < 4096 || options.chunk_bytes > kMostPayloadBytes) {
    return Error::make(Code::kInvalidArgument, "chunk_bytes is %llu; expected 4096 to %llu",
                       static_cast<unsigned long long>(options.chunk_bytes),
                       static_cast<unsigned long long>(kMostPayloadBytes));
  }
  if (options.peer_timeout_ns < kLeastPeerTimeoutNs) {
    return Error::make(Code::kInvalidArgument, "peer timeout of %llu ns; expected at least 1 ms",
                       static_cast<unsigned long long>(options.peer_timeout_ns));
  }
  return {};
}

}  // namespace

Status TransferEngine::Impl::start(std::vector<std::unique_ptr<Transport>> extra) {
  CACHALOT_TRY(check(options));
  incarnation = options.incarnation;
  if (incarnation == 0) {
    CACHALOT_TRY_ASSIGN(incarnation, random_number());
  }
  CACHALOT_TRY_ASSIGN(probe, random_number());
  CACHALOT_TRY_ASSIGN(leases, Leases::create());
  wake_fd = os::FileDescriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake_fd) return Error::from_errno(errno, "eventfd");
  CACHALOT_TRY_ASSIGN(std::unique_ptr<SocketTransport> sockets,
                      SocketTransport::open(options.cluster_key));
  transports.push_back(std::move(sockets));
  for (auto& transport : extra) transports.push_back(std::move(transport));
  for (auto& transport : transports) {
    transport->start(*this, [this](Link& link) {
      const std::lock_guard lock(mutex);
      take_connection(link);
    });
  }
  for (const std::string& address : options.listen) {
    const auto transport = std::find_if(transports.begin(), transports.end(),
                                        [&](const auto& t) { return t->understands(address); });
    if (transport == transports.end()) {
      return Error::make(Code::kInvalidArgument,
                         "address \"%s\": expected tcp:IP:PORT or unix:@NAME", address.c_str());
    }
    CACHALOT_TRY_ASSIGN(const std::string bound, (*transport)->listen(address));
    addresses.push_back(bound);
  }
  thread = std::thread([this] { run(); });
  return {};
}

void TransferEngine::Impl::stop() {
  const std::lock_guard calls(stopping);
  if (thread.joinable()) {
    {
      const std::lock_guard lock(mutex);
      stops = true;
    }
    wake();
    thread.join();
  }
  // Nothing runs any more; peers cannot connect.
  transports.clear();
  const std::lock_guard lock(mutex);
  connections.clear();
}

TransferEngine::Impl::~Impl() {
  stop();
}

void TransferEngine::Impl::wake() {
  const std::uint64_t one = 1;
  // A full counter wakes as well.
  [[maybe_unused]] const ssize_t written = write(wake_fd.get(), &one, sizeof one);
}

void TransferEngine::Impl::post(std::function<void()> job) {
  const bool was_empty = jobs.empty();
  jobs.push_back(std::move(job));
  if (was_empty) wake();
}

void TransferEngine::Impl::tell(std::function<void(EngineEvents&)> event) {
  if (events != nullptr) news.push_back(std::move(event));
}

void TransferEngine::Impl::deliver() {
  for (;;) {
    std::function<void(EngineEvents&)> event;
    {
      const std::lock_guard lock(mutex);
      if (news.empty()) return;
      event = std::move(news.front());
      news.pop_front();
    }
    static EngineEvents nothing;
    event(events != nullptr ? *events : nothing);
  }
}

void TransferEngine::Impl::run() {
  std::vector<pollfd> fds;
  fds.push_back({wake_fd.get(), POLLIN, 0});
  for (auto& transport : transports) fds.push_back({transport->fd(), POLLIN, 0});
  for (;;) {
    std::vector<std::function<void()>> now;
    {
      const std::lock_guard lock(mutex);
      if (stops) break;
      now.swap(jobs);
      for (auto& job : now) job();
    }
    bool is_more = false;
    for (auto& transport : transports) is_more |= transport->progress();
    std::uint64_t next_ns = 0;
    {
      std::unique_lock lock(mutex);
      is_more |= copy_some(lock);
      next_ns = expire(base::SteadyClock::read());
      is_more |= !jobs.empty();
    }
    deliver();
    if (is_more) continue;
    const bool is_armed = std::all_of(transports.begin(), transports.end(),
                                      [](const auto& transport) { return transport->arm(); });
    if (!is_armed) continue;
    const std::uint64_t now_ns = base::SteadyClock::read();
    const std::uint64_t wait_ns = next_ns > now_ns ? next_ns - now_ns : 0;
    const int timeout_ms =
        next_ns == kNoDeadline
            ? -1
            : static_cast<int>(std::min<std::uint64_t>(wait_ns, 3'600'000'000'000) / 1'000'000 + 1);
    poll(fds.data(), fds.size(), timeout_ms);
    std::uint64_t count;
    [[maybe_unused]] const ssize_t bytes = read(wake_fd.get(), &count, sizeof count);
  }
  // What was to be sent is sent as far as the connections take it at once. Then peers see them end.
  {
    const std::lock_guard lock(mutex);
    for (auto& job : std::exchange(jobs, {})) job();
  }
  for (auto& transport : transports) transport->progress();
  const Error error = ended();
  std::vector<Link*> links;
  {
    const std::lock_guard lock(mutex);
    for (auto& [link, connection] : connections) links.push_back(link);
  }
  for (Link* link : links) link->close(error);
  {
    const std::lock_guard lock(mutex);
    while (!attempts.empty()) end_attempt(attempts.begin()->first, Error(error));
  }
  for (auto& transport : transports) transport->progress();
  {
    const std::lock_guard lock(mutex);
    while (!peers.empty()) lose(peers.begin()->first, error);
  }
  deliver();
}

Error TransferEngine::Impl::ended() const {
  return Error::make(Code::kIo, "engine %s has ended", options.name.c_str());
}

// Ends what is late. @return when to look again
std::uint64_t TransferEngine::Impl::expire(std::uint64_t now_ns) {
  std::uint64_t next_ns = kNoDeadline;
  for (auto& [id, push] : pushes) {
    if (push.status.state != TransferState::kRunning) continue;
    if (push.deadline_ns <= now_ns) {
      const Error error =
          Error::make(Code::kTimeout, "%llu of %llu bytes had arrived at the push's deadline",
                      static_cast<unsigned long long>(push.status.bytes),
                      static_cast<unsigned long long>(push.bytes));
      end_push(push, &error, true);
    } else {
      next_ns = std::min(next_ns, push.deadline_ns);
    }
  }
  for (auto& [key, window] : windows) {
    if (window.status.state != TransferState::kRunning) continue;
    if (window.deadline_ns <= now_ns) {
      const Error error =
          Error::make(Code::kTimeout, "%llu of %llu bytes had arrived at the window's deadline",
                      static_cast<unsigned long long>(window.status.bytes),
                      static_cast<unsigned long long>(window.bytes));
      end_window(window, &error, true);
    } else {
      next_ns = std::min(next_ns, window.deadline_ns);
    }
  }
  next_ns = std::min(next_ns, expire_attempts(now_ns));
  for (auto& [link, connection] : connections) {
    if (connection.deadline_ns == 0) continue;
    if (connection.deadline_ns <= now_ns) {
      link->close(
          Error::make(Code::kTimeout, "%s: %s", link->peer_address().c_str(),
                      connection.is_through ? "it has asked for nothing" : "no hello in time"));
      connection.deadline_ns = 0;
    } else {
      next_ns = std::min(next_ns, connection.deadline_ns);
    }
  }
  watch_peers(now_ns);
  for (auto& [id, peer] : peers) {
    peer.waiting_bytes = 0;
    for (const Link* link : peer.links) peer.waiting_bytes += link->waiting_bytes();
    if (peer.is_awaited) next_ns = std::min(next_ns, now_ns + kTickNs);
  }
  if (std::ranges::any_of(transports, [](const auto& t) { return t->is_paused(); }))
    next_ns = std::min(next_ns, now_ns + kTickNs);
  return next_ns;
}

// Ends those that are late, and calls again where a peer had no room.
std::uint64_t TransferEngine::Impl::expire_attempts(std::uint64_t now_ns) {
  std::vector<std::uint64_t> late, again;
  for (auto& [number, attempt] : attempts) {
    if (attempt.deadline_ns <= now_ns) {
      late.push_back(number);
    } else if (attempt.again_ns != 0 && attempt.again_ns <= now_ns) {
      again.push_back(number);
    }
  }
  for (const std::uint64_t number : late) {
    // It may have ended with the one that it waited for.
    if (const auto found = attempts.find(number); found != attempts.end()) {
      end_attempt(number,
                  Error::make(Code::kTimeout, "peer %s did not answer in time",
                              found->second.wanted.name.c_str()),
                  true);
    }
  }
  for (const std::uint64_t number : again) {
    if (attempts.contains(number)) call(number);
  }
  std::uint64_t next_ns = kNoDeadline;
  for (const auto& [number, attempt] : attempts) {
    next_ns = std::min(next_ns, attempt.deadline_ns);
    if (attempt.again_ns != 0) next_ns = std::min(next_ns, attempt.again_ns);
  }
  return next_ns;
}

// --- What users call ---

TransferEngine::TransferEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TransferEngine::~TransferEngine() = default;

Result<std::unique_ptr<TransferEngine>> TransferEngine::open(
    const EngineOptions& options, EngineEvents* events,
    std::vector<std::unique_ptr<Transport>> transports) {
  EngineOptions bounded = options;
  bounded.peer_timeout_ns = std::min(options.peer_timeout_ns, kMostPeerTimeoutNs);
  auto impl = std::make_unique<Impl>(bounded, events);
  CACHALOT_TRY(impl->start(std::move(transports)));
  return std::unique_ptr<TransferEngine>(new TransferEngine(std::move(impl)));
}

void TransferEngine::close() {
  impl_->stop();
}

const std::string& TransferEngine::name() const {
  return impl_->options.name;
}
std::uint64_t TransferEngine::incarnation() const {
  return impl_->incarnation;
}
const std::vector<std::string>& TransferEngine::addresses() const {
  return impl_->addresses;
}

bool TransferEngine::Impl::connect(const PeerAddress& peer, std::uint64_t deadline_ns,
                                   std::function<void(Result<PeerId>)> done) {
  const std::lock_guard lock(mutex);
  if (stops) return false;
  post([this, peer, deadline_ns, done = std::move(done)]() mutable {
    begin_attempt(std::move(peer), deadline_ns, std::move(done));
  });
  return true;
}

void TransferEngine::connect_async(const PeerAddress& peer, std::uint64_t deadline_ns,
                                   std::function<void(Result<PeerId>)> done) {
  static_cast<void>(impl_->connect(peer, deadline_ns, std::move(done)));
}

Result<PeerId> TransferEngine::connect(const PeerAddress& peer, std::uint64_t deadline_ns) {
  struct Answer {
    std::mutex mutex;
    std::condition_variable came;
    std::optional<Result<PeerId>> result;
  };
  const auto answer = std::make_shared<Answer>();
  const bool begins = impl_->connect(peer, deadline_ns, [answer](Result<PeerId> result) {
    const std::lock_guard lock(answer->mutex);
    answer->result.emplace(std::move(result));
    answer->came.notify_all();
  });
  if (!begins) return impl_->ended();
  std::unique_lock lock(answer->mutex);
  answer->came.wait(lock, [&] { return answer->result.has_value(); });
  return std::move(*answer->result);
}

void TransferEngine::disconnect(PeerId peer) {
  const std::lock_guard lock(impl_->mutex);
  impl_->post([impl = impl_.get(), peer] {
    impl->lose(peer, Error::make(Code::kCancelled, "this engine has disconnected"));
  });
}

void TransferEngine::trust(PeerId peer) {
  const std::lock_guard lock(impl_->mutex);
  impl_->post([impl = impl_.get(), peer] {
    if (Peer* const found = impl->find(peer); found != nullptr) impl->trust(*found);
  });
}

Result<PeerInfo> TransferEngine::info(PeerId id) const {
  const std::lock_guard lock(impl_->mutex);
  const Peer* peer = impl_->find(id);
  if (peer == nullptr) return Error::make(Code::kNotFound, "the peer is lost");
  return PeerInfo(peer->info);
}

Status TransferEngine::send(PeerId to, std::span<const std::byte> message) {
  if (message.size() > kMostMessageBytes) {
    return Error::make(Code::kInvalidArgument, "a message of %zu bytes; expected at most %zu",
                       message.size(), kMostMessageBytes);
  }
  const std::lock_guard lock(impl_->mutex);
  Peer* const known = impl_->find(to);
  if (known == nullptr) return Error::make(Code::kNotFound, "the peer is lost");
  Frame frame{FrameType::kMessage, BodyWriter().bytes(message).take()};
  known->posted_bytes += frame.body.size();
  impl_->post([impl = impl_.get(), to, frame = std::move(frame)] {
    Peer* const peer = impl->find(to);
    if (peer == nullptr) return;
    peer->posted_bytes -= frame.body.size();
    peer->waiting_bytes += frame.body.size();
    peer->links.front()->send(frame);
  });
  return {};
}

std::uint64_t TransferEngine::waiting_bytes(PeerId id) const {
  const std::lock_guard lock(impl_->mutex);
  const Peer* const peer = impl_->find(id);
  return peer == nullptr ? 0 : peer->posted_bytes + peer->waiting_bytes;
}

Result<WindowKey> TransferEngine::open_window(PeerId from, ByteStream memory,
                                              std::uint64_t deadline_ns) {
  if (memory.bytes() == 0) return Error::make(Code::kInvalidArgument, "a window of 0 bytes");
  CACHALOT_TRY_ASSIGN(const std::uint64_t number, random_number());
  const std::lock_guard lock(impl_->mutex);
  if (impl_->find(from) == nullptr) return Error::make(Code::kNotFound, "the peer is lost");
  Window& window = impl_->windows[number];
  window.key = WindowKey{number};
  window.peer = from;
  window.bytes = memory.bytes();
  window.memory = std::make_shared<PayloadMemory>(std::move(memory));
  window.deadline_ns = deadline_ns;
  ++impl_->counters.windows;
  // The progress thread learns the deadline.
  impl_->post([] {});
  return window.key;
}

Result<PushId> TransferEngine::push(PeerId to, WindowKey window, ByteStream memory,
                                    std::uint64_t deadline_ns, std::uint64_t ready_bytes) {
  if (memory.bytes() == 0) return Error::make(Code::kInvalidArgument, "a push of 0 bytes");
  const std::lock_guard lock(impl_->mutex);
  return impl_->begin_push(to, window, std::move(memory), deadline_ns, ready_bytes);
}

Status TransferEngine::advance(PushId id, std::uint64_t ready_bytes) {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->pushes.find(id);
  if (found == impl_->pushes.end()) return Error::make(Code::kNotFound, "no such push");
  Push& push = found->second;
  push.ready = std::max(push.ready, std::min(ready_bytes, push.bytes));
  impl_->post([impl = impl_.get(), id] {
    if (const auto it = impl->pushes.find(id); it != impl->pushes.end()) impl->offer(it->second);
  });
  return {};
}

Result<TransferStatus> TransferEngine::status(WindowKey key) const {
  return wait(key, 0);
}
Result<TransferStatus> TransferEngine::status(PushId id) const {
  return wait(id, 0);
}

namespace {

// Waits until the transfer that `find` gives has ended or has the bytes.
template <class Find>
Result<TransferStatus> wait_for(std::unique_lock<std::mutex>& lock,
                                std::condition_variable& changed, std::uint64_t deadline_ns,
                                std::uint64_t bytes, const Find& find) {
  for (;;) {
    const TransferStatus* status = find();
    if (status == nullptr) return Error::make(Code::kNotFound, "no such transfer: it was released");
    const std::uint64_t now_ns = base::SteadyClock::read();
    if (status->state != TransferState::kRunning || status->bytes >= bytes ||
        now_ns >= deadline_ns) {
      return TransferStatus(*status);
    }
    if (deadline_ns == kNoDeadline) {
      changed.wait(lock);
    } else {
      changed.wait_for(lock, std::chrono::nanoseconds(deadline_ns - now_ns));
    }
  }
}

}  // namespace

Result<TransferStatus> TransferEngine::wait(WindowKey key, std::uint64_t deadline_ns,
                                            std::uint64_t bytes) const {
  std::unique_lock lock(impl_->mutex);
  return wait_for(lock, impl_->changed, deadline_ns, bytes, [&]() -> const TransferStatus* {
    const auto found = impl_->windows.find(raw(key));
    return found == impl_->windows.end() ? nullptr : &found->second.status;
  });
}

Result<TransferStatus> TransferEngine::wait(PushId id, std::uint64_t deadline_ns,
                                            std::uint64_t bytes) const {
  std::unique_lock lock(impl_->mutex);
  return wait_for(lock, impl_->changed, deadline_ns, bytes, [&]() -> const TransferStatus* {
    const auto found = impl_->pushes.find(id);
    return found == impl_->pushes.end() ? nullptr : &found->second.status;
  });
}

void TransferEngine::release(WindowKey key, const Error* reason) {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->windows.find(raw(key));
  if (found == impl_->windows.end()) return;
  const Error cancelled = Error::make(Code::kCancelled, "the receiver has closed the window");
  impl_->end_window(found->second, reason != nullptr ? reason : &cancelled, true);
  impl_->windows.erase(found);
  impl_->changed.notify_all();
}

void TransferEngine::release(PushId id, const Error* reason) {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->pushes.find(id);
  if (found == impl_->pushes.end()) return;
  const Error cancelled = Error::make(Code::kCancelled, "the sender has cancelled the push");
  impl_->end_push(found->second, reason != nullptr ? reason : &cancelled, true);
  impl_->pushes.erase(found);
  impl_->changed.notify_all();
}

EngineCounters TransferEngine::counters() const {
  const std::lock_guard lock(impl_->mutex);
  EngineCounters counters = impl_->counters;
  counters.open_pushes = impl_->pushes.size();
  counters.open_windows = impl_->windows.size();
  return counters;
}

}  // namespace cachalot::transfer
