// The life of a pool as a person at a shell leads it.
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "pool/pool.h"
#include "program.h"

namespace cachalot::process_test {
namespace {

constexpr int kAbsent = 1;

struct Shape {
  const char* domain;
  const char* devices;
};

class PoolCommand : public ProcessTest {
 protected:
  static nlohmann::json info(const std::string& pool) {
    return run({"pool", "info", pool, "--json", "-"}).json();
  }
  // All six parts, and that they are all of the pool.
  static void expect_balanced(const nlohmann::json& pool) {
    const nlohmann::json& parts = pool["accounting"];
    std::uint64_t sum = 0;
    for (const char* part : {"free_blocks", "granted_blocks", "live_blocks", "limbo_blocks",
                             "quarantined_blocks", "bad_blocks"}) {
      ASSERT_TRUE(parts.contains(part)) << parts;
      sum += parts[part].get<std::uint64_t>();
    }
    EXPECT_EQ(sum, pool["geometry"]["blocks"].get<std::uint64_t>()) << parts;
    EXPECT_EQ(parts["sum"], sum);
  }
};

class WholeLife : public PoolCommand, public testing::WithParamInterface<Shape> {};

TEST_P(WholeLife, FromCreateToDestroy) {
  const std::string pool =
      create_pool("kv", {"--domain", GetParam().domain, "--devices", GetParam().devices});
  EXPECT_EQ(listing().size(), std::stoul(GetParam().devices));
  EXPECT_EQ(info(pool)["keeper"]["state"], "none");
  const nlohmann::json geometry = info(pool)["geometry"];
  EXPECT_EQ(geometry[geometry["domain"] == "mixed" ? "domains" : "domain"], GetParam().domain);

  Serving keeper({"serve", pool});
  ASSERT_TRUE(keeper.is_ready());
  EXPECT_EQ(info(pool)["keeper"]["state"], "serving");
  // Bytes of all values and awkward lengths, through files and pipes.
  const std::vector<std::size_t> lengths = {1, 63, 64, 65, 4095, 4096};
  std::string parent;
  Arguments lookup = {"lookup", "--pool", pool, "--json", "-"};
  for (const std::size_t length : lengths) {
    const std::string key = "block of " + std::to_string(length);
    const std::string bytes = noise(length, length);
    Arguments put = {"put", key, "--pool", pool, "--json", "-"};
    if (!parent.empty()) put.insert(put.end(), {"--parent", parent});
    const Outcome stored = run(put, {.in = bytes});
    expect_done(stored);
    EXPECT_EQ(stored.json()["stored"], true);
    const Outcome got = run({"get", key, "--pool", pool});
    expect_done(got);
    EXPECT_EQ(got.out, bytes);
    // The block's hash is as good a key.
    const std::string file = path("copy");
    expect_done(run({"get", stored.json()["hash"], "--pool", pool, "--output", file}));
    EXPECT_EQ(read(file), bytes);
    lookup.push_back(key);
    parent = key;
  }
  lookup.push_back("another one");
  const Outcome looked = run(lookup);
  expect_done(looked);
  EXPECT_EQ(looked.json()["hit_blocks"], lengths.size());
  EXPECT_EQ(looked.json()["keys"][5]["bytes"], 4096);
  EXPECT_EQ(looked.json()["keys"][6]["hit"], false);

  // Again: it is there already, and the first one stays.
  const Outcome again = run({"put", parent, "--pool", pool, "--json", "-"}, {.in = "other"});
  expect_done(again);
  EXPECT_EQ(again.json()["stored"], false);
  EXPECT_EQ(run({"get", parent, "--pool", pool}).out, noise(4096, 4096));

  // A block goes with all that follow it.
  const Outcome evicted = run({"evict", "block of 65", "--pool", pool, "--json", "-"});
  expect_done(evicted);
  EXPECT_EQ(evicted.json()["evicted_blocks"], 3);
  EXPECT_EQ(run({"lookup", "block of 65", "--pool", pool}).exit_code, 1);
  expect_done(run({"lookup", "block of 64", "--pool", pool}));

  expect_done(run({"stop", pool}));
  expect_done(keeper.wait());
  const nlohmann::json at_rest = info(pool);
  EXPECT_EQ(at_rest["accounting"]["live_blocks"], 3);
  EXPECT_EQ(at_rest["counters"]["commits"], 6);
  EXPECT_EQ(at_rest["counters"]["duplicates"], 1);
  expect_balanced(at_rest);
  expect_done(run({"pool", "destroy", pool}));
  EXPECT_EQ(listing(), std::set<std::string>{"copy"});
}

INSTANTIATE_TEST_SUITE_P(Shapes, WholeLife,
                         testing::Values(Shape{"coherent", "1"}, Shape{"coherent", "4"},
                                         Shape{"noncoherent", "1"}, Shape{"noncoherent", "4"},
                                         Shape{"coherent,noncoherent,coherent", "3"}),
                         [](const auto& shape) {
                           std::string name = std::string(shape.param.domain) + shape.param.devices;
                           std::replace(name.begin(), name.end(), ',', '_');
                           return name;
                         });

TEST_F(PoolCommand, ADomainForEachDeviceHasToFitTheDevices) {
  const Arguments create = {
      "pool", "create",    path("kv"), "--block-bytes", "4096", "--capacity-blocks",
      "8",    "--devices", "2",        "--domain"};
  const auto refused = [&](const char* domain, const char* reason) {
    Arguments arguments = create;
    arguments.push_back(domain);
    expect_error(run(arguments), 2, {"--domain", domain, reason});
  };
  refused("coherent,noncoherent,coherent", "3 words");
  refused("noncoherent,coherent", "the first device");
  refused("incoherent", "expected coherent or noncoherent");
  EXPECT_EQ(listing(), std::set<std::string>{});
}

TEST_F(PoolCommand, NamespacesDoNotMeet) {
  const std::string pool = create_pool("kv");
  Serving keeper({"serve", pool});
  expect_done(run({"put", "key", "--pool", pool, "--namespace", "a"}, {.in = "bytes"}));
  EXPECT_EQ(run({"lookup", "key", "--pool", pool, "--namespace", "b"}).exit_code, 1);
  EXPECT_EQ(run({"get", "key", "--pool", pool, "--namespace", "a"}).out, "bytes");
  const Outcome all = run({"evict", "--all", "--pool", pool, "--json", "-"});
  EXPECT_EQ(all.json()["evicted_blocks"], 1);
}

TEST_F(PoolCommand, AKeyThatIsNotThereIsNamedAsItWasGiven) {
  const std::string pool = create_pool("kv");
  Serving keeper({"serve", pool});
  ASSERT_TRUE(keeper.is_ready());
  expect_error(run({"get", "greeting", "--pool", pool}), kAbsent,
               {"is not in the pool", "(key \"greeting\")"});
  expect_error(run({"evict", "greeting", "--pool", pool}), kAbsent,
               {"is not in the pool", "(key \"greeting\")"});
  const Outcome by_hash = run({"get", std::string(32, 'a'), "--pool", pool});
  expect_error(by_hash, kAbsent, {std::string(32, 'a')});
  EXPECT_EQ(by_hash.err.find("key"), std::string::npos) << by_hash.err;
}

TEST_F(PoolCommand, AFullPoolEvictsWhatWasUsedLongestAgo) {
  const std::string pool = create_pool("kv", {}, 2);
  Serving keeper({"serve", pool});
  for (const char* key : {"a", "b", "c"}) {
    expect_done(run({"put", key, "--pool", pool}, {.in = key}));
    if (key[0] == 'b') {
      EXPECT_EQ(run({"get", "a", "--pool", pool}).out, "a");
    }
  }
  EXPECT_EQ(run({"lookup", "a", "--pool", pool}).exit_code, 0);
  EXPECT_EQ(run({"lookup", "b", "--pool", pool}).exit_code, 1);
  EXPECT_EQ(run({"lookup", "c", "--pool", pool}).exit_code, 0);
}

TEST_F(PoolCommand, DevicesMayHavePathsOfTheirOwn) {
  const Arguments devices = {path("x"), path("y")};
  const auto with_devices = [&](Arguments arguments) {
    arguments.insert(arguments.end(), devices.begin(), devices.end());
    return arguments;
  };
  Arguments create = with_devices({"pool", "create"});
  create.insert(create.end(), {"--block-bytes", "1MiB", "--capacity", "4MiB"});
  expect_done(run(create));
  EXPECT_EQ(listing(), (std::set<std::string>{"x", "y"}));
  Serving keeper(with_devices({"serve", "--pool"}));
  ASSERT_TRUE(keeper.is_ready());
  const std::string bytes = noise(1 << 20, 5);
  expect_done(run({"put", "key", "--pool", path("x"), "--pool", path("y")}, {.in = bytes}));
  EXPECT_EQ(run({"get", "key", "--pool", path("x"), "--pool", path("y")}).out, bytes);
  expect_done(run(with_devices({"stop"})));
  expect_done(run(with_devices({"pool", "destroy"})));
  EXPECT_EQ(listing(), std::set<std::string>());
}

TEST_F(PoolCommand, ShmNamesAreFilesInDevShm) {
  const std::string name = "shm:" + tag() + ".kv";
  expect_done(run({"pool", "create", name, "--block-bytes", "4096", "--capacity-blocks", "8"}));
  EXPECT_EQ(listing(), std::set<std::string>{"/dev/shm/" + tag() + ".kv"});
  EXPECT_EQ(info(name)["geometry"]["capacity_blocks"], 8);
  expect_done(run({"pool", "destroy", name}));
  EXPECT_EQ(listing(), std::set<std::string>());
}

TEST_F(PoolCommand, AModelGivesTheSizeOfABlock) {
  expect_done(run({"pool", "create", path("kv"), "--model", "llama-3-8b", "--block-tokens", "16",
                   "--capacity-blocks", "4", "--spare-blocks", "1"}));
  // 32 layers, 8 heads of 128 numbers, keys and values, 2 bytes each, 16 tokens.
  EXPECT_EQ(info(path("kv"))["geometry"]["block_bytes"], 2 * 32 * 8 * 128 * 2 * 16);
  EXPECT_EQ(info(path("kv"))["geometry"]["blocks"], 5);
}

// With --capacity it takes more than that, and says how much.
TEST_F(PoolCommand, ACapacityIsWhatMayBePublishedAndTheRestIsSaid) {
  constexpr std::uint64_t kCapacity = 64u << 20;
  const Outcome created =
      run({"pool", "create", path("kv"), "--block-bytes", "64KiB", "--capacity", "64MiB"});
  expect_done(created);
  EXPECT_EQ(info(path("kv"))["geometry"]["capacity_bytes"], kCapacity);
  const std::uint64_t taken = std::filesystem::file_size(path("kv"));
  EXPECT_LT(taken,
            kCapacity + kCapacity / 8 + (12u << 20));  // spare blocks, and room for 64 clients
  EXPECT_NE(created.out.find("kv: capacity 1,024 blocks, "), std::string::npos) << created.out;
  const double said_mib = std::stod(created.out.substr(created.out.rfind(": ") + 2));
  EXPECT_NEAR(said_mib, static_cast<double>(taken) / (1 << 20), 0.1) << created.out;
}

TEST_F(PoolCommand, ASizeIsWhatAPoolTakesInAll) {
  constexpr std::uint64_t kSize = 64u << 20;
  const Outcome created =
      run({"pool", "create", path("kv"), "--block-bytes", "64KiB", "--size", "64MiB"});
  expect_done(created);
  const std::uint64_t bytes = std::filesystem::file_size(path("kv"));
  EXPECT_LE(bytes, kSize);
  EXPECT_GT(bytes, kSize - (4u << 20));
  const nlohmann::json geometry = info(path("kv"))["geometry"];
  EXPECT_GT(geometry["capacity_bytes"].get<std::uint64_t>(), kSize * 7 / 10);
  EXPECT_EQ(geometry["clients"], 64);
  EXPECT_NE(created.out.find("64 MiB in all"), std::string::npos) << created.out;

  expect_error(run({"pool", "create", path("none"), "--block-bytes", "64MiB", "--size", "64MiB"}),
               2, {"--size", "67108864 bytes are too few", "one block of 67108864 bytes"});
  expect_error(run({"pool", "create", path("none"), "--block-bytes", "4096", "--size", "64MiB",
                    "--capacity", "1MiB"}),
               2, {"give one of --size, --capacity and --capacity-blocks"});
  expect_error(run({"pool", "create", path("none"), "--block-bytes", "4096", "--size", "64MiB",
                    "--spare-blocks", "4"}),
               2, {"--size", "--spare-blocks"});
  EXPECT_EQ(listing(), std::set<std::string>{"kv"});
}

// What an earlier version chose for a pool does not stop a keeper that is started with the same flags.
TEST_F(PoolCommand, APoolWithOtherDefaultsIsServedByTheSameFlags) {
  expect_done(run({"pool", "create", path("kv"), "--block-bytes", "4096", "--capacity-blocks", "64",
                   "--clients", "16", "--spare-blocks", "64"}));
  const Arguments flags = {"serve",         "--pool", path("kv"),          "--create",
                           "--block-bytes", "4096",   "--capacity-blocks", "64"};
  {
    Serving keeper(flags);
    EXPECT_TRUE(keeper.is_ready());
    expect_done(run({"stop", path("kv")}));
  }
  Arguments other = flags;
  other.insert(other.end(), {"--clients", "17"});
  expect_error(run(other), 2, {"client slots: 16, the flags say 17", "cachalot pool destroy"});
  // The size says the capacity, which follows from the slots.
  expect_error(run({"serve", path("kv"), "--create", "--block-bytes", "4096", "--size", "8MiB",
                    "--clients", "17"}),
               2, {"client slots: 16, the flags say 17"});
}

TEST_F(PoolCommand, ADeviceThatIsNotThereIsNotMadeAFile) {
  const Arguments sizes = {"--block-bytes", "4096", "--capacity-blocks", "8"};
  for (const Arguments& command : {Arguments{"pool", "create", "/dev/dax9.9"},
                                   Arguments{"serve", "/dev/dax9.9", "--create"}}) {
    Arguments words = command;
    words.insert(words.end(), sizes.begin(), sizes.end());
    const Outcome refused = run(words);
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_NE(refused.err.find("/dev/dax9.9: no such device"), std::string::npos) << refused.err;
    EXPECT_FALSE(std::filesystem::exists("/dev/dax9.9"));
  }
}

TEST_F(PoolCommand, ALinkToAPoolIsNotDestroyed) {
  const std::string pool = create_pool("kv");
  ASSERT_EQ(symlink(pool.c_str(), path("link").c_str()), 0);
  EXPECT_EQ(info(path("link"))["geometry"]["clients"], 4);
  expect_error(run({"pool", "destroy", path("link")}), 2, {path("link"), "symbolic link"});
  EXPECT_EQ(listing(), (std::set<std::string>{"kv", "link"}));
  expect_done(run({"pool", "destroy", pool}));
  EXPECT_EQ(listing(), std::set<std::string>{"link"});
}

TEST_F(PoolCommand, AnInterruptedCreationLeavesNothing) {
  const Arguments create = {"pool", "create", path("kv")};
  const Arguments serve = {"serve", path("kv"), "--create"};
  for (const Arguments& command : {create, serve}) {
    for (const int signal : {SIGINT, SIGTERM}) {
      // On a busy machine the creation may be done before the signal comes: then again.
      bool is_interrupted = false;
      for (int i = 0; i < 50 && !is_interrupted; ++i) {
        Arguments arguments = command;
        arguments.insert(arguments.end(),
                         {"--block-bytes", "1MiB", "--capacity", "1GiB", "--devices", "2"});
        Running creation(arguments);
        while (listing().empty() && !creation.has_ended()) sched_yield();
        creation.send(signal);
        const Outcome outcome = creation.wait();
        is_interrupted = outcome.signal == signal;
        if (!is_interrupted) {
          expect_done(outcome);
          std::filesystem::remove(path("kv"));
          std::filesystem::remove(path("kv.1"));
        }
      }
      EXPECT_TRUE(is_interrupted);
      EXPECT_EQ(listing(), std::set<std::string>());
    }
  }
}

// A silent client is suspected; its blocks are free when an operator says so.
TEST_F(PoolCommand, AFenceFreesWhatASuspectHeld) {
  const std::string path = create_pool("kv");
  // Long enough for the last client, which renews: a busy machine may stop it for some 100 ms.
  Serving keeper({"serve", path, "--suspect-after", "1000"});
  ASSERT_TRUE(keeper.is_ready());
  Result<pool::Pool> pool = pool::Pool::open({path});
  ASSERT_TRUE(pool);
  pool::ClientOptions options;
  options.renew_interval_ns = 0;
  options.grant_target = 4;
  Result<pool::PoolClient> suspect = pool->attach(options, 3);
  ASSERT_TRUE(suspect) << suspect.error().message;
  const std::vector<std::byte> bytes(100);
  ASSERT_TRUE((*suspect)->post_put(nullptr, {{1, 2}, bytes}));
  ASSERT_TRUE((*suspect)->drain());
  const auto slot_3 = [&] {
    const nlohmann::json description = info(path);
    for (const nlohmann::json& row : description["attached"]) {
      if (row["slot"] == 3) return row;
    }
    return nlohmann::json();
  };
  while (slot_3()["held"] != true) sched_yield();
  EXPECT_EQ(slot_3()["pid"], getpid());
  const std::uint64_t held = info(path)["accounting"]["quarantined_blocks"];
  EXPECT_GT(held, 0u);
  EXPECT_EQ(info(path)["counters"]["suspicions"], 1);
  expect_error(run({"get", "key", "--pool", path, "--client-slot", "3"}), 3, {path, "slot 3"});

  EXPECT_NE(run({"pool", "info", path}).out.find("1 held (slot 3, pid " + std::to_string(getpid())),
            std::string::npos);
  const Outcome doctor = run({"doctor", "--pool", path});
  EXPECT_NE(doctor.out.find("its blocks are free when it has ended"), std::string::npos)
      << doctor.out;

  const Outcome fenced = run({"pool", "fence", path, "--client", "3", "--json", "-"});
  expect_done(fenced);
  EXPECT_EQ(fenced.json(), (nlohmann::json{{"client", 3}, {"host", nullptr}, {"released", held}}));
  EXPECT_EQ(fenced.err, "released " + std::to_string(held) + " blocks\n");
  expect_error(run({"pool", "fence", path, "--client", "3"}), 1, {path, "slot 3", "held"});
  expect_error(run({"pool", "fence", path, "--client", "5"}), 2, {path, "5"});
  expect_done(run({"pool", "fence", path, "--unknown"}));
  (*suspect)->renew();  // it learns of it, and detaches without a keeper

  Result<pool::PoolClient> alive = pool->attach({}, 2);
  ASSERT_TRUE(alive) << alive.error().message;
  expect_error(run({"pool", "fence", path, "--client", "2"}), 3, {path, "slot 2", "served"});
}

// It may only stand still.
TEST_F(PoolCommand, FenceWarnsOfAProcessThatLives) {
  const std::string path = create_pool("kv");
  Serving keeper({"serve", path, "--suspect-after", "100"});
  ASSERT_TRUE(keeper.is_ready());
  Result<pool::Pool> pool = pool::Pool::open({path});
  ASSERT_TRUE(pool);
  pool::ClientOptions options;
  options.renew_interval_ns = 0;
  const std::vector<std::byte> bytes(100);
  for (const Arguments& which : {Arguments{"--client", "3"}, Arguments{"--all-of-host", "0"}}) {
    SCOPED_TRACE(which[0]);
    Result<pool::PoolClient> suspect = pool->attach(options, 3);
    ASSERT_TRUE(suspect) << suspect.error().message;
    ASSERT_TRUE((*suspect)->post_put(nullptr, {{1, 2}, bytes}));
    ASSERT_TRUE((*suspect)->drain());
    while (info(path)["accounting"]["quarantined_blocks"] == 0) sched_yield();
    const Outcome fenced = run({"pool", "fence", path, which[0], which[1]});
    expect_done(fenced);
    EXPECT_NE(fenced.err.find("its process " + std::to_string(getpid()) + " lives: kill it"),
              std::string::npos)
        << fenced.err;
    (*suspect)->renew();  // it learns of it
  }
}

TEST_F(PoolCommand, OperatorsGetInWhereEnginesHaveAllSlots) {
  const std::string path = create_pool("kv");
  Serving keeper({"serve", path});
  ASSERT_TRUE(keeper.is_ready());
  Result<pool::Pool> pool = pool::Pool::open({path});
  ASSERT_TRUE(pool);
  std::vector<pool::PoolClient> engines;
  for (int i = 0; i < 4; ++i) {
    Result<pool::PoolClient> engine = pool->attach({});
    ASSERT_TRUE(engine) << engine.error().message;
    engines.push_back(*std::move(engine));
  }
  EXPECT_EQ(info(path)["geometry"]["clients"], 4);
  EXPECT_EQ(info(path)["attached"].size(), 4u);
  expect_error(run({"lookup", "key", "--pool", path}), 3, {"all 4 client slots"});
  expect_done(run({"evict", "--all", "--pool", path}));
  expect_error(run({"pool", "fence", path, "--client", "1"}), 3, {"slot 1", "served"});
  expect_error(run({"pool", "fence", path, "--client", "4"}), 1, {"slot 4", "nothing is held"});
  expect_done(run({"stop", path}));
  expect_done(keeper.wait());
  // Two hosts have a slot more each.
  const std::string two = create_pool("two", {"--hosts", "2"});
  EXPECT_EQ(info(two)["geometry"]["clients"], 4);
  expect_error(run({"pool", "create", two + "x", "--block-bytes", "4096", "--capacity-blocks", "8",
                    "--clients", "1024"}),
               2, {"--clients", "1024"});
  expect_error(run({"pool", "create", two + "x", "--block-bytes", "4096", "--capacity-blocks", "8",
                    "--clients", "1", "--hosts", "2"}),
               2, {"--hosts", "2"});
}

TEST_F(PoolCommand, AMistypedNamespaceIsNotUsedUp) {
  const std::string path = create_pool("kv");
  Serving keeper({"serve", path});
  ASSERT_TRUE(keeper.is_ready());
  Result<pool::Pool> pool = pool::Pool::open({path});
  ASSERT_TRUE(pool);
  for (std::uint32_t i = 0; i < pool::kMaxNamespaces; ++i) {
    if (i == pool::kMaxNamespaces - 1) {
      expect_error(run({"get", "key", "--pool", path, "--namespace", "x"}), 1, {"not in the pool"});
      EXPECT_EQ(run({"lookup", "key", "--pool", path, "--namespace", "y"}).exit_code, 1);
      expect_error(run({"evict", "key", "--pool", path, "--namespace", "z"}), 1, {"not in"});
      EXPECT_EQ(pool->attach({})->client().namespace_id(), i + 1);
      break;
    }
    pool::ClientOptions options;
    options.fingerprint = "n" + std::to_string(i);
    ASSERT_TRUE(pool->attach(options));
  }
  // All are in use: reading and operating still go.
  expect_error(run({"put", "key", "--pool", path, "--namespace", "x"}, {.in = "bytes"}), 3,
               {"namespaces"});
  expect_error(run({"get", "key", "--pool", path, "--namespace", "x"}), 1, {"not in the pool"});
  expect_done(run({"evict", "--all", "--pool", path}));
  expect_error(run({"pool", "fence", path, "--client", "1"}), 1, {"nothing is held"});
  expect_done(run({"stop", path}));
}

TEST_F(PoolCommand, InfoTellsWhoIsServedWhoIsSuspectedAndForgetsTheDead) {
  const std::string path = create_pool("kv");
  Serving keeper({"serve", path, "--suspect-after", "2000"});
  ASSERT_TRUE(keeper.is_ready());
  Result<pool::Pool> pool = pool::Pool::open({path});
  ASSERT_TRUE(pool);
  Result<pool::PoolClient> served = pool->attach({}, 0);
  pool::ClientOptions quiet;
  quiet.renew_interval_ns = 0;  // and without grants: nothing is held when it is given up
  Result<pool::PoolClient> silent = pool->attach(quiet, 1);
  ASSERT_TRUE(served && silent);
  const auto rows = [&] { return info(path)["attached"]; };
  while (rows().size() < 2 || rows()[1]["state"] != "suspected") sched_yield();
  EXPECT_EQ(rows()[0]["state"], "served");
  EXPECT_EQ(rows()[0]["held"], false);
  EXPECT_EQ(rows()[1]["held"], false);
  EXPECT_EQ(rows()[1]["pid"], getpid());
  // One that has no time to detach.
  Result<os::Child> child = os::Child::start([&] {
    Result<pool::Pool> own = pool::Pool::open({path});
    Result<pool::PoolClient> client = own->attach({}, 3);
    pause();
    return 0;
  });
  ASSERT_TRUE(child);
  while (rows().size() < 3) sched_yield();
  EXPECT_EQ(rows()[2]["state"], "served");
  child->send(SIGKILL);
  (void)child->wait();
  while (rows().size() > 2) sched_yield();
  keeper.send(SIGKILL);
  (void)keeper.wait();
  EXPECT_EQ(rows()[0]["state"], "unserved");
}

TEST_F(PoolCommand, APartOfAPoolSaysWhatItIsAndHowItIsRemoved) {
  const std::string pool = create_pool("kv", {"--devices", "2"});
  for (const char* action : {"info", "destroy"}) {
    expect_error(run({"pool", action, pool + ".1"}), 2,
                 {pool + ".1", "device 1", "device 0, " + pool + ","});
  }
  ASSERT_EQ(unlink(pool.c_str()), 0);
  const Arguments serve = {"serve", pool,        "--create", "--block-bytes",
                           "4096",  "--devices", "2",        "--capacity-blocks",
                           "32"};
  expect_error(run(serve), 3, {pool + ".1", "exists"});
  const std::string half = write("half", std::string(4 << 20, '\0'));
  expect_error(run({"pool", "destroy", half}), 2, {half, "rm " + half});
  const std::string other = write("other", noise(4 << 20, 1));
  const Outcome refused = run({"pool", "destroy", other});
  expect_error(refused, 2, {other});
  EXPECT_EQ(refused.err.find("rm "), std::string::npos) << refused.err;
}

TEST_F(PoolCommand, APutOfWhatIsThereTellsTheSizeOfWhatIsThere) {
  const std::string pool = create_pool("kv");
  Serving keeper({"serve", pool});
  const Arguments put = {"put", "key", "--pool", pool, "--json", "-"};
  const nlohmann::json first = run(put, {.in = "sixsix"}).json();
  EXPECT_EQ(first["bytes"], 6);
  EXPECT_EQ(first["stored"], true);
  const Outcome again = run(put, {.in = "two"});
  expect_done(again);
  EXPECT_EQ(again.json()["bytes"], 6);
  EXPECT_EQ(again.json()["stored"], false);
  EXPECT_NE(again.err.find("present " + first["hash"].get<std::string>() + " 6 bytes"),
            std::string::npos)
      << again.err;
  EXPECT_EQ(run({"get", "key", "--pool", pool}).out, "sixsix");
}

TEST_F(PoolCommand, WhatIsLeftOfAPoolInShmIsNamedAsAShellKnowsIt) {
  const std::string name = "shm:" + tag() + ".k", file = "/dev/shm/" + tag() + ".k";
  expect_done(run({"pool", "create", name, "--block-bytes", "4096", "--capacity-blocks", "8",
                   "--devices", "3"}));
  ASSERT_EQ(unlink((file + ".1").c_str()), 0);
  expect_error(run({"pool", "destroy", name}), 2, {file + ".1", "rm " + file + " " + file + ".2"});
  for (const char* device : {"", ".2"}) EXPECT_EQ(unlink((file + device).c_str()), 0);
}

TEST_F(PoolCommand, AParentThatGoesToMakeRoomIsNotCalledAbsent) {
  const std::string pool = create_pool("kv", {"--spare-blocks", "0"}, 1);
  Serving keeper({"serve", pool});
  expect_done(run({"put", "a", "--pool", pool}, {.in = "a"}));
  expect_error(run({"put", "b", "--pool", pool, "--parent", "a"}, {.in = "b"}), 3,
               {"full", "parent a"});
  expect_error(run({"put", "b", "--pool", pool, "--parent", "a"}, {.in = "b"}), 1,
               {"not in the pool"});
}

}  // namespace
}  // namespace cachalot::process_test
