// A keeper on host 0, clients on host 1, and the agent of host 1 that tells of their ends.

#include "pool/hosts/host_agent.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "pool/format/departures.h"
#include "pool/keeper/keeper_line.h"
#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

constexpr os::Uuid kKeeperBoot{1, 1}, kBoot{2, 2}, kNextBoot{3, 3};
constexpr os::Uuid kMachine{20, 20}, kOtherMachine{30, 30};

// Knows which pids of its boot have ended.
struct EndedPids final : Evidence {
  bool has_exited(const ProcessIdentity& process) override { return pids.contains(process.pid); }
  std::set<std::uint32_t> pids;
};

Geometry two_hosts() {
  Geometry g = small_geometry();
  g.hosts = 2;
  g.clients = 6;
  return g;
}

class HostAgentTest : public testing::Test {
 protected:
  static constexpr std::uint32_t kSlot = 3;  // the first one of host 1

  void SetUp() override { start_keeper(0, kKeeperBoot); }

  void start_keeper(std::uint32_t host, const os::Uuid& boot) {
    KeeperOptions options;
    options.pid = 100;
    options.host = host;
    options.boot_id_low = boot.low;
    options.boot_id_high = boot.high;
    // The other host's areas, as KeeperAreas says.
    options.avoid_slots = host == 0 ? 0b1100 : 0b0011;
    pool_.start_keeper(options);
  }
  // A client on host 1 that holds blocks, and answers no more.
  void hold_blocks(std::uint32_t pid, const os::Uuid& boot) {
    ClientOptions options = in_namespace("hosts");
    options.host = 1;
    options.pid = pid;
    options.start_time = 7;
    options.boot_id_low = boot.low;
    options.boot_id_high = boot.high;
    client_ = pool_.attach(kSlot, options);
    ASSERT_NE(client_, nullptr);
    ASSERT_NE(pool_.put(*client_, 1, 2).size(), 0u);
    ASSERT_GT(count(KeeperCounter::kGranted), 0u);
  }
  void fall_silent() {
    pool_.clock().pass(KeeperOptions{}.suspect_after_ns + 1);
    pool_.keeper().tend();
    pool_.keeper().tend();
  }
  std::uint64_t count(KeeperCounter counter) { return pool_.keeper().counters()[counter]; }

  HostAgent agent(const os::Uuid& boot, const os::Uuid& machine = kMachine, bool replaces = false) {
    return HostAgent(pool_.access(), {.host = 1, .replaces_machine = replaces},
                     {boot, machine, &ended_}, pool_.clock());
  }
  // Claims as often as it takes. @return the error's text; empty: it has the number
  std::string claim(HostAgent& agent) {
    for (int i = 0; i < 3; ++i) {
      const Result<bool> claimed = agent.claim();
      if (!claimed) return claimed.error().message;
      if (*claimed) return "";
      pool_.clock().pass(HostAgent::kWatchNs);
    }
    return "still watching";
  }

  TestPool pool_{two_hosts()};
  EndedPids ended_;
  std::unique_ptr<Client> client_;
};

TEST_F(HostAgentTest, TellsTheKeeperOnAnotherMachineThatAProcessHasEnded) {
  HostAgent agent = this->agent(kBoot);
  ASSERT_EQ(claim(agent), "");
  hold_blocks(200, kBoot);
  agent.look();
  pool_.keeper().tend();
  EXPECT_GT(count(KeeperCounter::kGranted), 0u);  // it lives
  ended_.pids.insert(200);
  agent.look();
  pool_.keeper().tend();
  EXPECT_EQ(count(KeeperCounter::kGranted), 0u);
  EXPECT_EQ(count(KeeperCounter::kQuarantined), 0u);
}

