// Pools that another user may have put where this one looks for its own.
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

constexpr int kRefused = 3;

class ForeignPool : public ProcessTest {
 protected:
  static std::vector<Arguments> users(const std::string& pool) {
    return {{"serve", pool},
            {"serve", pool, "--standby"},
            {"serve", pool, "--create", "--block-bytes", "4096", "--capacity-blocks", "32",
             "--clients", "4"},
            {"stop", pool},
            {"pool", "fence", pool, "--client", "0"},
            {"put", "key", "--pool", pool, "--file", "/proc/self/comm"},
            {"get", "key", "--pool", pool},
            {"lookup", "key", "--pool", pool},
            {"evict", "key", "--pool", pool}};
  }
  static void expect_refused(const std::string& pool, const std::string& what) {
    for (const Arguments& command : users(pool)) {
      SCOPED_TRACE(command[0] + " " + command[1]);
      expect_error(run(command), kRefused, {pool, what, "--allow-foreign-pool"});
    }
  }
  static void expect_usable(const std::string& pool) {
    Serving keeper({"serve", pool, "--allow-foreign-pool"});
    ASSERT_TRUE(keeper.is_ready());
    expect_done(
        run({"put", "key", "--pool", pool, "--file", "/proc/self/comm", "--allow-foreign-pool"}));
    expect_done(run({"stop", pool, "--allow-foreign-pool"}));
    expect_done(keeper.wait());
  }
};

TEST_F(ForeignPool, OneThatAllUsersMayWriteToIsRefused) {
  const std::string pool = create_pool("kv");
  ASSERT_EQ(chmod(pool.c_str(), 0666), 0);
  expect_refused(pool, "mode 0666");
  expect_usable(pool);
}

TEST_F(ForeignPool, OneOfAnotherUserIsRefusedAndCanBeLookedAtAndRemoved) {
  const std::string pool = create_pool("kv");
  if (chown(pool.c_str(), 4711, 4711) != 0) GTEST_SKIP() << "this user may not give files away";
  expect_refused(pool, "belongs to user 4711");
  expect_usable(pool);
  expect_done(run({"pool", "info", pool}));
  expect_done(run({"pool", "destroy", pool}));
}

TEST_F(ForeignPool, EveryDeviceCounts) {
  const std::string pool = create_pool("kv", {"--devices", "2"});
  ASSERT_EQ(chmod((pool + ".1").c_str(), 0666), 0);
  expect_error(run({"serve", pool}), kRefused, {pool + ".1", "mode 0666"});
}

TEST_F(ForeignPool, OneOfRootOrOfThisUsersGroupIsGood) {
  const std::string pool = create_pool("kv");
  ASSERT_EQ(chmod(pool.c_str(), 0664), 0);
  Serving keeper({"serve", pool});
  EXPECT_TRUE(keeper.is_ready());
}

}  // namespace
}  // namespace cachalot::process_test
