#include "engine_pair.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "os/child.h"
#include "os/file_descriptor.h"
#include "os/topology.h"
#include "transfer/engine/engine.h"

namespace cachalot::apps::bench {
namespace {

using namespace transfer;

constexpr std::uint64_t kConnectNs = 20'000'000'000, kRunNs = 120'000'000'000;
constexpr std::uint64_t kHugeBytes = 2u << 20;

bool is_tcp(Route route) {
  return route == Route::kTcp || route == Route::kEncrypted;
}
std::optional<os::SecretKey> key_of(Route route) {
  return route == Route::kEncrypted ? std::optional(os::SecretKey{{1}}) : std::nullopt;
}

// One push, as the parent asks the child for it.
struct PushRequest {
  std::uint64_t key = 0, at = 0, bytes = 0, piece_bytes = 0;
  std::uint64_t layers = 0, compute_ns = 0;  // 0 layers: all can be read now
  std::uint64_t is_whole = 0;
  std::uint64_t prepared = 0;  // its number, from 1 on; 0: the bytes at `at`
};

Result<ByteStream> stream_of(std::uint64_t at, std::uint64_t bytes, std::uint64_t piece_bytes) {
  if (piece_bytes == 0) return ByteStream(Strided::flat(reinterpret_cast<void*>(at), bytes));
  CACHALOT_TRY_ASSIGN(Strided pieces,
                      Strided::make(at, {{bytes / piece_bytes, piece_bytes * 2}}, piece_bytes));
  return ByteStream(std::move(pieces));
}

std::uint64_t thread_cpu_ns() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(time.tv_nsec);
}

// Computes, until `cpu_ns` of this thread's time are used.
void spin(std::uint64_t cpu_ns) {
  for (const std::uint64_t end_ns = thread_cpu_ns() + cpu_ns; thread_cpu_ns() < end_ns;) {
  }
}

std::byte* allocate(std::uint64_t bytes) {
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kHugeBytes, bytes));
  if (memory == nullptr) return nullptr;
  madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 1, bytes);
  return memory;
}

// The child.
class Sender : public EngineEvents {
 public:
  explicit Sender(const std::vector<PreparedPush>& prepared) : prepared_(prepared) {}

  int run(Route route, const PairMemory& memory, bool has_checksums, int address_fd) {
    std::array<char, 256> address{};
    if (read(address_fd, address.data(), address.size()) != static_cast<ssize_t>(address.size()))
      return 1;
    EngineOptions options;
    options.name = "sender";
    options.has_checksums = has_checksums;
    options.cluster_key = key_of(route);
    if (route == Route::kShared) {
      options.segments.push_back({reinterpret_cast<std::uint64_t>(memory.shared_source()),
                                  memory.bytes(), static_cast<std::uint64_t>(memory.shared_fd()),
                                  0});
    }
    auto engine = TransferEngine::open(options, this);
    if (!engine) return 1;
    engine_ = engine->get();
    PeerAddress receiver;
    receiver.addresses = {address.data()};
    if (!engine_->connect(receiver, now_ns() + kConnectNs)) return 1;
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return is_lost_ || !computations_.empty(); });
      if (is_lost_) return 0;
      const auto [peer, request] = computations_.front();
      computations_.pop_front();
      lock.unlock();
      compute(peer, request);
    }
  }

  void on_message(PeerId peer, std::span<const std::byte> message) override {
    for (std::size_t i = 0; i + sizeof(PushRequest) <= message.size(); i += sizeof(PushRequest)) {
      PushRequest request;
      std::memcpy(&request, message.data() + i, sizeof request);
      if (request.layers > 0 || request.prepared > 0) {
        const std::lock_guard lock(mutex_);
        computations_.emplace_back(peer, request);
        changed_.notify_all();
      } else {
        (void)begin(peer, request, request.bytes);
      }
    }
  }
  void on_push(PushId push, const TransferStatus& status) override {
    if (status.state != TransferState::kRunning) engine_->release(push);
  }
  void on_peer_lost(PeerId, const Error&) override {
    const std::lock_guard lock(mutex_);
    is_lost_ = true;
    changed_.notify_all();
  }

 private:
  Result<PushId> begin(PeerId peer, const PushRequest& request, std::uint64_t ready_bytes) {
    ByteStream stream;
    if (request.prepared > 0) {
      stream = prepared_[request.prepared - 1].stream;
    } else {
      CACHALOT_TRY_ASSIGN(stream, stream_of(request.at, request.bytes, request.piece_bytes));
    }
    return engine_->push(peer, WindowKey{request.key}, std::move(stream), now_ns() + kRunNs,
                         ready_bytes);
  }

  void compute(PeerId peer, const PushRequest& request) {
    if (request.prepared > 0) {
      if (const auto& before = prepared_[request.prepared - 1].before) before();
      (void)begin(peer, request, request.bytes);
      return;
    }
    (void)os::pin_to_core(take_cores().other);
    if (request.is_whole != 0) {
      spin(request.layers * request.compute_ns);
      (void)begin(peer, request, request.bytes);
      return;
    }
    const Result<PushId> push = begin(peer, request, 0);
    if (!push) return;
    for (std::uint64_t layer = 1; layer <= request.layers; ++layer) {
      spin(request.compute_ns);
      (void)engine_->advance(*push, request.bytes / request.layers * layer);
    }
  }

  const std::vector<PreparedPush>& prepared_;
  TransferEngine* engine_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<PeerId, PushRequest>> computations_;
  bool is_lost_ = false;
};

}  // namespace

