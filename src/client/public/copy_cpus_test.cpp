// ClientOptions::copy_cpus: what is understood, what is found, and that copies run there.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/copy_homes.h"
#include "os/topology.h"
#include "pool/sizing.h"
#include "testing/client/test_cluster.h"
#include "testing/os/scratch_folder.h"

namespace {

using Cores = std::vector<int>;

// Which sets of cores threads of this process asked for.
std::mutex asked_mutex;
std::vector<Cores> asked;

}  // namespace

// In the place of the C library's, for this program.
extern "C" int sched_setaffinity(pid_t thread, std::size_t bytes, const cpu_set_t* set) noexcept {
  Cores cores;
  for (int core = 0; core < static_cast<int>(8 * bytes); ++core) {
    if (CPU_ISSET_S(core, bytes, set)) cores.push_back(core);
  }
  {
    const std::lock_guard lock(asked_mutex);
    asked.push_back(std::move(cores));
  }
  return static_cast<int>(syscall(SYS_sched_setaffinity, thread, bytes, set));
}

namespace cachalot::client {
namespace {

using Homes = std::shared_ptr<const kv::CopyHomes>;

// A pool of two devices, and a machine of two sockets made of files.
class CopyCpus : public testing::Test {
 protected:
  CopyCpus() {
    pool::CreateOptions options;
    options.paths = {"memfd:a", "memfd:b"};
    pool::Geometry& g = options.geometry;
    g.devices = 2;
    g.block_bytes = 4096;
    g.capacity_blocks = 512;
    g.blocks = 1024;
    g.directory_slots = pool::rated_directory_slots(512);
    g.clients = 4;
    Result<pool::Pool> made = pool::Pool::create(options);
    EXPECT_TRUE(made) << made.error().message;
    if (made) pool_.emplace(*std::move(made));
    machine_.write("sys/devices/system/node/node0/cpulist", "0,2\n");
    machine_.write("sys/devices/system/node/node1/cpulist", "1,3\n");
    machine_.write("sys/devices/system/node/node2/cpulist", "\n");
    machine_.write("sys/devices/system/node/node2/distance", "30 20 10\n");
    machine_.write("sys/bus/dax/devices/dax0.0/numa_node", "2\n");
  }

  Result<Homes> find(const std::string& copy_cpus) {
    return find_copy_homes(copy_cpus, *pool_, machine_.path());
  }
  // Of both devices, from the first byte of each to the last.
  void expect_cores(const Homes& homes, const Cores& first, const Cores& second) {
    ASSERT_NE(homes, nullptr);
    const memory::DeviceSet& devices = pool_->devices();
    for (const std::uint64_t at : {std::uint64_t{0}, devices.bytes_each() - 1}) {
      EXPECT_EQ(homes->cores(homes->of(devices.base(0) + at)), first);
      EXPECT_EQ(homes->cores(homes->of(devices.base(1) + at)), second);
    }
  }

