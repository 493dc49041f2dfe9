#include "transfer/engine/engine.h"

#include <gtest/gtest.h>

#include <sys/mman.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/rng.h"
#include "testing/storage/proxy.h"
#include "testing/transfer/raw_peer.h"
#include "transfer/link/leases.h"

namespace cachalot::transfer {
namespace {

std::uint64_t in(std::uint64_t milliseconds) {
  return base::SteadyClock::read() + milliseconds * 1'000'000;
}

std::vector<std::uint8_t> random_bytes(std::size_t count, std::uint64_t seed) {
  base::Rng rng(seed);
  std::vector<std::uint8_t> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::uint8_t>(rng.next());
  return bytes;
}

enum class Way { kTcp, kEncrypted, kUnix, kSameProcess };

std::string name_of(Way way) {
  if (way == Way::kEncrypted) return "Encrypted";
  return way == Way::kTcp ? "Tcp" : way == Way::kUnix ? "UnixSocket" : "Memory";
}

// Two engines of this process.
struct Pair : EngineEvents {
  explicit Pair(Way way, bool has_checksums = false,
                std::uint64_t peer_timeout_ns = 5'000'000'000) {
    EngineOptions options;
    options.peer_timeout_ns = peer_timeout_ns;
    options.reads_peer_memory = way == Way::kSameProcess;
    options.has_checksums = has_checksums;
    options.chunk_bytes = 64 << 10;
    if (way == Way::kEncrypted) options.cluster_key.emplace().bytes[0] = 7;
    options.name = "sender";
    sender = *TransferEngine::open(options);
    options.name = "receiver";
    static std::atomic<int> number = 0;
    const bool is_tcp = way == Way::kTcp || way == Way::kEncrypted;
    options.listen = {is_tcp ? "tcp:127.0.0.1:0"
                             : "unix:@cachalot-engine-test-" + std::to_string(getpid()) + "-" +
                                   std::to_string(++number)};
    options.damage = [this](WindowKey, std::uint64_t, std::uint64_t) {
      if (const auto now = std::exchange(before_bytes, {}); now) now();
      return damages-- > 0;
    };
    receiver = *TransferEngine::open(options, this);
    to = *sender->connect({"receiver", receiver->incarnation(), receiver->addresses()}, in(5000));
    std::unique_lock lock(mutex);
    came.wait(lock, [this] { return from != PeerId{}; });
  }
  // The receiver's number of the sender.
  void on_peer(PeerId peer, const PeerInfo&) override {
    const std::lock_guard lock(mutex);
    if (from == PeerId{}) from = peer;
    came.notify_all();
  }

