// Connections of strangers: however many there are, few stay, and peers that belong here get in.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "testing/transfer/raw_peer.h"
#include "transfer/engine/engine.h"

namespace cachalot::transfer {
namespace {

constexpr std::size_t kMostOfHost = 64, kMostStrangers = 256;  // as admission.cpp has them

std::uint64_t in(std::uint64_t milliseconds) {
  return base::SteadyClock::read() + milliseconds * 1'000'000;
}

// Trusts the peers that send a message.
struct Host : EngineEvents {
  Host() {
    EngineOptions options;
    options.name = "host";
    options.listen = {"tcp:127.0.0.1:0"};
    options.peer_timeout_ns = 60'000'000'000;
    engine = *TransferEngine::open(options, this);
  }
  ~Host() override { engine->close(); }
  void on_message(PeerId peer, std::span<const std::byte>) override {
    engine->trust(peer);
    ++messages;
  }
  RawPeer connect() const { return RawPeer::connect(engine->addresses().front()); }
  // @return whether it has been let in
  static bool greet(RawPeer& peer) {
    peer.send(hello_of("peer", 1, {}));
    peer.send(reads_of());
    return peer.receive(FrameType::kReads).has_value();
  }
  static bool answers(RawPeer& peer) {
    return peer.send({FrameType::kPing, {}}) && peer.receive(FrameType::kPong);
  }

  std::atomic<int> messages = 0;
  std::unique_ptr<TransferEngine> engine;
};

std::size_t open_ones(std::vector<RawPeer>& peers) {
  return static_cast<std::size_t>(
      std::ranges::count_if(peers, [](RawPeer& peer) { return !peer.is_closed(0); }));
}

TEST(Flood, OfSilentConnectionsLeavesAFew) {
  Host host;
  RawPeer said_hello = host.connect(), trusted = host.connect();
  ASSERT_TRUE(Host::greet(said_hello));
  ASSERT_TRUE(Host::greet(trusted));
  trusted.send({FrameType::kMessage, BodyWriter().bytes({}).take()});
  ASSERT_TRUE(Host::answers(trusted));
  std::vector<RawPeer> silent;
  for (int i = 0; i < 400; ++i) silent.push_back(host.connect());
  // One more is let in: those before it have been accepted.
  RawPeer last = host.connect();
  EXPECT_TRUE(Host::greet(last));
  const std::size_t left = open_ones(silent);
  EXPECT_LE(left, kMostOfHost);
  EXPECT_GE(left, kMostOfHost / 2);
  EXPECT_TRUE(Host::answers(said_hello));
  EXPECT_TRUE(Host::answers(trusted));
}

TEST(Flood, OfHellosEndsTheOldestAndNoTrustedOne) {
  Host host;
  RawPeer trusted = host.connect();
  ASSERT_TRUE(Host::greet(trusted));
  trusted.send({FrameType::kMessage, BodyWriter().bytes({}).take()});
  ASSERT_TRUE(Host::answers(trusted));
  std::vector<RawPeer> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(host.connect());
    ASSERT_TRUE(Host::greet(strangers.back())) << i;
  }
  EXPECT_LE(open_ones(strangers), kMostOfHost);
  EXPECT_TRUE(Host::answers(strangers.back()));
  EXPECT_TRUE(strangers.front().is_closed());
  EXPECT_TRUE(Host::answers(trusted));
}

// None of the hosts has more than it may; the oldest connections of one that has most of them make room.
TEST(Flood, FromManyHostsLeavesAFewInAll) {
  Host host;
  RawPeer trusted = host.connect();
  ASSERT_TRUE(Host::greet(trusted));
  trusted.send({FrameType::kMessage, BodyWriter().bytes({}).take()});
  ASSERT_TRUE(Host::answers(trusted));
  std::vector<RawPeer> strangers;
  for (int i = 0; i < 480; ++i)
    strangers.push_back(RawPeer::connect_from(2 + i % 8, host.engine->addresses().front()));
  // One more host is let in: those before it have been accepted.
  RawPeer last = RawPeer::connect_from(10, host.engine->addresses().front());
  EXPECT_TRUE(Host::greet(last));
  const std::size_t left = open_ones(strangers);
  EXPECT_LE(left, kMostStrangers);
  EXPECT_GE(left, kMostStrangers - 8);
  EXPECT_TRUE(Host::answers(trusted));
}

// The engine that calls is refused now and then, and calls again.
TEST(Flood, DoesNotKeepAnotherEngineOut) {
  Host host;
  std::atomic<bool> ends = false;
  std::atomic<int> connections = 0;
  std::thread flood([&] {
    std::vector<RawPeer> peers;
    while (!ends) {
      if (peers.size() == 500) peers.clear();
      peers.push_back(host.connect());
      if (connections++ % 2 == 0) peers.back().send(hello_of("peer", 1, {}));
    }
  });
  while (connections < 500) std::this_thread::yield();
  for (int i = 0; i < 20; ++i) {
    EngineOptions options;
    options.name = "caller";
    const auto caller = *TransferEngine::open(options);
    const Result<PeerId> peer = caller->connect({"host", 0, host.engine->addresses()}, in(30'000));
    ASSERT_TRUE(peer.ok()) << peer.error().message;
  }
  ends = true;
  flood.join();
}

TEST(Flood, OfLargeHellosIsRefusedAtTheHeader) {
  Host host;
  RawPeer peer = host.connect();
  Frame large = hello_of("peer", 1, {});
  large.body.resize((512u << 10) + 8);
  peer.send(large);
  EXPECT_TRUE(peer.is_closed());
}

std::uint64_t cpu_ns() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(time.tv_nsec);
}

// Without a descriptor for a connection the engine waits, and does not try all the time.
TEST(Flood, WithoutDescriptorsNothingSpins) {
  Host host;
  os::FileDescriptor first(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const os::FileDescriptor next(dup(first.get()));
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(next.get()) + 1;  // lower numbers are all taken
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  RawPeer peer = RawPeer::connect(host.engine->addresses().front(), std::move(first));
  peer.send(hello_of("peer", 1, {}));
  const std::uint64_t begin_ns = cpu_ns();
  EXPECT_FALSE(peer.receive(500));
  const std::uint64_t spent_ns = cpu_ns() - begin_ns;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_LT(spent_ns, 50'000'000u) << "of 500 ms";
  EXPECT_TRUE(peer.receive(FrameType::kHello)) << "the connection that waited is lost";
}

}  // namespace
}  // namespace cachalot::transfer
