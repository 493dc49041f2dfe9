// The unbroken protocol for a long time: whatever is reported here is a hole, or a false alarm.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "pool_world.h"

namespace cachalot::model {
namespace {

using memory::Mood;

// A million operations, in worlds that differ in mood, devices, room and haste. About 40 s.
// A quarter of a million operations on every change, and as many as CACHALOT_SOAK_OPERATIONS says in `make soak`.
TEST(PoolModelSoak, SurvivesManyOperationsWithoutAFalseAlarm) {
  const char* const wanted = std::getenv("CACHALOT_SOAK_OPERATIONS");
  const std::uint64_t most = wanted == nullptr ? 250'000 : std::strtoull(wanted, nullptr, 10);
  std::uint64_t operations = 0, stale_reads = 0;
  for (std::uint64_t seed = 1000; operations < most; ++seed) {
    WorldOptions options;
    options.seed = seed;
    options.mood = static_cast<Mood>(seed % 3);
    options.devices = static_cast<std::uint32_t>(1 + seed % 2);
    options.checksums = seed % 4 < 2;
    options.operations = 5000;
    options.capacity = static_cast<std::uint32_t>(3 + seed % 7);
    options.slack = static_cast<std::uint32_t>(3 + seed % 3);
    options.chains = static_cast<std::uint32_t>(3 + seed % 4);
    options.pause = seed % 5 == 0 ? 2000 : 20;
    options.block_bytes = seed % 8 == 0 ? 2048 : 640;
    const WorldResult result = run_world(options);
    ASSERT_EQ(result.fault, "") << "seed " << seed;
    operations += result.operations();
    stale_reads += result.stale_reads;
  }
  std::printf("%llu operations, %llu stale reads discarded\n",
              static_cast<unsigned long long>(operations),
              static_cast<unsigned long long>(stale_reads));
}

}  // namespace
}  // namespace cachalot::model
