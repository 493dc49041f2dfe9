#include "fault_peer.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "base/rng.h"
#include "kv/paged_cache.h"
#include "transfer/handover/rank_impl.h"

namespace cachalot::transfer {
namespace {

constexpr int kAnswerMs = 60'000;
constexpr std::uint64_t kChunkBytes =
    64 << 10;  // so that 1 % of the payloads are some of every few requests

class PeerProcess {
 public:
  PeerProcess(const PeerOptions& options, std::byte* memory)
      : options_(options), memory_(memory), rng_(options.seed) {}

  Status open() {
    TransferOptions o;
    o.instance = options_.side == 'a' ? "p" : "d";
    o.model = "test@1";
    o.geometry.layers = kLayers;
    o.geometry.kv_heads = 4;
    o.geometry.head_dim = 64;
    o.geometry.block_tokens = kPageTokens;
    o.cache.layout = "vllm_kbnhc";
    o.cache.pages = kPages;
    for (std::uint32_t layer = 0; layer < kLayers; ++layer)
      o.cache.tensors.push_back({memory_ + layer * kTensorBytes, kTensorBytes});
    o.listen = options_.listen;
    o.checksums = true;
    o.peer_timeout_ns = options_.peer_timeout_ns;
    CACHALOT_TRY_ASSIGN(kv::EngineCache cache, kv::engine_cache_of(o.cache, o.geometry));
    auto impl = std::make_unique<TransferRank::Impl>(o, std::move(cache), 0);
    impl->tune = [this](EngineOptions& engine) {
      engine.chunk_bytes = kChunkBytes;
      // The progress thread only.
      engine.damage = [this](WindowKey, std::uint64_t, std::uint64_t) {
        const bool is_damaged = rng_.chance(options_.damage);
        damaged_ += is_damaged;
        return is_damaged;
      };
    };
    CACHALOT_TRY(impl->start());
    impl_ = impl.get();
    rank_.emplace(std::move(impl));
    return {};
  }

  Reply execute(const Command& c) {
    Reply reply;
    Status status;
    const std::span<const PageId> pages(c.pages.data(), c.page_count);
    switch (c.op) {
      case Command::kOffer:
        status = rank_->offer({.id = c.id,
                               .pages = pages,
                               .tokens = c.tokens,
                               .deadline_ns = c.deadline_ns,
                               .layers_ready = c.layers});
        break;
      case Command::kReady:
        status = rank_->layers_ready(c.id, c.layers);
        break;
      case Command::kWithdraw:
        status = rank_->withdraw(c.id);
        break;
      case Command::kAsk: {
        const Result<AskId> ask = rank_->ask(
            {"p", c.id, c.tokens, {}, options_.prefill, false},
            {.pages = pages, .deadline_ns = c.deadline_ns, .waits_for_offer = c.waits_for_offer});
        if (ask) {
          reply.ask = static_cast<std::uint64_t>(*ask);
        } else {
          status = ask.error();
        }
        break;
      }
      case Command::kRelease:
        rank_->release(AskId{c.ask});
        break;
      case Command::kLook:
        look(c, reply);
        break;
    }
    reply.is_ok = status.ok();
    if (!status) reply.error = status.error();
    return reply;
  }

 private:
  void look(const Command& c, Reply& reply) {
    if (const Result<AskStatus> ask = rank_->status(AskId{c.ask}); c.ask != 0 && ask) {
      reply.has_ask = true;
      reply.state = ask->state;
      reply.layers = ask->layers;
      reply.bytes = ask->bytes;
      reply.error = ask->error;
    }
    for (const EndedOffer& ended : rank_->ended_offers()) {
      if (reply.ended_count < reply.ended.size())
        reply.ended[reply.ended_count++] = {ended.id, ended.status.ok()};
    }
    const TransferStatistics s = rank_->statistics();
    reply.corrupt = s.corrupt_chunks;
    reply.received = s.received_bytes;
    reply.damaged = damaged_;
    reply.offers = s.open_offers;
    reply.asks = s.open_asks;
    const EngineCounters engine = impl_->engine->counters();
    reply.engine_pushes = engine.open_pushes;
    reply.engine_windows = engine.open_windows;
    const std::lock_guard lock(impl_->mutex);
    reply.takers = impl_->takers.size();
    reply.pushes = impl_->push_takers.size();
    reply.early = static_cast<std::uint64_t>(
        std::ranges::count(impl_->early, false, &EarlyAsk::is_cancelled));
    reply.windows = impl_->window_asks.size();
  }

