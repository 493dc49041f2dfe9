#include "pool/flights.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "os/child.h"
#include "pool/format/format.h"
#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

class FlightsTest : public ::testing::Test {
 protected:
  FlightsTest() : pool_(create()), mine_(open()), other_(open()) {}
  ~FlightsTest() override { (void)pool_.remove(); }

  static Pool create() {
    static int count = 0;
    Geometry geometry = small_geometry();
    const std::string path = "/dev/shm/cachalot_flights_test." + std::to_string(getpid()) + "." +
                             std::to_string(count++);
    Result<Pool> pool = Pool::create(
        {.paths = {path}, .geometry = geometry, .huge_pages = false, .populate = false});
    EXPECT_TRUE(pool) << (pool ? "" : pool.error().message);
    return *std::move(pool);
  }
  Flights open() {
    Result<Flights> flights = Flights::open(pool_);
    EXPECT_TRUE(flights) << (flights ? "" : flights.error().message);
    return *std::move(flights);
  }
  bool is_claimed(const BlockHash& hash) { return open().claim({&hash, 1}) == 0; }
  static std::vector<BlockHash> chain(std::uint64_t from, std::uint64_t to) {
    std::vector<BlockHash> hashes;
    for (std::uint64_t i = from; i < to; ++i) hashes.push_back(hash_of(i));
    return hashes;
  }

  Pool pool_;
  Flights mine_, other_;
};

TEST_F(FlightsTest, ClaimsUpToTheFirstBlockThatSomebodyElseComputes) {
  EXPECT_EQ(other_.claim(chain(3, 5)), 2u);
  EXPECT_EQ(mine_.claim(chain(0, 8)), 3u);
  EXPECT_TRUE(is_claimed(hash_of(2)));
  EXPECT_TRUE(is_claimed(hash_of(4)));
  EXPECT_FALSE(is_claimed(hash_of(5)));
  EXPECT_EQ(mine_.claim(chain(3, 8)), 0u);
}

TEST_F(FlightsTest, ReleasesTheOldestClaimFirst) {
  ASSERT_EQ(mine_.claim(chain(0, 3)), 3u);
  mine_.release();
  EXPECT_EQ(mine_.claims(), 2u);
  EXPECT_FALSE(is_claimed(hash_of(0)));
  EXPECT_TRUE(is_claimed(hash_of(1)));
  mine_.release_all();
  EXPECT_EQ(other_.claim(chain(0, 3)), 3u);
  mine_.release();  // nothing is left to release
  EXPECT_EQ(mine_.claims(), 0u);
}

TEST_F(FlightsTest, ABlockClaimedTwiceIsHeldUntilBothAreReleased) {
  const std::vector<BlockHash> twice = {hash_of(7), hash_of(7)};
  ASSERT_EQ(mine_.claim(twice), 2u);
  mine_.release();
  EXPECT_TRUE(is_claimed(hash_of(7)));
  mine_.release();
  EXPECT_FALSE(is_claimed(hash_of(7)));
}

TEST_F(FlightsTest, HoldsNoMoreThanItsMost) {
  EXPECT_EQ(mine_.claim(chain(0, Flights::kMostClaims + 10)), Flights::kMostClaims);
  EXPECT_EQ(mine_.claim(chain(Flights::kMostClaims, Flights::kMostClaims + 10)), 0u);
  mine_.release(4);
  EXPECT_EQ(mine_.claim(chain(Flights::kMostClaims, Flights::kMostClaims + 10)), 4u);
}

TEST_F(FlightsTest, EndsWithTheProcessThatIsKilled) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  auto child = os::Child::start([&] {
    Result<Flights> flights = Flights::open(pool_);
    const char ok = flights && flights->claim(chain(0, 2)) == 2 ? 'y' : 'n';
    (void)!write(ready[1], &ok, 1);
    pause();
    return 0;
  });
  ASSERT_TRUE(child);
  char ok = 0;
  ASSERT_EQ(read(ready[0], &ok, 1), 1);
  ASSERT_EQ(ok, 'y');
  EXPECT_TRUE(is_claimed(hash_of(0)));
  EXPECT_EQ(mine_.claim(chain(0, 2)), 0u);
  ASSERT_EQ(kill(child->pid(), SIGKILL), 0);
  (void)child->wait();
  EXPECT_FALSE(is_claimed(hash_of(0)));
  EXPECT_EQ(mine_.claim(chain(0, 2)), 2u);
  close(ready[0]);
  close(ready[1]);
}

}  // namespace
}  // namespace cachalot::pool