  std::mutex mutex;
  std::condition_variable came;
  PeerId to = {}, from = {};
  std::atomic<int> damages = 0;
  std::function<void()> before_bytes;  // that the receiver writes next; once
  std::unique_ptr<TransferEngine> sender, receiver;
};

class EngineWays : public ::testing::TestWithParam<Way> {};

TEST_P(EngineWays, AStreamArrivesInOtherMemoryInTheSameOrder) {
  Pair pair(GetParam());
  // 64 pages of 4 KiB in a random order on each side; tokens outside heads here, inside there.
  const std::uint64_t heads = 8, tokens = 512, content = 64;
  const auto source = random_bytes(heads * tokens * content, 1);
  std::vector<std::uint8_t> target(source.size());
  auto at = [](const std::vector<std::uint8_t>& bytes) {
    return reinterpret_cast<std::uintptr_t>(bytes.data());
  };
  const Strided from =
      *Strided::make(at(source), {{tokens, heads * content}, {heads, content}}, content);
  const Strided into =
      *Strided::make(at(target), {{tokens, content}, {heads, tokens * content}}, content);
  const WindowKey window = *pair.receiver->open_window(pair.from, into, in(5000));
  const PushId push = *pair.sender->push(pair.to, window, from, in(5000));
  EXPECT_EQ(pair.receiver->wait(window, in(5000))->state, TransferState::kDone);
  EXPECT_EQ(pair.sender->wait(push, in(5000))->state, TransferState::kDone);
  for (std::uint64_t t = 0; t < tokens; ++t) {
    for (std::uint64_t h = 0; h < heads; ++h) {
      ASSERT_EQ(0, memcmp(&source[(t * heads + h) * content], &target[(h * tokens + t) * content],
                          content));
    }
  }
  EXPECT_EQ(pair.receiver->counters().copied_bytes > 0, GetParam() == Way::kSameProcess);
}

TEST_P(EngineWays, ALayerCanBeUsedBeforeTheLastOneIsComputed) {
  Pair pair(GetParam());
  const auto source = random_bytes(1 << 20, 2);
  std::vector<std::uint8_t> target(source.size());
  const std::uint64_t layer = source.size() / 4;
  const WindowKey window =
      *pair.receiver->open_window(pair.from, Strided::flat(target.data(), target.size()), in(5000));
  const PushId push =
      *pair.sender->push(pair.to, window, Strided::flat(source.data(), source.size()), in(5000), 0);
  for (std::uint64_t l = 1; l <= 4; ++l) {
    ASSERT_TRUE(pair.sender->advance(push, l * layer).ok());
    const TransferStatus status = *pair.receiver->wait(window, in(5000), l * layer);
    EXPECT_EQ(status.bytes, l * layer);
    EXPECT_EQ(0, memcmp(target.data(), source.data(), l * layer));
  }
  EXPECT_EQ(pair.receiver->status(window)->state, TransferState::kDone);
  // The source is the push's until that has ended, too.
  EXPECT_EQ(pair.sender->wait(push, in(5000))->state, TransferState::kDone);
}

TEST_P(EngineWays, ADamagedChunkIsSentAgain) {
  Pair pair(GetParam(), true);
  const auto source = random_bytes(1 << 20, 3);
  std::vector<std::uint8_t> target(source.size());
  pair.damages = 3;
  const WindowKey window =
      *pair.receiver->open_window(pair.from, Strided::flat(target.data(), target.size()), in(5000));
  const PushId push =
      *pair.sender->push(pair.to, window, Strided::flat(source.data(), source.size()), in(5000));
  EXPECT_EQ(pair.sender->wait(push, in(5000))->state, TransferState::kDone);
  EXPECT_EQ(pair.receiver->status(window)->state, TransferState::kDone);
  EXPECT_EQ(target, source);
  EXPECT_EQ(pair.receiver->counters().corrupt_chunks, 3u);
}

TEST_P(EngineWays, AClosedWindowIsNotWritten) {
  Pair pair(GetParam());
  const auto source = random_bytes(1 << 20, 4);
  std::vector<std::uint8_t> target(source.size());
  const WindowKey window =
      *pair.receiver->open_window(pair.from, Strided::flat(target.data(), target.size()), in(5000));
  const PushId push = *pair.sender->push(
      pair.to, window, Strided::flat(source.data(), source.size()), in(5000), 1 << 19);
  ASSERT_EQ(pair.receiver->wait(window, in(5000), 1 << 19)->bytes, 1u << 19);
  pair.receiver->release(window);
  std::fill(target.begin(), target.end(), 0);
  ASSERT_TRUE(pair.sender->advance(push, 1 << 20).ok());
  const TransferStatus status = *pair.sender->wait(push, in(5000));
  EXPECT_EQ(status.state, TransferState::kFailed);
  EXPECT_EQ(target, std::vector<std::uint8_t>(target.size()));
  EXPECT_FALSE(pair.receiver->status(window).ok());
}

TEST_P(EngineWays, APushThatIsCancelledEndsTheWindow) {
  Pair pair(GetParam());
  const auto source = random_bytes(1 << 20, 5);
  std::vector<std::uint8_t> target(source.size());
  const WindowKey window =
      *pair.receiver->open_window(pair.from, Strided::flat(target.data(), target.size()), in(5000));
  const PushId push = *pair.sender->push(
      pair.to, window, Strided::flat(source.data(), source.size()), in(5000), 1 << 19);
  ASSERT_TRUE(pair.receiver->wait(window, in(5000), 1 << 19).ok());
  pair.sender->release(push);
  const TransferStatus status = *pair.receiver->wait(window, in(5000));
  EXPECT_EQ(status.state, TransferState::kFailed);
  EXPECT_EQ(status.bytes, 1u << 19);
}

TEST_P(EngineWays, BothSidesEndAtTheirDeadlines) {
  Pair pair(GetParam());
  std::vector<std::uint8_t> source(4096), target(4096);
  const WindowKey window =
      *pair.receiver->open_window(pair.from, Strided::flat(target.data(), target.size()), in(50));
  const TransferStatus late = *pair.receiver->wait(window, in(5000));
  EXPECT_EQ(late.state, TransferState::kFailed);
  EXPECT_EQ(late.error.code, Code::kTimeout);
  const PushId push =
      *pair.sender->push(pair.to, window, Strided::flat(source.data(), source.size()), in(50), 0);
  const TransferStatus unsent = *pair.sender->wait(push, in(5000));
  EXPECT_EQ(unsent.state, TransferState::kFailed);
  EXPECT_EQ(unsent.error.code, Code::kTimeout);
}

TEST_P(EngineWays, APeerThatEndsFailsItsTransfers) {
  Pair pair(GetParam());
  std::vector<std::uint8_t> source(4096), target(4096);
  const WindowKey window = *pair.receiver->open_window(
      pair.from, Strided::flat(target.data(), target.size()), in(60'000));
  const PushId push = *pair.sender->push(
      pair.to, window, Strided::flat(source.data(), source.size()), in(60'000), 0);
  pair.sender.reset();
  const TransferStatus status = *pair.receiver->wait(window, in(5000));
  EXPECT_EQ(status.state, TransferState::kFailed);
  EXPECT_EQ(status.error.code, Code::kIo);
  static_cast<void>(push);
}

TEST_P(EngineWays, AWindowTakesOnePushOfOneSize) {
  Pair pair(GetParam());
  const auto source = random_bytes(8192, 6);
  std::vector<std::uint8_t> target(4096);
  WindowKey window =
      *pair.receiver->open_window(pair.from, Strided::flat(target.data(), target.size()), in(5000));
  PushId push =
      *pair.sender->push(pair.to, window, Strided::flat(source.data(), source.size()), in(5000));
  TransferStatus status = *pair.sender->wait(push, in(5000));
  EXPECT_EQ(status.state, TransferState::kFailed);
  EXPECT_NE(std::string(status.error.message).find("8192 bytes into a window of 4096"),
            std::string::npos);
  push = *pair.sender->push(pair.to, window, Strided::flat(source.data(), 4096), in(5000));
  EXPECT_EQ(pair.sender->wait(push, in(5000))->state, TransferState::kDone);
  push = *pair.sender->push(pair.to, window, Strided::flat(source.data() + 4096, 4096), in(5000));
  EXPECT_EQ(pair.sender->wait(push, in(5000))->state, TransferState::kFailed);
  EXPECT_EQ(0, memcmp(target.data(), source.data(), 4096));
  push =
      *pair.sender->push(pair.to, WindowKey{12345}, Strided::flat(source.data(), 4096), in(5000));
  status = *pair.sender->wait(push, in(5000));
  EXPECT_EQ(status.state, TransferState::kFailed);
  EXPECT_EQ(status.error.code, Code::kStale);
}

TEST_P(EngineWays, ManyPushesShareAConnection) {
  Pair pair(GetParam());
  const auto source = random_bytes(64 << 14, 7);
  std::vector<std::uint8_t> target(source.size());
  std::vector<WindowKey> windows;
  std::vector<PushId> pushes;
  for (std::size_t i = 0; i < 64; ++i) {
    windows.push_back(
        *pair.receiver->open_window(pair.from, Strided::flat(&target[i << 14], 1 << 14), in(5000)));
    pushes.push_back(*pair.sender->push(pair.to, windows.back(),
                                        Strided::flat(&source[i << 14], 1 << 14), in(5000)));
  }
  for (const WindowKey window : windows)
    EXPECT_EQ(pair.receiver->wait(window, in(5000))->state, TransferState::kDone);
  for (const PushId push : pushes)
    EXPECT_EQ(pair.sender->wait(push, in(5000))->state, TransferState::kDone);
  EXPECT_EQ(target, source);
}

TEST(EngineOptions, APeerTimeoutThatLosesEachPeerAtOnceIsRefused) {
  EngineOptions options;
  options.name = "one";
  options.peer_timeout_ns = 0;
  const auto engine = TransferEngine::open(options);
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::string(engine.error().message).find("at least 1 ms"), std::string::npos);
}

TEST(EngineOptions, WithoutAPeerTimeoutPeersConnect) {
  EngineOptions options;
  options.name = "called";
  options.listen = {"tcp:127.0.0.1:0"};
  options.peer_timeout_ns = ~std::uint64_t{0};
  const auto called = *TransferEngine::open(options);
  options.name = "caller";
  options.listen = {};
  const auto caller = *TransferEngine::open(options);
  for (int i = 0; i < 10; ++i) {
    const Result<PeerId> peer = caller->connect({"", 0, called->addresses()}, in(20'000));
    ASSERT_TRUE(peer.ok()) << peer.error().message;
    caller->disconnect(*peer);
  }
}

// Silence counts from when something waits for the peer, not from the last frame before.
TEST_P(EngineWays, APeerThatWasIdleForLongerThanItsTimeoutTakesAPush) {
  Pair pair(GetParam(), false, 1'000'000'000);
  const auto source = random_bytes(1 << 20, 10);
  std::vector<std::uint8_t> target(source.size());
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  const WindowKey window = *pair.receiver->open_window(
      pair.from, Strided::flat(target.data(), target.size()), in(20'000));
  const PushId push =
      *pair.sender->push(pair.to, window, Strided::flat(source.data(), source.size()), in(20'000));
  TransferStatus status = *pair.sender->wait(push, in(20'000));
  EXPECT_EQ(status.state, TransferState::kDone) << status.error.message;
  status = *pair.receiver->wait(window, in(20'000));
  EXPECT_EQ(status.state, TransferState::kDone) << status.error.message;
  EXPECT_EQ(target, source);
}

INSTANTIATE_TEST_SUITE_P(Ways, EngineWays,
                         ::testing::Values(Way::kTcp, Way::kEncrypted, Way::kUnix,
                                           Way::kSameProcess),
                         [](const auto& way) { return name_of(way.param); });

// The receiver listens at two addresses; one of them is reached through a proxy that resets its connection after some
// MiB.
TEST(Engine, WhatAPathThatIsCutHadNotDeliveredGoesByTheOtherOne) {
  struct Events : EngineEvents {
    void on_peer(PeerId peer, const PeerInfo&) override { from = static_cast<std::uint64_t>(peer); }
    std::atomic<std::uint64_t> from = 0;
  } events;
  EngineOptions options;
  options.name = "receiver";
  options.listen = {"tcp:127.0.0.1:0", "tcp:127.0.0.1:0"};
  const auto receiver = *TransferEngine::open(options, &events);
  const std::string second = receiver->addresses()[1];
  storage::TestProxy proxy(
      static_cast<std::uint16_t>(std::stoi(second.substr(second.rfind(':') + 1))));
  options.name = "sender";
  options.listen.clear();
  const auto sender = *TransferEngine::open(options);
  const PeerId to = *sender->connect(
      {"receiver", 0, {receiver->addresses()[0], "tcp:127.0.0.1:" + std::to_string(proxy.port())}},
      in(5000));
  while (events.from == 0) std::this_thread::yield();
  const auto source = random_bytes(64 << 20, 8);
  std::vector<std::uint8_t> target(source.size());
  proxy.reset_after(3 << 20);
  const WindowKey window = *receiver->open_window(
      PeerId{events.from.load()}, Strided::flat(target.data(), target.size()), in(60'000));
  const PushId push =
      *sender->push(to, window, Strided::flat(source.data(), source.size()), in(60'000));
  const TransferStatus status = *sender->wait(push, in(60'000));
  EXPECT_EQ(status.state, TransferState::kDone) << status.error.message;
  EXPECT_EQ(receiver->wait(window, in(60'000))->state, TransferState::kDone);
  EXPECT_TRUE(target == source);
  EXPECT_GE(proxy.resets(), 1u);
  EXPECT_GT(sender->counters().resent_bytes, 0u);
}

TEST(Engine, OnlyThePeerThatAWindowIsOpenForWritesIt) {
  Pair pair(Way::kTcp);
  EngineOptions options;
  options.name = "stranger";
  const auto stranger = *TransferEngine::open(options);
  const PeerId to = *stranger->connect({"receiver", 0, pair.receiver->addresses()}, in(5000));
  const PeerId sender = pair.from;
  const auto source = random_bytes(4096, 9);
  std::vector<std::uint8_t> target(4096);
  const WindowKey window =
      *pair.receiver->open_window(sender, Strided::flat(target.data(), target.size()), in(5000));
  const PushId push =
      *stranger->push(to, window, Strided::flat(source.data(), source.size()), in(5000));
  const TransferStatus status = *stranger->wait(push, in(5000));
  EXPECT_EQ(status.state, TransferState::kFailed);
  EXPECT_EQ(status.error.code, Code::kPermission);
  EXPECT_EQ(target, std::vector<std::uint8_t>(4096));
  EXPECT_EQ(pair.receiver->status(window)->state, TransferState::kRunning);
}

TEST(Engine, AnotherIncarnationIsNotThePeer) {
  EngineOptions options;
  options.name = "a";
  const auto a = *TransferEngine::open(options);
  options.name = "b";
  options.listen = {"tcp:127.0.0.1:0"};
  const auto b = *TransferEngine::open(options);
  const auto stale = a->connect({"b", b->incarnation() + 1, b->addresses()}, in(5000));
  ASSERT_FALSE(stale.ok());
  EXPECT_EQ(stale.error().code, Code::kStale);
  EXPECT_NE(std::string(stale.error().message).find("restarted"), std::string::npos);
  const auto other = a->connect({"c", 0, b->addresses()}, in(5000));
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, Code::kStale);
  EXPECT_TRUE(a->connect({"b", 0, b->addresses()}, in(5000)).ok());
}

// An engine that sends to a peer whose frames a test reads itself.
struct ToRawPeer : EngineEvents {
  explicit ToRawPeer(const std::string& listen) {
    EngineOptions options;
    options.name = "sender";
    options.listen = {listen};
    options.chunk_bytes = 32 << 20;  // more than a connection keeps
    engine = *TransferEngine::open(options, this);
  }
  ~ToRawPeer() override { engine->close(); }
  void on_peer(PeerId peer, const PeerInfo&) override { to = static_cast<std::uint64_t>(peer); }
  // @return the engine's hello
  std::optional<Frame> greet(RawPeer& peer, bool reads) {
    peer.send(hello_of("raw", 1, {}));
    std::optional<Frame> hello = peer.receive(FrameType::kHello);
    peer.send(reads_of(reads ? 1 : 0));
    while (to == 0) std::this_thread::yield();
    return hello;
  }

  std::atomic<std::uint64_t> to = 0;
  std::unique_ptr<TransferEngine> engine;
};

// The peer has read a part of a chunk when the push ends; what it reads after that is not of the memory.
TEST(Engine, NothingSendsFromTheMemoryOfAPushThatHasEnded) {
  ToRawPeer sender("tcp:127.0.0.1:0");
  RawPeer peer = RawPeer::connect(sender.engine->addresses().front());
  sender.greet(peer, false);
  std::vector<std::uint8_t> source(64 << 20, 0x11);
  const PushId push = *sender.engine->push(PeerId{sender.to.load()}, WindowKey{7},
                                           Strided::flat(source.data(), source.size()), in(60'000));
  const std::optional<RawPeer::PayloadHead> head = peer.begin_payload();
  ASSERT_TRUE(head);
  ASSERT_EQ(head->payload_bytes, 32u << 20);
  Bytes begun(4096);
  ASSERT_TRUE(peer.read(begun.data(), begun.size()));
  EXPECT_EQ(begun, Bytes(4096, std::byte{0x11}));
  sender.engine->release(push);
  std::fill(source.begin(), source.end(), 0xee);
  Bytes rest(head->payload_bytes - begun.size());
  ASSERT_TRUE(peer.read(rest.data(), rest.size()));
  EXPECT_EQ(std::count(rest.begin(), rest.end(), std::byte{0xee}), 0);
  FrameTrailer trailer;
  ASSERT_TRUE(peer.read(&trailer, sizeof trailer));
  EXPECT_EQ(trailer.state, static_cast<std::uint32_t>(PayloadState::kVoid));
}

TEST(Engine, SaysHowManyBytesOfMessagesAPeerHasNotTaken) {
  constexpr int kMessages = 24;  // more than the system keeps, less than ends the connection
  ToRawPeer sender("tcp:127.0.0.1:0");
  RawPeer peer = RawPeer::connect(sender.engine->addresses().front());
  sender.greet(peer, false);
  const PeerId to{sender.to.load()};
  sender.engine->trust(to);
  const Bytes message(1 << 20);
  for (int i = 0; i < kMessages; ++i) ASSERT_TRUE(sender.engine->send(to, message));
  EXPECT_GT(sender.engine->waiting_bytes(to), 4u << 20);
  for (int i = 0; i < kMessages; ++i) ASSERT_TRUE(peer.receive(FrameType::kMessage)) << i;
  while (sender.engine->waiting_bytes(to) != 0) std::this_thread::yield();
  EXPECT_EQ(sender.engine->waiting_bytes(PeerId{0}), 0u);
}

// The same for a peer that copies the memory by itself.
// Loads from it would end the process.
TEST(Engine, MemoryOfThisProcessIsNotReadAfterItsPushHasEnded) {
  Pair pair(Way::kSameProcess);
  const std::size_t bytes = 1 << 20;
  void* const source =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(source, MAP_FAILED);
  std::vector<std::uint8_t> target(bytes);
  const WindowKey window =
      *pair.receiver->open_window(pair.from, Strided::flat(target.data(), bytes), in(5000));
  const PushId push =
      *pair.sender->push(pair.to, window, Strided::flat(source, bytes), in(5000), 0);
  pair.before_bytes = [&] {
    pair.sender->release(push);
    munmap(source, bytes);
  };
  ASSERT_TRUE(pair.sender->advance(push, bytes).ok());
  const TransferStatus status = *pair.receiver->wait(window, in(5000));
  EXPECT_EQ(status.state, TransferState::kFailed);
  EXPECT_EQ(status.error.code, Code::kStale) << status.error.message;
}

TEST(Engine, APushThatHasEndedEndsItsLease) {
  const std::string name = "@cachalot-engine-test-lease-" + std::to_string(getpid());
  ToRawPeer sender("unix:" + name);
  os::FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  std::copy(name.begin() + 1, name.end(), at.sun_path + 1);
  ASSERT_EQ(0, connect(fd.get(), reinterpret_cast<const sockaddr*>(&at),
                       static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size())));
  RawPeer peer(std::move(fd));
  const std::optional<Frame> hello = sender.greet(peer, true);
  ASSERT_TRUE(hello);
  BodyReader words(hello->body);
  words.text(256), words.word(), words.word(), words.word();  // name, incarnation, session
  words.text(256), words.word();                              // the expected name and incarnation
  ASSERT_EQ(words.word(), 1u);                                // memory of this machine
  const Result<PeerLeases> leases =
      PeerLeases::open("/proc/self/fd/" + std::to_string(words.word()));
  ASSERT_TRUE(leases) << leases.error().message;
  std::vector<std::uint8_t> source(4096);
  for (const bool is_cancelled : {true, false}) {
    const PushId push =
        *sender.engine->push(PeerId{sender.to.load()}, WindowKey{7},
                             Strided::flat(source.data(), source.size()), in(60'000));
    const std::optional<Frame> begin = peer.receive(FrameType::kBegin);
    ASSERT_TRUE(begin);
    BodyReader body(begin->body);
    const std::uint64_t number = body.word();
    body.word(), body.word();
    const LeaseId lease{static_cast<std::uint32_t>(body.word()), body.word()};
    EXPECT_TRUE(leases->holds(lease));
    if (is_cancelled) {
      sender.engine->release(push);
    } else {
      peer.send(Frame{FrameType::kTaken,
                      BodyWriter().word(number).word(0).word(source.size()).word(0).take()});
      EXPECT_EQ(sender.engine->wait(push, in(60'000))->state, TransferState::kDone);
    }
    EXPECT_FALSE(leases->holds(lease));
  }
}

// A process of another machine can use no address of this one.
TEST(Engine, AHelloOverTcpTellsNothingOfTheProcess) {
  ToRawPeer engine("tcp:127.0.0.1:0");
  RawPeer peer = RawPeer::connect(engine.engine->addresses().front());
  const std::optional<Frame> hello = engine.greet(peer, true);
  ASSERT_TRUE(hello);
  BodyReader words(hello->body);
  EXPECT_EQ(words.text(256), "sender");
  EXPECT_EQ(words.word(), engine.engine->incarnation());
  for (int i = 0; i < 2; ++i) EXPECT_EQ(words.word(), 0u);  // its session is the caller's
  EXPECT_EQ(words.text(256), "");
  EXPECT_EQ(words.word(), 0u);
  EXPECT_EQ(words.word(), 0u);  // no memory
  EXPECT_EQ(words.word(), 0u);  // no facts
  EXPECT_TRUE(words.end().ok());
  // A peer that says it reads memory, and cannot, is told no address later, either.
  std::vector<std::uint8_t> source(4096);
  (void)engine.engine->push(PeerId{engine.to.load()}, WindowKey{7},
                            Strided::flat(source.data(), source.size()), in(60'000));
  const std::optional<Frame> next = peer.receive();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->type, FrameType::kReads);
  const std::optional<Frame> pushed = peer.receive();
  ASSERT_TRUE(pushed);
  EXPECT_EQ(pushed->type, FrameType::kChunk);
}

// An engine that has called a peer, and one that says that it is this peer.
TEST(Engine, APeerThatWasCalledIsNoPeerThatHasConnected) {
  EngineOptions options;
  options.name = "owner";
  options.listen = {"tcp:127.0.0.1:0"};
  const auto owner = *TransferEngine::open(options);
  struct Peers : EngineEvents {
    void on_peer(PeerId peer, const PeerInfo& info) override {
      const std::lock_guard lock(mutex);
      (info.is_called ? called : others).push_back(peer);
    }
    void on_peer_lost(PeerId, const Error&) override { ++lost; }
    std::mutex mutex;
    std::vector<PeerId> called, others;
    std::atomic<int> lost = 0;
  } peers;
  options.name = "caller";
  const auto caller = *TransferEngine::open(options, &peers);
  RawPeer impostor = RawPeer::connect(caller->addresses().front());
  const auto says = [&](RawPeer& peer, std::uint64_t incarnation) {
    peer.send(hello_of("owner", incarnation, {}));
    peer.send(reads_of());
    ASSERT_TRUE(peer.receive(FrameType::kReads));
    peer.send({FrameType::kPing, {}});
    ASSERT_TRUE(peer.receive(FrameType::kPong));
  };
  says(impostor, owner->incarnation());
  // Also without addresses: what has connected by itself is not at an address of the owner.
  EXPECT_FALSE(caller->connect({"owner", 0, {}}, in(5000)).ok());
  const PeerId peer = *caller->connect({"owner", 0, owner->addresses()}, in(5000));
  RawPeer second = RawPeer::connect(caller->addresses().front());
  says(second, 12345);
  EXPECT_EQ(*caller->connect({"owner", 0, owner->addresses()}, in(5000)), peer);
  EXPECT_EQ(*caller->connect({"owner", 0, {}}, in(5000)), peer);
  // Neither is a peer of this name at another address: it has to answer there.
  EXPECT_FALSE(caller->connect({"owner", 0, {"tcp:127.0.0.1:1"}}, in(5000)).ok());
  EXPECT_EQ(peers.lost, 0);
  const std::lock_guard lock(peers.mutex);
  EXPECT_EQ(peers.called, std::vector<PeerId>{peer});
  EXPECT_EQ(peers.others.size(), 2u);
}

// As if its host's power or cable had gone: no connection ends, and nothing is asked of it.
TEST(Engine, AnIdlePeerThatIsSilentIsLostIfIdlePeersAreWatched) {
  struct Lost : EngineEvents {
    void on_peer(PeerId, const PeerInfo&) override { ++peers; }
    void on_peer_lost(PeerId, const Error& error) override {
      const std::lock_guard lock(mutex);
      errors.push_back(error);
    }
    std::mutex mutex;
    std::atomic<int> peers = 0;
    std::vector<Error> errors;
  };
  EngineOptions options;
  options.name = "careless";
  options.listen = {"tcp:127.0.0.1:0"};
  options.peer_timeout_ns = 200'000'000;
  Lost of_careless, of_watching;
  const auto careless = *TransferEngine::open(options, &of_careless);
  options.name = "watching";
  options.watches_idle_peers = true;
  const auto watching = *TransferEngine::open(options, &of_watching);
  // A peer that lives answers by itself.
  options.name = "alive";
  options.watches_idle_peers = false;
  const auto alive = *TransferEngine::open(options);
  ASSERT_TRUE(alive->connect({"watching", 0, watching->addresses()}, in(5000)).ok());
  RawPeer first = RawPeer::connect(careless->addresses().front());
  RawPeer second = RawPeer::connect(watching->addresses().front());
  for (RawPeer* peer : {&first, &second}) {
    peer->send(hello_of("silent", 7, {}));
    peer->send(reads_of());
    ASSERT_TRUE(peer->receive(FrameType::kReads));
  }
  const auto has_lost = [&] {
    const std::lock_guard lock(of_watching.mutex);
    return !of_watching.errors.empty();
  };
  const std::uint64_t until_ns = in(20'000);
  while (!has_lost() && base::SteadyClock::read() < until_ns)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_TRUE(has_lost());
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  const std::lock_guard lock(of_watching.mutex);
  ASSERT_EQ(of_watching.errors.size(), 1u);
  EXPECT_NE(std::string(of_watching.errors[0].message).find("nothing was heard"),
            std::string::npos);
  EXPECT_EQ(of_watching.peers, 2);
  const std::lock_guard other_lock(of_careless.mutex);
  EXPECT_EQ(of_careless.peers, 1);
  EXPECT_TRUE(of_careless.errors.empty());
}

// Calls of the same addresses at the same time are one connection.
TEST(Engine, CallsOfOnePeerShareAConnection) {
  EngineOptions options;
  options.name = "owner";
  options.listen = {"tcp:127.0.0.1:0"};
  const auto owner = *TransferEngine::open(options);
  options.name = "caller";
  const auto caller = *TransferEngine::open(options);
  std::mutex mutex;
  std::condition_variable came;
  std::vector<PeerId> peers;
  for (int i = 0; i < 20; ++i) {
    caller->connect_async({"owner", 0, owner->addresses()}, in(60'000), [&](Result<PeerId> peer) {
      const std::lock_guard lock(mutex);
      peers.push_back(peer ? *peer : PeerId{});
      came.notify_all();
    });
  }
  std::unique_lock lock(mutex);
  came.wait(lock, [&] { return peers.size() == 20; });
  EXPECT_NE(peers.front(), PeerId{});
  EXPECT_EQ(peers, std::vector<PeerId>(20, peers.front()));
}

// A call that ends at its deadline does not end those that wait for the same connection.
TEST(Engine, ACallThatIsLateLeavesOthersOfTheSamePeer) {
  RawListener listener;
  EngineOptions options;
  options.name = "caller";
  const auto caller = *TransferEngine::open(options);
  std::mutex mutex;
  std::condition_variable came;
  std::optional<Result<PeerId>> late, other;
  const auto keep = [&](std::optional<Result<PeerId>>& result) {
    return [&](Result<PeerId> peer) {
      const std::lock_guard lock(mutex);
      result.emplace(std::move(peer));
      came.notify_all();
    };
  };
  caller->connect_async({"owner", 0, {listener.address()}}, in(50), keep(late));
  caller->connect_async({"owner", 0, {listener.address()}}, in(60'000), keep(other));
  std::unique_lock lock(mutex);
  came.wait(lock, [&] { return late.has_value(); });
  EXPECT_EQ(late->error().code, Code::kTimeout);
  EXPECT_FALSE(other.has_value());
  lock.unlock();
  auto first = listener.accept(), second = listener.accept();
  ASSERT_TRUE(first && second);
  second->send(hello_of("owner", 7, {}));
  second->send(reads_of());
  lock.lock();
  came.wait(lock, [&] { return other.has_value(); });
  EXPECT_TRUE(other->ok());
}

TEST(Engine, APeerThatIsNotThereIsAnError) {
  EngineOptions options;
  options.name = "a";
  const auto a = *TransferEngine::open(options);
  EXPECT_FALSE(a->connect({"b", 0, {"tcp:127.0.0.1:1"}}, in(5000)).ok());
  EXPECT_FALSE(a->connect({"b", 0, {"unix:@cachalot-nothing"}}, in(5000)).ok());
  EXPECT_FALSE(a->connect({"b", 0, {}}, in(5000)).ok());
  EXPECT_FALSE(a->connect({"b", 0, {"http://x"}}, in(5000)).ok());
}

}  // namespace
}  // namespace cachalot::transfer
