// `cachalot doctor`: each check is made to fail once, on a machine that is made of files.
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "program.h"

namespace cachalot::process_test {
namespace {

class Doctor : public ProcessTest {
 protected:
  void SetUp() override {
    root_ = path("machine");
    put_file("/proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\nSwapFree: 0 kB\n");
    put_file("/proc/cpuinfo",
             "processor : 0\nflags : sse4_2 clflush clflushopt clwb\n\nflags : none\n");
    put_file("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
             "always within_size [advise] never\n");
    put_file("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
    put_file("/sys/devices/system/node/node0/cpulist", "0-7\n");
    put_file("/dev/shm/none", "");
  }

  void put_file(const std::string& file, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + file).parent_path());
    std::ofstream(root_ + file) << text;
  }

  nlohmann::json examine(Arguments more = {}) {
    Arguments all{"doctor", "--root", root_, "--json", "-"};
    all.insert(all.end(), more.begin(), more.end());
    const Outcome outcome = run(all);
    nlohmann::json found = outcome.json();
    EXPECT_EQ(outcome.exit_code, found["faults"] == 0 ? 0 : 1) << outcome.err;
    return found;
  }

  static nlohmann::json of(const nlohmann::json& found, const std::string& check) {
    for (const auto& one : found["checks"])
      if (one["check"] == check) return one;
    return nullptr;
  }

  void expect_state(const std::string& check, const std::string& state, const std::string& part,
                    Arguments more = {}) {
    const nlohmann::json one = of(examine(std::move(more)), check);
    EXPECT_EQ(one["state"], state) << one;
    EXPECT_NE(one["found"].get<std::string>().find(part), std::string::npos) << one;
    EXPECT_EQ(one["advice"].get<std::string>().empty(), state == "ok") << one;
  }