void PairMemory::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

PairMemory::PairMemory(os::SharedFile file, os::Mapping mapping, std::uint64_t bytes)
    : file_(std::move(file)),
      mapping_(std::move(mapping)),
      bytes_(bytes),
      source_(allocate(bytes)),
      target_(allocate(bytes)) {}

Result<PairMemory> PairMemory::make(std::uint64_t bytes) {
  CACHALOT_TRY_ASSIGN(os::SharedFile file, os::SharedFile::create("memfd:bench-transfer", bytes));
  CACHALOT_TRY_ASSIGN(os::Mapping mapping, file.map({.dont_fork = false, .populate = true}));
  std::memset(mapping.data(), 1, bytes);
  PairMemory memory(std::move(file), std::move(mapping), bytes);
  if (memory.source_ && memory.target_) {
    // The child needs its address only. After a fork the first write to a page would copy it, and split a huge page.
    madvise(memory.target(), bytes, MADV_DONTFORK);
    return memory;
  }
  return Error::make(Code::kNoSpace, "no memory for two buffers of %llu bytes",
                     static_cast<unsigned long long>(bytes));
}

// The parent.
struct EnginePair::Impl : EngineEvents {
  Impl(Route given, const PairMemory& buffers, std::vector<PreparedPush> pushes)
      : route(given), memory(buffers), prepared(std::move(pushes)) {}

  std::uint64_t source_at() const {
    return reinterpret_cast<std::uint64_t>(route == Route::kShared ? memory.shared_source()
                                                                   : memory.private_source());
  }

  Result<ByteStream> target_at(std::uint64_t at) const {
    if (prepared_target) return ByteStream(*prepared_target);
    return stream_of(reinterpret_cast<std::uint64_t>(memory.target()) + at, load.bytes,
                     load.piece_bytes);
  }

  // With the lock. Opens a window, and asks for its bytes.
  Status ask_next() {
    const std::uint64_t room = load.piece_bytes == 0 ? load.bytes : load.bytes * 2;
    const std::uint64_t places = memory.bytes() / room;
    const std::uint64_t at = load.walks ? asked % places * room : 0;
    ++asked;
    CACHALOT_TRY_ASSIGN(ByteStream target, target_at(at));
    CACHALOT_TRY_ASSIGN(const WindowKey key,
                        engine->open_window(*peer, std::move(target), now_ns() + kRunNs));
    request.key = static_cast<std::uint64_t>(key);
    request.at = source_at() + at;
    request.bytes = load.bytes;
    request.piece_bytes = load.piece_bytes;
    return engine->send(*peer, std::as_bytes(std::span(&request, 1)));
  }

  Result<double> run() {
    std::unique_lock lock(mutex);
    asked = arrived = 0;
    error.reset();
    end_ns = 0;
    start_ns = now_ns();
    for (std::uint64_t i = 0; i < std::min(load.outstanding, load.transfers); ++i)
      CACHALOT_TRY(ask_next());
    const auto is_done = [this] { return end_ns != 0 || error.has_value(); };
    if (!changed.wait_for(lock, std::chrono::nanoseconds(kRunNs), is_done))
      return Error::make(Code::kTimeout, "a push does not end");
    if (error) return *error;
    return static_cast<double>(end_ns - start_ns) / 1e9;
  }

  void on_peer(PeerId id, const PeerInfo&) override {
    const std::lock_guard lock(mutex);
    peer = id;
    changed.notify_all();
  }
  void on_peer_lost(PeerId, const Error& reason) override { fail(reason); }
  void on_window(WindowKey key, const TransferStatus& status) override {
    if (status.state == TransferState::kRunning) return;
    if (status.state == TransferState::kFailed) return fail(status.error);
    engine->release(key);
    const std::lock_guard lock(mutex);
    ++arrived;
    if (asked < load.transfers) {
      if (const Status status_of_next = ask_next(); !status_of_next) error = status_of_next.error();
    }
    if (arrived == load.transfers) end_ns = now_ns();
    if (arrived == load.transfers || error) changed.notify_all();
  }

