// `cachalot serve` and `stop`: how a keeper begins and ends.
#include <signal.h>

#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

class KeeperCommand : public ProcessTest {};

TEST_F(KeeperCommand, EndsCleanlyOnSignalsAndCanBeginAgain) {
  const std::string pool = create_pool("kv");
  for (const int signal : {SIGINT, SIGTERM}) {
    Serving keeper({"serve", "--pool", pool});
    ASSERT_TRUE(keeper.is_ready());
    keeper.send(signal);
    const Outcome outcome = keeper.wait();
    expect_done(outcome);
    EXPECT_EQ(outcome.err, "");
    EXPECT_EQ(run({"pool", "info", pool, "--json", "-"}).json()["keeper"]["state"], "none");
  }
  Serving third({"serve", pool});
  EXPECT_NE(third.ready_line().find("epoch=3"), std::string::npos) << third.ready_line();
}

TEST_F(KeeperCommand, SaysWhoServesWhatInOneLine) {
  const std::string pool = create_pool("kv");
  Serving keeper({"serve", pool});
  EXPECT_TRUE(keeper.ready_line().starts_with("ready pid=")) << keeper.ready_line();
  EXPECT_NE(keeper.ready_line().find(" pool=" + pool + " epoch=1 blocks=32"), std::string::npos)
      << keeper.ready_line();
  const Outcome stopped = run({"stop", "--pool", pool, "--json", "-"});
  expect_done(stopped);
  EXPECT_EQ(stopped.json()["epoch"], 1);
  expect_done(keeper.wait());
}

TEST_F(KeeperCommand, StopWaitsUntilTheKeeperIsGone) {
  const std::string pool = create_pool("kv");
  for (int i = 0; i < 10; ++i) {
    Serving keeper({"serve", pool});
    ASSERT_TRUE(keeper.is_ready());
    expect_done(run({"stop", pool}));
    // So that the next command finds nobody in its way.
    Serving next({"serve", pool});
    ASSERT_TRUE(next.is_ready()) << next.wait().err;
    expect_done(run({"stop", pool}));
  }
  expect_done(run({"pool", "destroy", pool}));
}

TEST_F(KeeperCommand, CreateMakesThePoolOnceAndThenChecksThatItIsTheSame) {
  const Arguments serve = {"serve", path("kv"),          "--create", "--block-bytes",
                           "4096",  "--capacity-blocks", "32",       "--json",
                           "-"};
  for (int i = 1; i <= 2; ++i) {
    Serving keeper(serve);
    ASSERT_TRUE(keeper.is_ready());
    const nlohmann::json ready = nlohmann::json::parse(keeper.ready_line());
    EXPECT_EQ(ready["epoch"], i);
    EXPECT_EQ(ready["capacity_blocks"], 32);
    expect_done(run({"stop", path("kv")}));
    expect_done(keeper.wait());
  }
  Arguments other = serve;
  other[4] = "8192";
  expect_error(run(other), 2, {path("kv"), "4096", "8192"});
}

}  // namespace
}  // namespace cachalot::process_test