  std::string root_;
};

TEST_F(Doctor, AMachineOfWhichAllIsWell) {
  const nlohmann::json found = examine();
  EXPECT_EQ(found["faults"], 0) << found;
  for (const char* const check : {"memory", "shared_memory", "huge_pages", "processor", "clock",
                                  "memory_nodes", "dax_devices", "descriptors"})
    EXPECT_EQ(of(found, check)["state"], "ok") << of(found, check);
  EXPECT_EQ(of(found, "pool"), nullptr);
}

TEST_F(Doctor, EachCheckOfTheMachineFails) {
  put_file("/proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 100000 kB\nSwapFree: 0 kB\n");
  expect_state("memory", "warning", "left");
  put_file("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always advise [never]\n");
  expect_state("huge_pages", "warning", "never");
  put_file("/proc/cpuinfo", "flags : sse4_2 clflush\n");
  expect_state("processor", "warning", "lacks clflushopt");
  put_file("/proc/cpuinfo", "flags : clflush\n");
  expect_state("processor", "fault", "sse4_2");
  put_file("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
  expect_state("clock", "warning", "hpet");
  put_file("/sys/bus/dax/devices/dax0.0/size", "1073741824\n");
  expect_state("dax_devices", "fault", "dax0.0 of 1 GiB");
  put_file("/proc/driver/nvidia/version", "NVRM\n");
  if (!std::filesystem::exists("/usr/lib/x86_64-linux-gnu/libcuda.so.1"))
    expect_state("gpu", "fault", "libcuda");
  std::filesystem::remove_all(root_ + "/dev/shm");
  expect_state("shared_memory", "fault", "not there");
}

TEST_F(Doctor, SaysWhichNodeADaxDeviceIsNearToAndWhatToDoWhereThereAreSeveral) {
  const std::string nodes = "/sys/devices/system/node/", devices = "/sys/bus/dax/devices/";
  const auto dax = [&] { return of(examine(), "dax_devices"); };
  const auto has = [](const nlohmann::json& one, const char* key, const char* part) {
    return one[key].get<std::string>().find(part) != std::string::npos;
  };
  put_file(devices + "dax0.0/size", "1073741824\n");
  put_file(devices + "dax0.0/numa_node", "2\n");
  put_file("/dev/dax0.0", "");
  put_file(nodes + "node0/distance", "10 30\n");
  put_file(nodes + "node2/cpulist", "\n");
  put_file(nodes + "node2/distance", "30 10\n");
  nlohmann::json one = dax();
  EXPECT_TRUE(has(one, "found", "dax0.0 of 1 GiB, near to node0")) << one;
  EXPECT_FALSE(has(one, "advice", "copy_cpus")) << "one node with cores: " << one;

  put_file(nodes + "node1/cpulist", "8-15\n");
  put_file(nodes + "node2/distance", "30 20 10\n");
  one = dax();
  EXPECT_EQ(one["state"], "ok") << one;
  EXPECT_TRUE(has(one, "found", "near to node1")) << one;
  EXPECT_TRUE(has(one, "advice", "copy_cpus=auto")) << one;
  EXPECT_TRUE(has(one, "advice", "numactl --cpunodebind=1")) << one;

  put_file(devices + "dax1.0/numa_node", "0\n");
  put_file("/dev/dax1.0", "");
  one = dax();
  EXPECT_TRUE(has(one, "found", "dax1.0 of unknown size, near to node0")) << one;
  EXPECT_TRUE(has(one, "advice", "copy_cpus=auto")) << one;
  EXPECT_FALSE(has(one, "advice", "cpunodebind")) << "they are near to different nodes: " << one;

  std::filesystem::remove_all(root_ + devices + "dax1.0");
  put_file(devices + "dax0.0/numa_node", "-1\n");
  one = dax();
  EXPECT_FALSE(has(one, "found", "near")) << one;
  EXPECT_FALSE(has(one, "advice", "copy_cpus")) << one;
}

TEST_F(Doctor, LimitsOfTheProcess) {
  const Outcome few = run({"doctor", "--root", root_, "--json", "-"},
                          {.limit = RunOptions::Limit{RLIMIT_NOFILE, 256}});
  EXPECT_EQ(of(few.json(), "descriptors")["state"], "warning") << few.out;
  const RunOptions little{.limit = RunOptions::Limit{RLIMIT_MEMLOCK, 65536}};
  const Arguments examined{"doctor", "--root", root_, "--json", "-"};
  EXPECT_EQ(of(run(examined, little).json(), "locked_memory")["state"], "ok");
  put_file("/sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
  EXPECT_EQ(of(run(examined, little).json(), "locked_memory")["state"], "warning");
}

TEST_F(Doctor, PoolsAndWhatAKeeperNeeds) {
  const std::string pool = create_pool("kv");
  expect_state("pool", "fault", "keeper", {"--pool", pool});
  {
    Serving keeper({"serve", pool});
    ASSERT_TRUE(keeper.is_ready());
    const nlohmann::json one = of(examine({"--pool", pool}), "pool");
    EXPECT_EQ(one["state"], "ok") << one;
    keeper.send(SIGSTOP);
    expect_state("pool", "fault", "hangs", {"--pool", pool});
    keeper.send(SIGCONT);
    expect_done(run({"stop", "--pool", pool}));
    keeper.wait();
    Serving lonely({"serve", pool, "--storage", "redis://127.0.0.1:1"});
    ASSERT_TRUE(lonely.is_ready());
    // Storage joins after the ready line.
    for (int i = 0; i < 400 && of(examine({"--pool", pool}), "pool")["state"] == "ok"; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    expect_state("pool", "warning", "out of use", {"--pool", pool});
    expect_done(run({"stop", "--pool", pool}));
    lonely.wait();
  }
  // Also without being named; then it may be left from before.
  std::filesystem::copy_file(pool, root_ + "/dev/shm/left");
  expect_state("pool", "warning", "keeper");
  std::ofstream(path("no-pool")) << "text";
  expect_state("pool", "fault", "no-pool", {"--pool", path("no-pool")});
  expect_state("storage", "fault", "Connection refused", {"--storage", "redis://127.0.0.1:1"});
  expect_state("storage", "fault", "unknown kind", {"--storage", "tape:/x"});
  expect_state("storage", "ok", "well formed", {"--storage", "file:" + path("blocks")});
  EXPECT_FALSE(std::filesystem::exists(path("blocks")));
  expect_state("registry", "fault", "", {"--peers", "etcd://127.0.0.1:1/kv"});
  expect_state("registry", "fault", "", {"--peers", "carrier-pigeon"});
  expect_state("registry", "ok", "first keeper", {"--peers", "file:" + path("registry")});
  EXPECT_FALSE(std::filesystem::exists(path("registry")));
  std::filesystem::create_directory(path("registry"));
  expect_state("registry", "ok", "0 records", {"--peers", "file:" + path("registry")});
  expect_state("registry", "fault", "none", {"--peers", "file:" + path("none/registry")});
  expect_error(run({"doctor", "--cluster-key-file", path("none")}), 2, {"cluster key file"});
}

TEST_F(Doctor, PoolsThatClientsRefuse) {
  const std::string pool = create_pool("kv", {"--devices", "2"});
  expect_state("pool_owner", "ok", pool, {"--pool", pool});
  ASSERT_EQ(chmod((pool + ".1").c_str(), 0666), 0);
  expect_state("pool_owner", "warning", "kv.1: belongs to", {"--pool", pool});
  ASSERT_EQ(chmod((pool + ".1").c_str(), 0660), 0);
  if (chown(pool.c_str(), 4711, 4711) != 0) GTEST_SKIP() << "this user may not give files away";
  expect_state("pool_owner", "warning", "belongs to user 4711", {"--pool", pool});
}

TEST_F(Doctor, SaysThatPoolsOfOthersMayBeAmongFilesThatItMayNotRead) {
  EXPECT_EQ(of(examine(), "pools"), nullptr);
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  ASSERT_EQ(chmod((root_ + "/dev/shm/none").c_str(), 0600), 0);
  for (const std::string& folder : {path(""), root_, root_ + "/dev", root_ + "/dev/shm"})
    ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
  const Outcome other = run({"doctor", "--root", root_, "--json", "-"}, {.without_rights = true});
  if (other.exit_code == kNotStarted) GTEST_SKIP() << "another user cannot run the binary";
  const nlohmann::json one = of(other.json(), "pools");
  EXPECT_EQ(one["state"], "ok") << other.out << other.err;
  EXPECT_NE(one["found"].get<std::string>().find("1 file that this user"), std::string::npos);
}

TEST_F(Doctor, ForPeople) {
  put_file("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
  const Outcome outcome = run({"doctor", "--root", root_});
  EXPECT_NE(outcome.out.find("warning  clock           hpet\n"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("-> each look at the clock"), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace cachalot::process_test
