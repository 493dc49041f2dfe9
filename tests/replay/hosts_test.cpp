// Replays of several hosts: pools, keepers and engines of their own, alone, with peers, and with storage that they share.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>

#include "os/child.h"
#include "replays.h"
#include "testing/storage/redis_servers.h"

namespace cachalot::replay {
namespace {

using memory::DomainKind;

ReplayOptions on_hosts(std::uint32_t hosts, std::uint64_t capacity_blocks) {
  ReplayOptions options = conversation(DomainKind::kNoncoherent, 1, capacity_blocks, 256);
  options.limit_requests = 2000;
  options.hosts.count = hosts;
  return options;
}

ReplayReport replayed(const ReplayOptions& options) {
  ProgressSink sink;
  const Result<ReplayReport> report = replay(options, sink);
  EXPECT_TRUE(report) << report.error().message;
  return report ? *report : ReplayReport();
}

// Whatever the hits are.
void expect_sums(const ReplayOptions& options, const ReplayReport& report) {
  EXPECT_TRUE(report.is_sound());
  EXPECT_EQ(report.verify_checked, report.blocks_hit);
  EXPECT_EQ(report.prompt_blocks, report.blocks_total);
  EXPECT_EQ(report.used_blocks, report.blocks_hit);
  EXPECT_EQ(report.used_peer_blocks, report.blocks_hit_peers);
  EXPECT_EQ(report.used_storage_blocks, report.blocks_hit_storage);
  ASSERT_EQ(report.hosts.size(), options.hosts.count);
  EXPECT_EQ(report.engines.size(), options.all_engines());
  ReplayReport::PerHost sum;
  for (const ReplayReport::PerHost& host : report.hosts) {
    sum.requests += host.requests;
    sum.blocks_total += host.blocks_total;
    sum.blocks_hit += host.blocks_hit;
    sum.blocks_hit_peers += host.blocks_hit_peers;
    sum.blocks_hit_storage += host.blocks_hit_storage;
    sum.verify_errors += host.verify_errors;
  }
  EXPECT_EQ(sum.requests, report.requests);
  EXPECT_EQ(sum.blocks_total, report.blocks_total);
  EXPECT_EQ(sum.blocks_hit, report.blocks_hit);
  EXPECT_EQ(sum.blocks_hit_peers, report.blocks_hit_peers);
  EXPECT_EQ(sum.blocks_hit_storage, report.blocks_hit_storage);
  EXPECT_EQ(sum.verify_errors, 0u);
}

// Of N pools of 1,000 blocks, 2,000 requests in turn: counted by a program of its own, a page of Python with a leaf LRU
// for each host. `one`: of one pool of the summed capacity.
struct Expected {
  std::uint32_t hosts;
  std::uint64_t alone, from_peers, one;
};

class Hosts : public testing::TestWithParam<Expected> {};

TEST_P(Hosts, InOrderHitWhatTheModelHits) {
  ReplayOptions options = on_hosts(GetParam().hosts, 1000);
  options.hosts.is_in_order = true;
  const ReplayReport alone = replayed(options);
  expect_sums(options, alone);
  EXPECT_EQ(alone.blocks_hit, GetParam().alone);
  EXPECT_EQ(alone.blocks_hit_remote, 0u);

  options.hosts.has_peers = true;
  options.hosts.keeps_copies = true;  // as the model; that copies go first is simulate_peers_test's
  const ReplayReport peers = replayed(options);
  expect_sums(options, peers);
  EXPECT_GT(peers.blocks_hit, alone.blocks_hit);
  EXPECT_LE(peers.blocks_hit, GetParam().one);
  // A machine that stands still makes peers miss.
  if (peers.peers.failed_requests == 0) {
    EXPECT_EQ(peers.blocks_hit_peers, GetParam().from_peers);
    EXPECT_EQ(peers.blocks_hit, GetParam().alone + GetParam().from_peers);
    EXPECT_EQ(peers.peers.read_blocks, peers.blocks_hit_peers);
    EXPECT_EQ(peers.peers.absent_blocks, 0u);
  }

  ReplayOptions one = options;
  one.hosts = {};
  one.capacity_blocks = 1000 * GetParam().hosts;
  EXPECT_EQ(replayed(one).blocks_hit, GetParam().one);
}

INSTANTIATE_TEST_SUITE_P(Numbers, Hosts,
                         testing::Values(Expected{2, 2234, 359, 2652},
                                         Expected{4, 2708, 2028, 5027}),
                         [](const auto& given) { return std::to_string(given.param.hosts); });

class FreeHosts : public testing::TestWithParam<DomainKind> {};

TEST_P(FreeHosts, ReadEachOthersBlocksUnderEvictionWithoutAWrongByte) {
  ReplayOptions options = on_hosts(3, 800);
  options.domain = memory::domain_name(GetParam());
  options.engines = 2;
  options.block_bytes = 4096;
  options.hosts.has_peers = true;
  options.hosts.policy = HostPolicy::kRandom;
  options.passes = 2;
  const ReplayReport report = replayed(options);
  expect_sums(options, report);
  EXPECT_GT(report.blocks_hit_peers, 0u);
  EXPECT_EQ(report.blocks_hit_storage, 0u);
  EXPECT_GT(report.evictions, 10000u);
  ASSERT_EQ(report.passes.size(), 2u);
  EXPECT_EQ(report.passes[0].blocks_hit_peers + report.passes[1].blocks_hit_peers,
            report.blocks_hit_peers);
}

INSTANTIATE_TEST_SUITE_P(Domains, FreeHosts,
                         testing::Values(DomainKind::kCoherent, DomainKind::kNoncoherent),
                         [](const auto& given) { return memory::domain_name(given.param); });

// All requests of the trace begin with the same block.
TEST(HostPolicies, ByPrefixOneHostTakesAllOfThem) {
  ReplayOptions options = on_hosts(2, 1000);
  options.hosts.policy = HostPolicy::kPrefix;
  options.hosts.has_peers = true;
  const ReplayReport report = replayed(options);
  expect_sums(options, report);
  EXPECT_EQ(report.hosts[0].requests * report.hosts[1].requests, 0u);
  EXPECT_EQ(report.blocks_hit_peers, 0u);
  ReplayOptions one = options;
  one.hosts = {};
  EXPECT_EQ(report.blocks_hit, replayed(one).blocks_hit);
}

// Whether this process may make a network namespace, and lay links there.
bool has_networks() {
  if (storage::find_program("ip").empty() || storage::find_program("tc").empty()) return false;
  Result<os::Child> child = os::Child::start([] { return unshare(CLONE_NEWNET) == 0 ? 0 : 1; });
  return child && child->wait() && child->wait()->ok();
}

// Their peers listen at addresses that only the hosts' own networks have.
TEST(HostsWithNetworks, HitWhatTheyHitWithout) {
  if (!has_networks()) GTEST_SKIP() << "needs root and iproute2";
  ReplayOptions options = on_hosts(3, 500);
  options.limit_requests = 500;
  options.hosts.is_in_order = true;
  options.hosts.has_peers = true;
  const ReplayReport without = replayed(options);
  options.hosts.has_networks = true;
  options.hosts.link_bytes_per_s = 100'000'000;
  const ReplayReport with = replayed(options);
  expect_sums(options, with);
  EXPECT_GT(with.blocks_hit_peers, 0u);
  if (without.peers.failed_requests + with.peers.failed_requests != 0) return;
  EXPECT_EQ(with.blocks_hit, without.blocks_hit);
  EXPECT_EQ(with.blocks_hit_peers, without.blocks_hit_peers);
}

class HostsWithRedis : public testing::Test {
 protected:
  void SetUp() override {
    if (storage::find_program("redis-server").empty()) GTEST_SKIP() << "no redis-server";
    folder_ = testing::TempDir() + "cachalot_replay_hosts." + std::to_string(getpid());
    std::filesystem::create_directory(folder_);
    Result<storage::TestServer> server = storage::start_redis(folder_);
    ASSERT_TRUE(server) << server.error().message;
    server_.emplace(*std::move(server));
    options_ = on_hosts(3, 500);
    options_.limit_requests = 500;
    options_.storage.uris = {"redis://127.0.0.1:" + std::to_string(server_->port())};
  }
  void TearDown() override {
    server_.reset();
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  std::string folder_;
  std::optional<storage::TestServer> server_;
  ReplayOptions options_;
};

// Storage keeps all of them: in the second pass each host finds what any has stored.
TEST_F(HostsWithRedis, HitWhatTheOthersStored) {
  options_.passes = 2;
  options_.hosts.is_in_order = true;
  const ReplayReport report = replayed(options_);
  expect_sums(options_, report);
  EXPECT_EQ(report.blocks_hit_peers, 0u);
  ASSERT_EQ(report.passes.size(), 2u);
  EXPECT_EQ(report.passes[1].blocks_hit, report.passes[1].blocks_total);
}

// What came from where is counted for each block: as many as the peers have sent.
TEST_F(HostsWithRedis, AndPeersCountEachBlockToItsSource) {
  options_.hosts.has_peers = true;
  options_.hosts.is_in_order = true;
  const ReplayReport report = replayed(options_);
  expect_sums(options_, report);
  EXPECT_GT(report.blocks_hit_peers, 0u);
  EXPECT_GT(report.blocks_hit_storage, 0u);
  EXPECT_EQ(report.blocks_hit_peers, report.peers.read_blocks);
  EXPECT_EQ(report.blocks_hit_peers + report.blocks_hit_storage, report.storage.fetched_blocks);
}

// --- What goes wrong -----------------------------------------------------------------------------

// Kills the second keeper.
class KeeperKiller : public ProgressSink {
 public:
  void on_progress(const Progress&) override {
    const std::string task = std::to_string(syscall(SYS_gettid));
    std::ifstream list("/proc/self/task/" + task + "/children");
    pid_t first = 0, second = 0;
    if (list >> first >> second) kill(second, SIGKILL);
  }
};

TEST(FailingHosts, NameTheKeeperAndLeaveNoRegistry) {
  const std::string folder =
      testing::TempDir() + "cachalot_replay_registry." + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  setenv("TMPDIR", folder.c_str(), 1);
  ReplayOptions options = on_hosts(2, 1000);
  options.hosts.has_peers = true;
  options.speed = 1;
  KeeperKiller killer;
  const Result<ReplayReport> report = replay(options, killer);
  unsetenv("TMPDIR");
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::kNoKeeper);
  EXPECT_NE(std::string(report.error().message).find("the keeper of host 1 (pid "),
            std::string::npos)
      << report.error().message;
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

TEST(FailingHosts, WithStorageOfOneHostSayWhatIsExpected) {
  const std::string folder = testing::TempDir() + "cachalot_replay_owned";
  ReplayOptions options = on_hosts(2, 1000);
  options.storage.uris = {"file:" + folder};
  ProgressSink sink;
  const Result<ReplayReport> report = replay(options, sink);
  std::filesystem::remove_all(folder);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::kInvalidArgument) << report.error().message;
  EXPECT_NE(std::string(report.error().message).find("file:" + folder + " is of one host"),
            std::string::npos)
      << report.error().message;
}

}  // namespace
}  // namespace cachalot::replay