  const PeerOptions options_;
  std::byte* const memory_;
  base::Rng rng_;
  std::atomic<std::uint64_t> damaged_ = 0;
  TransferRank::Impl* impl_ = nullptr;
  std::optional<TransferRank> rank_;
};

int run_peer(const NetnsLink& link, const PeerOptions& options, std::byte* memory, int socket) {
  Reply hello;
  PeerProcess peer(options, memory);
  Status status = link.enter(options.side);
  if (status.ok()) status = peer.open();
  hello.is_ok = status.ok();
  if (!status) hello.error = status.error();
  if (send(socket, &hello, sizeof hello, MSG_NOSIGNAL) < 0 || !hello.is_ok) return 1;
  for (;;) {
    Command command;
    const ssize_t count = recv(socket, &command, sizeof command, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count != sizeof command) return 0;
    const Reply reply = peer.execute(command);
    if (send(socket, &reply, sizeof reply, MSG_NOSIGNAL) < 0) return 0;
  }
}

}  // namespace

Result<FaultPeer> FaultPeer::make() {
  void* at = mmap(nullptr, kCacheBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return Error::from_errno(errno, "mmap");
  return FaultPeer(static_cast<std::byte*>(at));
}

FaultPeer::FaultPeer(FaultPeer&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)),
      child_(std::move(other.child_)),
      socket_(std::move(other.socket_)) {}

FaultPeer::~FaultPeer() {
  kill();
  if (memory_ != nullptr) munmap(memory_, kCacheBytes);
}

Status FaultPeer::start(const NetnsLink& link, const PeerOptions& options) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return Error::from_errno(errno, "socketpair");
  os::FileDescriptor theirs(ends[1]);
  socket_ = os::FileDescriptor(ends[0]);
  CACHALOT_TRY_ASSIGN(os::Child child, os::Child::start([&] {
                        return run_peer(link, options, memory_, theirs.get());
                      }));
  child_.emplace(std::move(child));
  is_stopped_ = false;
  theirs.close();
  CACHALOT_TRY_ASSIGN(const Reply hello, answer());
  if (!hello.is_ok) return Status(hello.error);
  return {};
}

void FaultPeer::kill() {
  if (!child_) return;
  child_->send(SIGKILL);
  (void)child_->wait();
  child_.reset();
  socket_.close();
  is_stopped_ = false;
}

void FaultPeer::stop() {
  child_->send(SIGSTOP);
  is_stopped_ = true;
}

void FaultPeer::resume() {
  child_->send(SIGCONT);
  is_stopped_ = false;
}

Status FaultPeer::post(const Command& command) {
  if (send(socket_.get(), &command, sizeof command, MSG_NOSIGNAL) < 0)
    return Error::from_errno(errno, "a peer has ended");
  return {};
}

Result<Reply> FaultPeer::answer() {
  pollfd ready{socket_.get(), POLLIN, 0};
  if (poll(&ready, 1, kAnswerMs) != 1)
    return Error::make(Code::kTimeout, "a peer does not answer a command");
  Reply reply;
  if (recv(socket_.get(), &reply, sizeof reply, 0) != sizeof reply) {
    const Result<os::ChildStatus> status = child_->wait();
    return Error::make(Code::kIo, "a peer has ended: %s",
                       status ? status->text().c_str() : "unknown");
  }
  return reply;
}

Result<Reply> FaultPeer::call(const Command& command) {
  CACHALOT_TRY(post(command));
  return answer();
}

}  // namespace cachalot::transfer