  void fail(const Error& reason) {
    const std::lock_guard lock(mutex);
    if (!error) error = reason;
    changed.notify_all();
  }

  const Route route;
  const PairMemory& memory;
  const std::vector<PreparedPush> prepared;
  std::optional<os::Child> child;
  std::unique_ptr<TransferEngine> engine;

  std::mutex mutex;
  std::condition_variable changed;
  std::optional<PeerId> peer;
  std::optional<Error> error;
  PushLoad load;
  PushRequest request;
  std::optional<ByteStream> prepared_target;
  std::uint64_t asked = 0, arrived = 0, start_ns = 0, end_ns = 0;
};

EnginePair::EnginePair(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

EnginePair::~EnginePair() {
  impl_->engine->close();
  if (impl_->child) (void)impl_->child->wait_for(1000);
}

Result<std::unique_ptr<EnginePair>> EnginePair::open(Route route, const PairMemory& memory,
                                                     std::vector<PreparedPush> prepared,
                                                     const Cores* cores, bool has_checksums) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return Error::from_errno(errno, "pipe");
  os::FileDescriptor from(ends[0]), to(ends[1]);
  auto impl = std::make_unique<Impl>(route, memory, std::move(prepared));
  CACHALOT_TRY_ASSIGN(os::Child child, os::Child::start([&] {
                        to.close();
                        if (cores != nullptr) (void)os::pin_to_core(cores->other);
                        Sender sender(impl->prepared);
                        return sender.run(route, memory, has_checksums, from.get());
                      }));
  impl->child.emplace(std::move(child));
  EngineOptions options;
  options.name = "receiver";
  options.cluster_key = key_of(route);
  options.listen = {is_tcp(route) ? "tcp:127.0.0.1:0"
                                  : "unix:@cachalot-bench-" + std::to_string(impl->child->pid())};
  options.reads_peer_memory = !is_tcp(route);
  if (cores != nullptr) (void)os::pin_to_core(cores->own);  // the engine's thread begins there
  Result<std::unique_ptr<TransferEngine>> engine = TransferEngine::open(options, impl.get());
  if (cores != nullptr) release_cores();
  if (!engine) return engine.error();
  impl->engine = std::move(*engine);
  auto pair = std::unique_ptr<EnginePair>(new EnginePair(std::move(impl)));
  Impl& opened = *pair->impl_;
  std::array<char, 256> address{};
  std::strncpy(address.data(), opened.engine->addresses().front().c_str(), address.size() - 1);
  if (write(to.get(), address.data(), address.size()) != static_cast<ssize_t>(address.size()))
    return Error::from_errno(errno, "asking the sender to connect");
  std::unique_lock lock(opened.mutex);
  const bool is_connected = opened.changed.wait_for(lock, std::chrono::nanoseconds(kConnectNs),
                                                    [&] { return opened.peer.has_value(); });
  if (!is_connected) return Error::make(Code::kTimeout, "the sender does not connect");
  return pair;
}

Result<double> EnginePair::push(const PushLoad& load) {
  impl_->load = load;
  impl_->request = {};
  // Not through one run: transfers take turns, so some of those that are counted would have begun before.
  if (load.warm_up > 0) {
    impl_->load.transfers = load.warm_up;
    CACHALOT_TRY(impl_->run());
    impl_->load.transfers = load.transfers;
  }
  return impl_->run();
}

Result<double> EnginePair::rate(const PushLoad& load) {
  CACHALOT_TRY_ASSIGN(const double seconds, push(load));
  return static_cast<double>(load.transfers * load.bytes) / seconds;
}

Result<double> EnginePair::push_layers(const LayerLoad& load) {
  impl_->load = {.bytes = load.layers * load.layer_bytes, .transfers = 1};
  impl_->request = {};
  impl_->request.layers = load.layers;
  impl_->request.compute_ns = load.compute_ns;
  impl_->request.is_whole = load.is_whole ? 1 : 0;
  return impl_->run();
}

Result<double> EnginePair::push_prepared(std::size_t index, const ByteStream& target) {
  impl_->load = {.bytes = target.bytes(), .transfers = 1};
  impl_->request = {};
  impl_->request.prepared = index + 1;
  impl_->prepared_target = target;
  Result<double> seconds = impl_->run();
  impl_->prepared_target.reset();
  return seconds;
}

}  // namespace cachalot::apps::bench
