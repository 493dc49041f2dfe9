#include "storage/server_space.h"

#include <gtest/gtest.h>

namespace cachalot::storage {
namespace {

constexpr std::uint64_t kMb = 1'000'000, kSecond = 1'000'000'000;

// Of 100 MB; objects of 16 KiB, which take 20 KiB there.
struct Server {
  ServerSpace space = {};
  std::uint64_t known = 0;  // bytes of bodies

  void holds(std::uint64_t objects, std::uint64_t used) {
    known = objects * 16384;
    space.take({100 * kMb, used}, known, objects, kSecond);
  }
  // By how much the known bytes may grow with a put.
  std::int64_t growth(std::uint64_t bytes) const {
    return static_cast<std::int64_t>(space.limit(known, bytes) - known);
  }
};

TEST(ServerSpaceTest, AServerThatEvictsNothingHasNoLimit) {
  ServerSpace space;
  EXPECT_TRUE(space.is_due(1, 2 * kSecond));
  space.take({}, 0, 0, kSecond);
  EXPECT_EQ(space.limit(5 * kMb, kMb), ~std::uint64_t{0});
}

TEST(ServerSpaceTest, ItGrowsToNineTenths) {
  Server server;
  server.holds(0, 0);
  EXPECT_NEAR(static_cast<double>(server.growth(kMb)), 72e6, 1e6);
  server.holds(2000, 41 * kMb);
  EXPECT_GT(server.growth(kMb), 35e6);
  server.space.add(38 * kMb);
  EXPECT_LE(server.growth(kMb), 1e6);
}

TEST(ServerSpaceTest, FullOfWhatIsKnownEachPutTakesThePlaceOfOthers) {
  Server server;
  server.holds(4350, 90 * kMb);
  EXPECT_NEAR(static_cast<double>(server.growth(kMb)), 0, 0.1e6);
  // And a little more if it is fuller.
  server.holds(4600, 95 * kMb);
  EXPECT_NEAR(static_cast<double>(server.growth(kMb)), -1e6, 0.1e6);
}

TEST(ServerSpaceTest, FullOfWhatIsNotKnownItRemovesItsShareOnly) {
  Server server;
  server.holds(2175, 90 * kMb);
  EXPECT_NEAR(static_cast<double>(server.growth(kMb)), 0.5e6, 0.1e6);
  server.holds(0, 95 * kMb);
  EXPECT_GE(server.growth(kMb), static_cast<std::int64_t>(kMb));
}

TEST(ServerSpaceTest, ItIsAskedAgainAfterASecondOrSomeBytes) {
  Server server;
  server.holds(2000, 41 * kMb);
  EXPECT_FALSE(server.space.is_due(100, kSecond + 1));
  EXPECT_TRUE(server.space.is_due(100, 2 * kSecond));
  EXPECT_TRUE(server.space.is_due(kMb, kSecond + 1));
}

}  // namespace
}  // namespace cachalot::storage