TEST_F(HostAgentTest, SilenceOfAHostFreesNothing) {
  hold_blocks(200, kBoot);
  ended_.pids.insert(200);  // what no agent says
  fall_silent();
  EXPECT_GT(count(KeeperCounter::kQuarantined), 0u);
  pool_.clock().pass(std::uint64_t{3600} * 1'000'000'000);
  pool_.keeper().tend();
  EXPECT_GT(count(KeeperCounter::kQuarantined), 0u);
  // It was only late.
  HostAgent agent = this->agent(kBoot);
  ASSERT_EQ(claim(agent), "");
  pool_.keeper().tend();
  EXPECT_EQ(count(KeeperCounter::kQuarantined), 0u);
}

TEST_F(HostAgentTest, AfterABootOfTheMachineItsEarlierProcessesAreGone) {
  {
    HostAgent before = this->agent(kBoot);
    ASSERT_EQ(claim(before), "");
  }
  hold_blocks(200, kBoot);
  fall_silent();
  ASSERT_GT(count(KeeperCounter::kQuarantined), 0u);
  HostAgent after = this->agent(kNextBoot);
  ASSERT_EQ(claim(after), "");
  pool_.keeper().tend();
  EXPECT_EQ(count(KeeperCounter::kQuarantined), 0u);
}

TEST_F(HostAgentTest, AnotherMachineDoesNotGetTheNumberUnlessAnOperatorSaysSo) {
  HostAgent first = this->agent(kBoot);
  ASSERT_EQ(claim(first), "");
  hold_blocks(200, kBoot);
  fall_silent();
  HostAgent other = this->agent(kNextBoot, kOtherMachine);
  EXPECT_NE(claim(other).find("is another machine's"), std::string::npos);
  pool_.keeper().tend();
  EXPECT_GT(count(KeeperCounter::kQuarantined), 0u);
  HostAgent nameless = this->agent(kNextBoot, {});
  EXPECT_NE(claim(nameless).find("is another machine's"), std::string::npos);
  HostAgent replacing = this->agent(kNextBoot, kOtherMachine, true);
  ASSERT_EQ(claim(replacing), "");
  pool_.keeper().tend();
  EXPECT_EQ(count(KeeperCounter::kQuarantined), 0u);
}

// Copies of a virtual machine have one name: what beats is no machine of before.
TEST_F(HostAgentTest, AMachineOfTheSameNameThatBeatsKeepsItsNumber) {
  HostAgent first = this->agent(kBoot);
  ASSERT_EQ(claim(first), "");
  HostAgent copy = this->agent(kNextBoot);
  const Result<bool> watches = copy.claim();
  ASSERT_TRUE(watches);
  EXPECT_FALSE(*watches);
  first.look();
  EXPECT_NE(claim(copy).find("is alive"), std::string::npos);
}

TEST_F(HostAgentTest, APidOfAnotherBootOrHostIsNoEvidence) {
  HostAgent agent = this->agent(kBoot);
  ASSERT_EQ(claim(agent), "");
  hold_blocks(200, kBoot);
  // The same pid, of a process of before that had the slot.
  DepartureLine line{};
  line.host = 1;
  line.pid = 200;
  line.start_time = 7;
  line.boot_id_low = kNextBoot.low;
  line.boot_id_high = kNextBoot.high;
  pool_.put_line(pool_.access().layout.departure(kSlot), line);
  pool_.keeper().tend();
  EXPECT_GT(count(KeeperCounter::kGranted), 0u);
  line.boot_id_low = kBoot.low;
  line.boot_id_high = kBoot.high;
  line.host = 0;
  pool_.put_line(pool_.access().layout.departure(kSlot), line);
  pool_.keeper().tend();
  EXPECT_GT(count(KeeperCounter::kGranted), 0u);
}

TEST_F(HostAgentTest, TellsUpToWhichEpochTheHostsKeepersHaveEnded) {
  const std::uint32_t first = pool_.keeper().epoch();
  pool_.kill_keeper();
  start_keeper(1, kBoot);
  const std::uint32_t second = pool_.keeper().epoch();
  EXPECT_GT(second, first);
  EXPECT_NE(second % 2, first % 2);
  std::uint32_t areas = 0;
  for (std::uint32_t area = 0; area < kKeeperSlots; ++area)
    if (read_keeper_line(pool_.access(), area).epoch != 0) areas |= 1u << area;
  EXPECT_EQ(areas, 0b0101u);  // an area of each host's

  HostAgent agent = this->agent(kBoot);
  ASSERT_EQ(claim(agent), "");
  const auto has_ended = [&](std::uint32_t epoch) {
    for (std::uint32_t area = 0; area < kKeeperSlots; ++area) {
      const KeeperLine line = read_keeper_line(pool_.access(), area);
      if (line.epoch == epoch) return is_departed(pool_.access(), line);
    }
    return false;
  };
  EXPECT_FALSE(has_ended(second));
  ended_.pids.insert(100);
  agent.look();
  EXPECT_TRUE(has_ended(second));
  EXPECT_FALSE(has_ended(first));  // of host 0, whose agent has said nothing
}

}  // namespace
}  // namespace cachalot::pool
