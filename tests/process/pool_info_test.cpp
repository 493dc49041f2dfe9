// What `cachalot pool info` says, of pools and keepers in all their states.
#include <cachalot/opaque_client.h>
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "pool/pool.h"
#include "program.h"

namespace cachalot::process_test {
namespace {

class PoolInfo : public ProcessTest {
 protected:
  static nlohmann::json info(const std::string& pool) {
    return run({"pool", "info", pool, "--json", "-"}).json();
  }
};

// Puts, gets and lookups are processes: each one's counts stay when it is gone. They are an operator's, and no prompts.
TEST_F(PoolInfo, TotalsStayWhenClientsAndKeepersAreGone) {
  const std::string pool = create_pool("kv");
  EXPECT_EQ(info(pool)["totals"]["lookups"], 0);
  EXPECT_EQ(info(pool)["totals"]["hit_rate"], nullptr);
  {
    Serving keeper({"serve", pool});
    ASSERT_TRUE(keeper.is_ready());
    expect_done(run({"put", "a", "--pool", pool}, {.in = std::string(1000, 'x')}));
    expect_done(run({"get", "a", "--pool", pool}));
    EXPECT_EQ(run({"lookup", "a", "b", "c", "--pool", pool}).exit_code, 0);
    expect_done(run({"stop", "--pool", pool}));
    keeper.wait();
  }
  const nlohmann::json at_rest = info(pool)["totals"];
  EXPECT_EQ(at_rest["puts"], 1);
  EXPECT_EQ(at_rest["committed_blocks"], 1);
  EXPECT_EQ(at_rest["read_blocks"], 1);
  EXPECT_EQ(at_rest["read_bytes"], 1000);
  EXPECT_GE(at_rest["written_bytes"], 1000);
  const std::uint64_t lookups = at_rest["lookups"], blocks = at_rest["looked_up_blocks"];
  const std::uint64_t hits = at_rest["hit_blocks"];
  EXPECT_GE(lookups, 2u);
  EXPECT_GE(hits, 2u);
  EXPECT_GE(blocks, 4u);
  EXPECT_EQ(at_rest["prompts"], 0);
  EXPECT_EQ(at_rest["prompt_blocks"], 0);
  EXPECT_EQ(at_rest["hit_rate"], nullptr);
  Serving next({"serve", pool});
  ASSERT_TRUE(next.is_ready());
  EXPECT_EQ(info(pool)["totals"], at_rest);
  expect_done(run({"get", "a", "--pool", pool}));
  EXPECT_EQ(info(pool)["totals"]["hit_blocks"], hits + 1);
}

// Its last counts were published by its renewing thread.
TEST_F(PoolInfo, AKilledClientLosesNothingThatItHasPublished) {
  const std::string path = create_pool("kv");
  Serving keeper({"serve", path});
  ASSERT_TRUE(keeper.is_ready());
  Result<os::Child> child = os::Child::start([&] {
    Result<pool::Pool> own = pool::Pool::open({path});
    Result<pool::PoolClient> client = own->attach({}, 3);
    const BlockHash hash{1, 2};
    pool::Found found;
    for (int i = 0; i < 5; ++i) (void)(*client)->lookup({&hash, 1}, {&found, 1});
    pause();
    return 0;
  });
  ASSERT_TRUE(child);
  while (info(path)["totals"]["lookups"] != 5) sched_yield();
  child->send(SIGKILL);
  (void)child->wait();
  while (!info(path)["attached"].empty()) sched_yield();
  EXPECT_EQ(info(path)["totals"]["lookups"], 5);
  // The slot's next client begins with its own counts at zero.
  Result<pool::Pool> pool = pool::Pool::open({path});
  ASSERT_TRUE(pool);
  Result<pool::PoolClient> next = pool->attach({}, 3);
  ASSERT_TRUE(next) << next.error().message;
  EXPECT_EQ(info(path)["attached"][0]["counters"]["lookups"], 0);
  EXPECT_EQ(info(path)["totals"]["lookups"], 5);
}

TEST_F(PoolInfo, SaysHowItsKeeperServes) {
  const std::string pool = create_pool("kv");
  EXPECT_FALSE(info(pool)["keeper"].contains("policy"));
  Serving keeper({"serve", pool, "--policy", "fifo", "--ttl", "90", "--pin", "ns:a", "--pin", "b",
                  "--priority", "ns=7"});
  ASSERT_TRUE(keeper.is_ready());
  const nlohmann::json served = info(pool)["keeper"];
  EXPECT_EQ(served["state"], "serving");
  EXPECT_EQ(served["policy"], "fifo");
  EXPECT_EQ(served["ttl_s"], 90);
  EXPECT_EQ(served["pins"], 2);
  EXPECT_EQ(served["priorities"], 1);
  EXPECT_EQ("cachalot " + served["version"].get<std::string>() + "\n", run({"--version"}).out);
  EXPECT_GE(served["uptime_s"], 0);
  EXPECT_LT(served["uptime_s"], 24 * 3600);
  expect_done(run({"stop", "--pool", pool}));
  keeper.wait();
  EXPECT_FALSE(info(pool)["keeper"].contains("uptime_s"));
  EXPECT_EQ(info(pool)["keeper"]["policy"], "fifo");
}

TEST_F(PoolInfo, NamesOfStrangersAreTextOfOneLine) {
  const std::string pool = create_pool("a\x1b[2J\xff\n");
  Serving keeper({"serve", pool});
  ASSERT_TRUE(keeper.is_ready());
  expect_done(run({"put", "k", "--namespace", "n\x1b[31m\xfe", "--pool", pool}, {.in = "x"}));
  const std::string folder = std::filesystem::path(pool).parent_path();
  for (const Arguments& command : {Arguments{"pool", "info", pool},
                                   {"pool", "info", pool, "--all"},
                                   {"pool", "list", folder},
                                   {"top", pool, "--once", "--interval", "0.1"},
                                   {"doctor", "--pool", pool},
                                   {"lookup", "\x1b[1m", "--pool", pool}}) {
    const std::string out = run(command).out;
    EXPECT_NE(out.find("?["), std::string::npos) << command[0] << command[1] << out;
    EXPECT_EQ(out.find_first_of("\x1b\xff\xfe"), std::string::npos) << command[0] << command[1];
  }
}

TEST_F(PoolInfo, OneBlockIsNoPlural) {
  const std::string pool = create_pool("kv", {}, 1);
  Serving keeper({"serve", pool});
  ASSERT_TRUE(keeper.is_ready());
  expect_done(run({"put", "k", "--pool", pool}, {.in = "x"}));
  const std::string out = run({"pool", "info", pool}).out;
  for (const char* const part : {": 1 block of 4 KiB;", "stored       1 block, 1 byte\n"})
    EXPECT_NE(out.find(part), std::string::npos) << part << out;
  EXPECT_EQ(out.find(" 1 blocks"), std::string::npos) << out;
  EXPECT_EQ(run({"evict", "k", "--pool", pool}).out, "evicted 1 block\n");
  EXPECT_EQ(
      run({"evict", "--whole-namespace", "--namespace", "typo", "--pool", pool}).out,
      "evicted 0 blocks: none of this namespace; `cachalot pool info` shows those of the pool\n");
}

TEST_F(PoolInfo, AKeeperThatIsStoppedHangs) {
  const std::string pool = create_pool("kv");
  const std::string folder = std::filesystem::path(pool).parent_path();
  Serving keeper({"serve", pool});
  ASSERT_TRUE(keeper.is_ready());
  const auto list_row = [&] {
    return run({"pool", "list", folder, "--json", "-"}).json()["pools"][0];
  };
  const auto text_of = [](const Arguments& command) { return run(command).out; };
  const Arguments top{"top", pool, "--once", "--interval", "0.1"};
  EXPECT_EQ(info(pool)["keeper"]["hangs"], false);
  EXPECT_EQ(list_row()["hangs"], false);
  for (const Arguments& command :
       {Arguments{"pool", "info", pool}, Arguments{"pool", "list", folder}, top})
    EXPECT_EQ(text_of(command).find("hangs"), std::string::npos) << text_of(command);
  keeper.send(SIGSTOP);
  EXPECT_EQ(info(pool)["keeper"]["hangs"], true);
  EXPECT_EQ(info(pool)["keeper"]["state"], "serving");
  EXPECT_EQ(list_row()["hangs"], true);
  EXPECT_EQ(list_row()["keeper"], "serving");
  EXPECT_NE(text_of({"pool", "info", pool}).find("keeper       hangs, pid "), std::string::npos);
  EXPECT_NE(text_of({"pool", "list", folder}).find(" hangs "), std::string::npos);
  EXPECT_NE(text_of(top).find("keeper hangs"), std::string::npos) << text_of(top);
  keeper.send(SIGCONT);
  EXPECT_EQ(info(pool)["keeper"]["hangs"], false);
}

// Of the process only the keeper's thread is stopped, so that the page is there.
TEST_F(PoolInfo, ThePageSaysThatTheKeeperHangs) {
  const std::string pool = create_pool("kv");
  Serving keeper({"serve", pool, "--metrics", "127.0.0.1:0"});
  ASSERT_TRUE(keeper.is_ready());
  EXPECT_NE(keeper.get("/status").find("\"hangs\":false"), std::string::npos);
  const pid_t pid = info(pool)["keeper"]["pid"];
  if (ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) != 0)
    GTEST_SKIP() << "this user may not stop a thread";
  ASSERT_EQ(ptrace(PTRACE_INTERRUPT, pid, nullptr, nullptr), 0);
  EXPECT_EQ(waitpid(pid, nullptr, __WALL), pid);
  while (keeper.get("/status").find("\"hangs\":true") == std::string::npos) sched_yield();
  ASSERT_EQ(ptrace(PTRACE_DETACH, pid, nullptr, nullptr), 0);
  while (keeper.get("/status").find("\"hangs\":false") == std::string::npos) sched_yield();
  EXPECT_NE(keeper.get("/").find("now.keeper.hangs ? \"hangs\""), std::string::npos);
}

TEST_F(PoolInfo, TheCommandThatStoppedTheKeeperIsNotAClientThatDied) {
  const std::string path = create_pool("kv");
  Serving keeper({"serve", path});
  ASSERT_TRUE(keeper.is_ready());
  Result<pool::Pool> pool = pool::Pool::open({path});
  ASSERT_TRUE(pool);
  std::optional<pool::PoolClient> stays;
  {
    Result<pool::PoolClient> attached = pool->attach({}, 0);
    ASSERT_TRUE(attached) << attached.error().message;
    stays.emplace(*std::move(attached));
  }
  expect_done(run({"stop", "--pool", path}));
  keeper.wait();
  const nlohmann::json rows = info(path)["attached"];
  ASSERT_EQ(rows.size(), 1u) << rows;
  EXPECT_EQ(rows[0]["slot"], 0);
  EXPECT_EQ(rows[0]["state"], "unserved");
  stays.reset();
  EXPECT_EQ(info(path)["attached"], nlohmann::json::array());
}

TEST_F(PoolInfo, TheTableHasUnitsAndTheJsonBytes) {
  const std::string pool = create_pool("kv", {}, 256);
  Serving keeper({"serve", pool, "--ttl", "7200"});
  ASSERT_TRUE(keeper.is_ready());
  expect_done(run({"put", "a", "--pool", pool}, {.in = std::string(2048, 'x')}));
  expect_done(run({"get", "a", "--pool", pool}));
  const nlohmann::json description = info(pool);
  EXPECT_EQ(description["geometry"]["block_bytes"], 4096);
  EXPECT_EQ(description["geometry"]["capacity_bytes"], 1 << 20);
  const std::string table = run({"pool", "info", pool, "--all"}).out;
  for (const char* line : {"capacity_bytes     1 MiB\n", "block_bytes        4 KiB\n",
                           "read_bytes         2 KiB\n", "ttl_s              2 h\n"}) {
    EXPECT_NE(table.find(line), std::string::npos) << line << table;
  }
  EXPECT_EQ(table.find("unix"), std::string::npos) << table;
}

TEST_F(PoolInfo, TheSummaryHasTheHitRateOfEnginesAndFitsAScreen) {
  const std::string path = create_pool("kv", {}, 256);
  Serving keeper({"serve", path, "--metrics", "127.0.0.1:0"});
  ASSERT_TRUE(keeper.is_ready());
  expect_done(run({"put", "a", "--pool", path}, {.in = std::string(2048, 'x')}));
  EXPECT_NE(run({"pool", "info", path}).out.find("no prompt has asked for blocks yet"),
            std::string::npos);
  OpaqueOptions options{.pool = {path}, .fingerprint = "engine", .block_bytes = 64};
  options.counts_prompts = true;
  for (int i = 0; i < 20; ++i) {
    options.fingerprint = "engine " + std::to_string(i) + std::string(100, '.');
    Result<OpaqueClient> engine = OpaqueClient::attach(options);
    ASSERT_TRUE(engine) << engine.error().message;
    ASSERT_TRUE(
        engine->count_prompt({.asked = 100, .from_pool = 20, .from_peers = 5, .from_storage = 25}));
    ASSERT_TRUE(engine->detach());
  }
  const std::string text = run({"pool", "info", path}).out;
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 15) << text;
  for (const char* part :
       {"50.00 %: 20 prompts asked for 2,000 blocks and used 1,000 (400 from the pool, 100 from "
        "peers, 500 from storage)\n",
        " 21: default, engine 0", " of 4 slots\n", "refused      none\n"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(keeper.metric("cachalot_client_prompts_total"), 20);
  EXPECT_EQ(keeper.metric("cachalot_client_prompt_blocks_total"), 2000);
  const auto used = [&](const char* source) {
    return keeper.metric("cachalot_client_used_blocks_total",
                         std::string("source=\"") + source + "\"");
  };
  EXPECT_EQ(used("pool"), 400);
  EXPECT_EQ(used("peer"), 100);
  EXPECT_EQ(used("storage"), 500);
  const std::string all = run({"pool", "info", path, "--all"}).out;
  EXPECT_NE(all.find("  1                  default\n"), std::string::npos) << all;
  EXPECT_NE(all.find("used_blocks        1,000\n"), std::string::npos) << all;
  EXPECT_NE(all.find("hit_rate           50.00 %\n"), std::string::npos) << all;
}

// The pool has room for two blocks, and both are pinned.
TEST_F(PoolInfo, ARefusedPutIsCountedByReasonAndLogged) {
  const std::string pool = create_pool("kv", {}, 2);
  Serving keeper({"serve", pool, "--pin", "a", "--pin", "b", "--metrics", "127.0.0.1:0"});
  ASSERT_TRUE(keeper.is_ready());
  for (const char* key : {"a", "b"})
    expect_done(run({"put", key, "--pool", pool}, {.in = std::string(100, 'x')}));
  for (const char* key : {"c", "d"})
    expect_error(run({"put", key, "--pool", pool}, {.in = std::string(100, 'x')}), 3, {"full"});
  expect_error(run({"put", "e", "--parent", "f", "--pool", pool}, {.in = "x"}), 1, {"f"});
  while (info(pool)["counters"]["no_parent_commits"] != 1) sched_yield();
  const nlohmann::json counters = info(pool)["counters"];
  EXPECT_EQ(counters["no_space_commits"], 2);
  EXPECT_EQ(counters["refused"], 3);
  EXPECT_EQ(counters["no_space_grants"], 0);
  const auto refused = [&](const char* reason) {
    return keeper.metric("cachalot_keeper_refused_commits_total",
                         std::string("reason=\"") + reason + "\"");
  };
  EXPECT_EQ(refused("no_space"), 2);
  EXPECT_EQ(refused("no_parent"), 1);
  EXPECT_EQ(refused("invalid"), 0);
  EXPECT_EQ(keeper.metric("cachalot_keeper_refused_blocks_total"), 3);
  const std::string text = run({"pool", "info", pool}).out;
  EXPECT_NE(text.find("refused      2 blocks without room, 1 without their parent\n"),
            std::string::npos)
      << text;
}

TEST_F(PoolInfo, TheRightToReadIsEnough) {
  const std::string pool = create_pool("kv", {"--devices", "2"});
  Serving keeper({"serve", pool});
  ASSERT_TRUE(keeper.is_ready());
  for (const std::string& file : {pool, pool + ".1"}) ASSERT_EQ(chmod(file.c_str(), 0444), 0);
  ASSERT_EQ(chmod(std::filesystem::path(pool).parent_path().c_str(), 0755), 0);
  const Outcome read = run({"pool", "info", pool, "--json", "-"}, {.without_rights = true});
  if (read.exit_code == kNotStarted) GTEST_SKIP() << "another user cannot run the binary";
  expect_done(read);
  EXPECT_EQ(read.json()["keeper"]["state"], "serving");
  EXPECT_EQ(read.json()["geometry"], info(pool)["geometry"]);
  const Outcome written = run({"get", "a", "--pool", pool}, {.without_rights = true});
  if (geteuid() == 0) {
    expect_error(written, 3, {pool, "ermission"});
  }
}

TEST_F(PoolInfo, AListSaysHowManyFilesThisUserMayNotRead) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  const std::string pool = create_pool("kv");
  const std::string folder = std::filesystem::path(pool).parent_path();
  ASSERT_EQ(chmod(pool.c_str(), 0600), 0);
  ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
  const Outcome other = run({"pool", "list", folder, "--json", "-"}, {.without_rights = true});
  if (other.exit_code == kNotStarted) GTEST_SKIP() << "another user cannot run the binary";
  EXPECT_EQ(other.json()["unreadable_files"], 1);
  EXPECT_NE(run({"pool", "list", folder}, {.without_rights = true}).out.find("1 file that this"),
            std::string::npos);
  const Outcome own = run({"pool", "list", folder, "--json", "-"});
  EXPECT_EQ(own.json()["unreadable_files"], 0);
  EXPECT_EQ(own.json()["pools"].size(), 1u);
}

}  // namespace
}  // namespace cachalot::process_test
