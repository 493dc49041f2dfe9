// For tests of silence, death and waking up: a pool whose clients have processes, and an oracle that
// says which of them have exited.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "testing/pool/test_pool.h"

namespace cachalot::pool {

inline constexpr std::uint64_t kSuspectAfterNs = 100'000;

inline ProcessIdentity process(std::uint32_t pid) {
  return {0, pid, 1, 0, 1000 + pid, 5, 6};
}

inline ClientOptions as_process(std::uint32_t pid) {
  ClientOptions options;
  options.pid = pid;
  options.pid_namespace = 1;
  options.start_time = 1000 + pid;
  options.boot_id_low = 5;
  options.boot_id_high = 6;
  options.grant_target = 8;
  return options;
}

// An oracle: exactly the processes it was told of have exited.
class ToldEvidence final : public Evidence {
 public:
  bool has_exited(const ProcessIdentity& who) override {
    for (const ProcessIdentity& one : gone) {
      if (one == who) return true;
    }
    return false;
  }
  std::vector<ProcessIdentity> gone;
};

class FaultTest : public ::testing::Test {
 public:
  // The keeper's time passes; no client acts.
  void let_time_pass() {
    for (int i = 0; i < 300; ++i) pool_.keeper().tend();
  }

 protected:
  void SetUp() override {
    pool_.evidence = &evidence_;
    start();
  }
  void start() {
    KeeperOptions options;
    options.suspect_after_ns = kSuspectAfterNs;
    options.max_grants = 16;
    pool_.start_keeper(options);
  }
  void expect_counts(std::uint64_t granted, std::uint64_t quarantined) {
    const KeeperCounters& counters = pool_.keeper().counters();
    EXPECT_EQ(counters[KeeperCounter::kGranted], granted);
    EXPECT_EQ(counters[KeeperCounter::kQuarantined], quarantined);
    std::uint64_t sum = 0;
    for (const KeeperCounter state :
         {KeeperCounter::kFree, KeeperCounter::kGranted, KeeperCounter::kLive,
          KeeperCounter::kLimbo, KeeperCounter::kQuarantined, KeeperCounter::kBad}) {
      sum += counters[state];
    }
    EXPECT_EQ(sum, pool_.access().geometry.blocks);
    EXPECT_TRUE(pool_.keeper().is_valid());
  }
  std::uint64_t count(KeeperCounter counter) { return pool_.keeper().counters()[counter]; }
  std::uint32_t held(std::uint32_t slot) {
    return pool_.line_at<ViewLine>(pool_.access().layout.view_line(keeper_slot(), slot)).flags &
           kViewHeld;
  }
  std::uint32_t keeper_slot() { return DirectoryReader(pool_.access()).read_keepers().keeper; }

  ToldEvidence evidence_;
  TestPool pool_;
};

}  // namespace cachalot::pool