  std::optional<pool::Pool> pool_;
  os::ScratchFolder machine_;
};

TEST_F(CopyCpus, AListOfEachDevice) {
  EXPECT_EQ(*find(""), nullptr);
  expect_cores(*find("0=0-1;1=2,5"), {0, 1}, {2, 5});
  expect_cores(*find("1=3;0=0"), {0}, {3});
  EXPECT_EQ((*find("0=7;1=7"))->count(), 1u);
}

TEST_F(CopyCpus, AnythingElseIsRefusedWithWhatIsExpected) {
  for (const char* const wrong : {"0",         "automatic",   "AUTO",
                                  "0=0",       "0=0;",        "0=0;1=",
                                  "0=0;1=1;",  "0=0;1=1;2=2", "0=0;0=1",
                                  "0=0;2=1",   "0=0,1=1",     "0=0;1=a",
                                  "0=0;1=3-2", "0=0;1=8192",  "=0;1=1",
                                  "a=0;1=1",   "0=0;1",       " 0=0;1=1",
                                  "0=0; 1=1",  "-1=0;1=1",    "4294967296=0;1=1",
                                  ";",         "auto;auto"}) {
    const Result<Homes> homes = find(wrong);
    ASSERT_FALSE(homes) << wrong;
    EXPECT_EQ(homes.error().code, Code::kInvalidArgument);
    EXPECT_EQ(std::string(homes.error().message),
              std::string("copy_cpus: '") + wrong +
                  "': expected \"\", auto, or the CPUs of each of the pool's 2 device(s), as "
                  "0=0-31;1=32-63");
  }
}

TEST_F(CopyCpus, AFileIsNearToTheNodeOfItsPages) {
  const std::optional<int> node = os::node_of_page(pool_->devices().base(0));
  if (!node || *node > 1) GTEST_SKIP() << "the kernel does not say on which node pages lie";
  const Cores near = *node == 0 ? Cores{0, 2} : Cores{1, 3};
  expect_cores(*find("auto"), near, near);
  // Pages on a node of which nothing is known.
  const std::string of_pages =
      machine_.path("sys/devices/system/node/node" + std::to_string(*node));
  machine_.write("sys/devices/system/node/node3/cpulist", "4\n");
  std::filesystem::remove_all(of_pages);
  EXPECT_EQ(*find("auto"), nullptr);
  // With one node there is no choice.
  machine_.write("sys/devices/system/node/node" + std::to_string(*node) + "/cpulist", "0\n");
  EXPECT_NE(*find("auto"), nullptr);
  std::filesystem::remove_all(machine_.path("sys/devices/system/node/node3"));
  std::filesystem::remove_all(
      machine_.path("sys/devices/system/node/node" + std::to_string(1 - *node)));
  EXPECT_EQ(*find("auto"), nullptr);
}

TEST_F(CopyCpus, ADevdaxDeviceIsNearToItsNodeAndMemoryWithoutCoresToTheNearestThatHasSome) {
  const auto near = [&](const char* path) {
    return cores_near(os::FileKind::kDevdax, path, nullptr, 0, machine_.path());
  };
  EXPECT_EQ(near("/dev/dax0.0"), Cores({1, 3}));
  machine_.write("sys/bus/dax/devices/dax0.0/numa_node", "0\n");
  EXPECT_EQ(near("/dev/dax0.0"), Cores({0, 2}));
  EXPECT_EQ(near("/dev/dax1.0"), Cores());
}

// Copies of a client, of 16 blocks of 128 KiB, by a caller on the first core.
std::vector<Cores> cores_of_copies(const Cores& cores, const std::string& copy_cpus) {
  std::vector<Cores> all;
  std::thread([&] {
    ASSERT_TRUE(os::run_on(std::span(cores).first(1)));
    KvGeometry geometry = small_geometry();
    geometry.layers = 1;
    geometry.block_tokens = 1024;
    Cluster cluster(geometry.block_bytes(), 64);
    ClientOptions options = cluster.client_options();
    options.geometry = geometry;
    options.copy_cpus = copy_cpus;
    Engine engine(options), other(options);
    const std::vector<BlockHash> hashes =
        engine.client.hash_tokens(tokens_of(1, 16 * geometry.block_tokens));
    std::vector<PageId> pages;
    for (PageId page = 0; page < 16; ++page) {
      pages.push_back(page);
      engine.compute(hashes[page], page);
    }
    {
      const std::lock_guard lock(asked_mutex);
      asked.clear();
    }
    const Result<Stored> stored = engine.client.store(engine.cache, nullptr, hashes, pages);
    ASSERT_TRUE(stored) << stored.error().message;
    ASSERT_EQ(stored->blocks, 16u);
    EXPECT_EQ(*other.client.load(other.cache, hashes, pages), 16u);
    for (PageId page = 0; page < 16; ++page) EXPECT_TRUE(other.holds(hashes[page], page));
    EXPECT_EQ(os::online_cores(), Cores({cores[0]}));
    const std::lock_guard lock(asked_mutex);
    all = asked;
  }).join();
  return all;
}

TEST(CopyCpusOfAClient, ItsCopiesRunThere) {
  const Cores cores = os::online_cores();
  if (cores.size() < 2) GTEST_SKIP() << "needs two cores";
  const Cores there = {cores[1]};
  EXPECT_EQ(cores_of_copies(cores, ""), std::vector<Cores>());
  EXPECT_EQ(cores_of_copies(cores, "0=" + std::to_string(cores[0])), std::vector<Cores>());
  EXPECT_EQ(cores_of_copies(cores, "0=" + std::to_string(cores[1])),
            (std::vector<Cores>{there, there}));
}

}  // namespace
}  // namespace cachalot::client
