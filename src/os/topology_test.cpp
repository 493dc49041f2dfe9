// Memory nodes of machines that are made of files. Pinning: process_test.cpp.
#include "os/topology.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "testing/os/scratch_folder.h"

namespace cachalot::os {
namespace {

TEST(Topology, ReadsSetsOfCoresAsTheKernelWritesThem) {
  using Cores = std::vector<int>;
  EXPECT_EQ(parse_cores("0"), Cores({0}));
  EXPECT_EQ(parse_cores("0-3,8"), Cores({0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_cores("8,1-2,2"), Cores({1, 2, 8}));
  EXPECT_EQ(parse_cores("8191"), Cores({8191}));
  for (const char* const wrong : {"", ",", "0,", "-1", "3-1", "0-", "0--1", "a", "0 1", " 0", "0;1",
                                  "8192", "0-8192", "99999999999"}) {
    EXPECT_FALSE(parse_cores(wrong)) << wrong;
  }
}

// Two sockets, node 10 with cores, and a node of CXL memory that is nearer to it.
class Machine : public testing::Test {
 protected:
  Machine() {
    put("devices/system/node/node0/cpulist", "0-1\n");
    put("devices/system/node/node2/cpulist", "\n");
    put("devices/system/node/node2/distance", "30 10 20\n");
    put("devices/system/node/node10/cpulist", "2-3,6\n");
    put("devices/system/node/has_cpu", "0,10\n");
  }
  void put(const std::string& file, const std::string& text) { folder_.write("sys/" + file, text); }
  const std::string& root() const { return folder_.path(); }

 private:
  ScratchFolder folder_;
};

TEST_F(Machine, FindsTheCoresOfANodeAndOfOneWithoutThoseOfTheNearest) {
  EXPECT_EQ(nodes_with_cores(root()), std::vector<int>({0, 10}));
  EXPECT_EQ(cores_of_node(10, root()), std::vector<int>({2, 3, 6}));
  EXPECT_EQ(nearest_node_with_cores(0, root()), 0);
  EXPECT_EQ(nearest_node_with_cores(2, root()), 10);
  put("devices/system/node/node2/distance", "20 10 30\n");
  EXPECT_EQ(nearest_node_with_cores(2, root()), 0);
  put("devices/system/node/node2/distance", "20\n");
  EXPECT_EQ(nearest_node_with_cores(2, root()), std::nullopt);
  EXPECT_EQ(nearest_node_with_cores(7, root()), std::nullopt);
  EXPECT_TRUE(nodes_with_cores(root() + "/none").empty());
}

TEST_F(Machine, FindsTheNodeOfADaxDevice) {
  put("bus/dax/devices/dax0.0/numa_node", "10\n");
  put("bus/dax/devices/dax1.0/numa_node", "-1\n");
  EXPECT_EQ(node_of_dax("dax0.0", root()), 10);
  EXPECT_EQ(node_of_dax("dax1.0", root()), std::nullopt);
  EXPECT_EQ(node_of_dax("dax2.0", root()), std::nullopt);
}

TEST(Topology, APageOfThisProcessLiesOnANodeOfThisMachine) {
  const auto page = std::make_unique<std::byte[]>(4096);
  const std::optional<int> node = node_of_page(page.get());
  if (!node) GTEST_SKIP() << "the kernel does not say";
  EXPECT_TRUE(std::filesystem::exists("/sys/devices/system/node/node" + std::to_string(*node)));
  EXPECT_EQ(node_of_page(nullptr), std::nullopt);
}

}  // namespace
}  // namespace cachalot::os
