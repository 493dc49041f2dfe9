#include "index/eviction/shadow_guard.h"

#include <gtest/gtest.h>

namespace cachalot::index {
namespace {

// Requests of 20 blocks to a cache of 1,000. Of a hundred, LRU hits ten blocks in `lru` of them and
// density in `density`; the cache hits as what it follows does.
struct Load {
  ShadowGuard guard;
  std::uint64_t own_hits = 0, requests = 0;
  std::uint32_t departed = 100, missing = 100;

  void run(int count, int lru, int density) {
    for (int i = 0; i < count; ++i, ++requests) {
      const auto place = static_cast<int>(requests * 37 % 100);
      ShadowGuard::Request request{
          .blocks = 20,
          .hits = 0,
          .in_shadow = {place < lru ? 10u : 0u, place < density ? 10u : 0u},
          .missing = {missing, missing},
          .departed = {departed, departed}};
      request.hits = request.in_shadow[index(guard.followed())];
      own_hits += request.hits;
      guard.judge(request);
    }
  }
  void count_fates(Shadow s, int used, int dropped) {
    for (int i = 0; i < used; ++i) {
      guard.count_fate(s, true, 1000);
      if (i % 3 == 2) guard.judge({});  // each request used three
    }
    for (int i = 0; i < dropped; ++i) guard.count_fate(s, false, 1000);
  }
  double behind() const {
    return static_cast<double>(guard.hits(Shadow::kLru)) - static_cast<double>(own_hits);
  }
};

TEST(ShadowGuard, BeginsWithLruAndStaysWhileDensityIsNoBetter) {
  Load load;
  load.count_fates(Shadow::kLru, 0, 900);
  load.count_fates(Shadow::kDensity, 0, 900);
  load.run(50000, 30, 30);
  EXPECT_EQ(load.guard.followed(), Shadow::kLru);
  load.run(50000, 30, 25);
  EXPECT_EQ(load.guard.followed(), Shadow::kLru);
}

TEST(ShadowGuard, GoesOverWhenDensityIsSurelyBetterAndTheWayIsCheap) {
  Load load;
  load.count_fates(Shadow::kLru, 0, 900);
  load.count_fates(Shadow::kDensity, 0, 900);
  load.run(20000, 30, 35);
  EXPECT_EQ(load.guard.followed(), Shadow::kDensity);
  EXPECT_LT(load.behind(), 0);
}

TEST(ShadowGuard, AHandfulOfRequestsProvesNothing) {
  Load load;
  load.count_fates(Shadow::kLru, 0, 900);
  load.count_fates(Shadow::kDensity, 0, 900);
  load.run(2047, 30, 60);
  EXPECT_EQ(load.guard.followed(), Shadow::kLru);
  load.run(1, 30, 60);
  EXPECT_EQ(load.guard.followed(), Shadow::kDensity);
}

TEST(ShadowGuard, StaysWhereTheWayBackIsDearerThanTheSlack) {
  Load load;
  load.departed = 20;
  load.count_fates(Shadow::kLru, 450, 450);
  load.run(20000, 30, 35);
  EXPECT_EQ(load.guard.followed(), Shadow::kDensity);  // 10 hits of 400,000 references
  Load dear;
  dear.departed = 1000;
  dear.count_fates(Shadow::kLru, 450, 450);
  dear.run(20000, 30, 35);
  EXPECT_EQ(dear.guard.followed(), Shadow::kLru);  // 500 hits
  Load unknown;
  unknown.departed = 1000;
  unknown.run(20000, 30, 35);
  EXPECT_EQ(unknown.guard.followed(), Shadow::kLru);
}

TEST(ShadowGuard, HoweverOftenDensityTurnsBadItLosesTheSlackAndOneRequestAtMost) {
  Load load;
  load.count_fates(Shadow::kLru, 0, 900);
  load.count_fates(Shadow::kDensity, 0, 900);
  for (int trip = 0; trip < 4; ++trip) {
    while (load.guard.followed() == Shadow::kLru) load.run(1, 30, 35);
    while (load.guard.followed() == Shadow::kDensity) load.run(1, 35, 30);
    EXPECT_LE(load.behind(), static_cast<double>(load.requests) * 20 / 4096 + 10) << trip;
  }
}

}  // namespace
}  // namespace cachalot::index
