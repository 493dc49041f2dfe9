#include "eviction/shadow_guard.h"

#include <gtest/gtest.h>

namespace cachalot::eviction {
namespace {

// Requests of 20 blocks to a cache of 1,000. Of a hundred, LRU hits ten blocks in `lru` of them and
// density in `density`; the cache hits as what it follows does.
struct Load {
  ShadowGuard guard;
  std::uint64_t own_hits = 0, requests = 0;
  std::uint32_t departed = 100, missing = 100;

  void run(int count, int lru, int density) {
    for (int i = 0; i < count; ++i) {
      const auto place = static_cast<int>(requests * 37 % 100);
      request(place < lru ? 10 : 0, place < density ? 10 : 0);
    }
  }
  void request(std::uint32_t lru, std::uint32_t density, std::uint32_t missed_by_the_cache = 0) {
    ShadowGuard::Request request{.blocks = 20,
                                 .hits = 0,
                                 .in_shadow = {lru, density},
                                 .missing = {missing, missing},
                                 .departed = {departed, departed}};
    request.hits = request.in_shadow[index(guard.followed())] - missed_by_the_cache;
    own_hits += request.hits;
    ++requests;
    guard.judge(request);
  }
  // How many requests, in each of which `better` hits ten blocks more, until the cache follows it.
  int wins_until(Shadow better) {
    int wins = 0;
    for (; guard.followed() != better && wins < 1000; ++wins) {
      request(better == Shadow::kLru ? 10 : 0, better == Shadow::kLru ? 0 : 10);
    }
    return wins;
  }
  // Both alike for so long, and nothing that comes back: then only the lead decides.
  static Load after(int neutral_requests) {
    Load load;
    load.count_fates(Shadow::kLru, 0, 900);
    load.count_fates(Shadow::kDensity, 0, 900);
    load.run(neutral_requests, 30, 30);
    return load;
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

// (10 wins)^2 > 9 * 100 wins.
TEST(ShadowGuard, ALeadCountsFromThreeStandardDeviationsOn) {
  Load load = Load::after(10000);
  EXPECT_EQ(load.wins_until(Shadow::kDensity), 10);
  // Two wins and a defeat at a time: after 25 times (10 * 24 + 20)^2 > 9 * 100 * (3 * 24 + 2).
  Load unsteady = Load::after(10000);
  const auto turns = [&](int count) {
    for (int i = 0; i < count; ++i) {
      unsteady.request(0, 10);
      unsteady.request(0, 10);
      unsteady.request(10, 0);
    }
  };
  turns(24);
  EXPECT_EQ(unsteady.guard.followed(), Shadow::kLru);
  turns(1);
  EXPECT_EQ(unsteady.guard.followed(), Shadow::kDensity);
}

TEST(ShadowGuard, ALeadCountsFromItsLastZeroOn) {
  Load load = Load::after(10000);
  load.run(5000, 35, 30);
  EXPECT_EQ(load.wins_until(Shadow::kDensity), 10);
}

TEST(ShadowGuard, TheLeadMustBeWorthTheWayThereAndBack) {
  Load there = Load::after(10000);
  there.count_fates(Shadow::kDensity, 100, 0);
  there.missing = 5000;
  EXPECT_EQ(there.wins_until(Shadow::kDensity), 51);  // 5000 * 101 / 1001 hits
  Load back = Load::after(100000);
  back.count_fates(Shadow::kLru, 90, 0);
  back.departed = 2000;
  EXPECT_EQ(back.wins_until(Shadow::kDensity), 19);  // 2000 * 91 / 991 hits
}

// 20 blocks of each request / 4096.
TEST(ShadowGuard, TheSlackMustBeTwiceTheWayBack) {
  Load load = Load::after(2400);
  load.departed = 5406;  // 2 * 5406 / 901 * 4096 / 20
  EXPECT_EQ(load.wins_until(Shadow::kDensity), 2458 - 2400);
}

TEST(ShadowGuard, TheSlackMustBeTwiceTheSpreadOfTheWayBackToo) {
  Load load;
  load.departed = 300;
  load.count_fates(Shadow::kLru, 30, 870);  // in ten requests, three each
  load.count_fates(Shadow::kDensity, 0, 900);
  load.run(6450, 30, 30);
  // 2 * (300 * 31 / 901 + sqrt(300 * 10 * 9 / 901)) * 4096 / 20 = 6470.05
  EXPECT_EQ(load.wins_until(Shadow::kDensity), 6471 - 6450);
}

TEST(ShadowGuard, TheSlackMustCoverABadRequestBesides) {
  Load load = Load::after(2000);
  load.request(10, 0);
  load.run(2060 - 2001, 30, 30);
  EXPECT_EQ(load.wins_until(Shadow::kDensity), 2094 - 2060);  // (10 + 2 * 100 / 901) * 4096 / 20
}

TEST(ShadowGuard, WhatWasLostIsTakenFromTheSlack) {
  Load load = Load::after(2000);
  for (int i = 0; i < 10; ++i) load.request(10, 10, 1);
  load.run(2060 - 2010, 30, 30);
  EXPECT_EQ(load.wins_until(Shadow::kDensity), 2094 - 2060);
}

TEST(ShadowGuard, OldFatesFade) {
  Load load;
  load.departed = 1000;
  load.count_fates(Shadow::kLru, 900, 0);
  load.count_fates(Shadow::kLru, 0, 9000);
  load.count_fates(Shadow::kDensity, 0, 900);
  load.run(2048, 30, 35);
  EXPECT_EQ(load.guard.followed(), Shadow::kDensity);
}

TEST(ShadowGuard, ComesBackWhenLruIsSurelyBetterByMoreThanTheWayHoweverMuchWasGained) {
  for (const bool is_dear : {false, true}) {
    Load load = Load::after(10000);
    load.run(20000, 30, 35);
    ASSERT_EQ(load.guard.followed(), Shadow::kDensity);
    if (is_dear) load.count_fates(Shadow::kLru, 100, 0);
    if (is_dear) load.missing = 5000;  // 5000 * 101 / 1001 hits
    EXPECT_EQ(load.wins_until(Shadow::kLru), is_dear ? 51 : 10);
    EXPECT_LT(load.behind(), -5000);
  }
}

TEST(ShadowGuard, ComesBackBeforeTheWayCostsMoreThanTheSlackAndThenAsksForTwiceTheEvidence) {
  Load load = Load::after(10000);
  EXPECT_EQ(load.wins_until(Shadow::kDensity), 10);
  load.run(1000, 30, 30);
  EXPECT_EQ(load.guard.followed(), Shadow::kDensity);
  load.missing = 901 * 200;  // 200 hits; 100 were gained, and the slack is 54
  load.request(10, 10);
  EXPECT_EQ(load.guard.followed(), Shadow::kLru);
  load.missing = 100;
  EXPECT_EQ(load.wins_until(Shadow::kDensity), 19);
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
}  // namespace cachalot::eviction
