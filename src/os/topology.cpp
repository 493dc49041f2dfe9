#include "os/topology.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>

namespace cachalot::os {
namespace {

constexpr int kMaxCores = 8192;  // what Linux can be built for on x86-64

struct FreeSet {
  void operator()(cpu_set_t* set) const { CPU_FREE(set); }
};
using CoreSet = std::unique_ptr<cpu_set_t, FreeSet>;

CoreSet new_set() {
  CoreSet set(CPU_ALLOC(kMaxCores));
  CPU_ZERO_S(CPU_ALLOC_SIZE(kMaxCores), set.get());
  return set;
}

// Takes a number off the beginning.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || text.starts_with('-')) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

std::string nodes_folder(const std::string& root) {
  return root + "/sys/devices/system/node";
}

std::vector<int> online_nodes(const std::string& root) {
  std::vector<int> nodes;
  std::error_code error;
  for (std::filesystem::directory_iterator at(nodes_folder(root), error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::string_view number = name;
    if (!number.starts_with("node")) continue;
    number.remove_prefix(4);
    const std::optional<int> node = take_number(number);
    if (node && number.empty()) nodes.push_back(*node);
  }
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

std::string node_file(int node, const char* name, const std::string& root) {
  return nodes_folder(root) + "/node" + std::to_string(node) + "/" + name;
}

}  // namespace

std::vector<int> online_cores() {
  const std::size_t set_bytes = CPU_ALLOC_SIZE(kMaxCores);
  const CoreSet set = new_set();
  std::vector<int> cores;
  if (sched_getaffinity(0, set_bytes, set.get()) == 0) {
    for (int core = 0; core < kMaxCores; ++core) {
      if (CPU_ISSET_S(core, set_bytes, set.get())) cores.push_back(core);
    }
  }
  if (cores.empty()) cores.push_back(0);
  return cores;
}

int current_core() {
  return sched_getcpu();
}

Status pin_to_core(int core) {
  return run_on({&core, 1});
}

Status run_on(std::span<const int> cores) {
  const std::size_t set_bytes = CPU_ALLOC_SIZE(kMaxCores);
  const CoreSet set = new_set();
  for (const int core : cores) {
    if (core < 0 || core >= kMaxCores) {
      return Error::make(Code::kInvalidArgument, "core: %d is not in 0..%d", core, kMaxCores - 1);
    }
    CPU_SET_S(core, set_bytes, set.get());
  }
  if (sched_setaffinity(0, set_bytes, set.get()) != 0) {
    return Error::from_errno(errno, "core: pinning to %zu, the first of them %d", cores.size(),
                             cores.empty() ? -1 : cores[0]);
  }
  return {};
}

std::optional<std::vector<int>> parse_cores(std::string_view text) {
  std::set<int> cores;
  for (;;) {
    const std::optional<int> first = take_number(text);
    if (!first) return std::nullopt;
    std::optional<int> last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      last = take_number(text);
    }
    if (!last || *last < *first || *last >= kMaxCores) return std::nullopt;
    for (int core = *first; core <= *last; ++core) cores.insert(core);
    if (text.empty()) return std::vector<int>(cores.begin(), cores.end());
    if (!text.starts_with(',')) return std::nullopt;
    text.remove_prefix(1);
  }
}

std::optional<int> node_of_dax(const std::string& name, const std::string& root) {
  int node = -1;
  std::ifstream(root + "/sys/bus/dax/devices/" + name + "/numa_node") >> node;
  if (node < 0) return std::nullopt;
  return node;
}

std::optional<int> node_of_page(const std::byte* at) {
  int node = -1;
  if (syscall(SYS_get_mempolicy, &node, nullptr, 0, at, MPOL_F_NODE | MPOL_F_ADDR) != 0 || node < 0)
    return std::nullopt;
  return node;
}

std::vector<int> cores_of_node(int node, const std::string& root) {
  std::string text;
  std::ifstream(node_file(node, "cpulist", root)) >> text;
  return parse_cores(text).value_or(std::vector<int>());
}

std::vector<int> nodes_with_cores(const std::string& root) {
  std::vector<int> nodes = online_nodes(root);
  std::erase_if(nodes, [&](int node) { return cores_of_node(node, root).empty(); });
  return nodes;
}

std::optional<int> nearest_node_with_cores(int node, const std::string& root) {
  if (!cores_of_node(node, root).empty()) return node;
  // One distance for each node that is online, in their order.
  std::ifstream distances(node_file(node, "distance", root));
  std::optional<int> nearest;
  int least = 0;
  for (const int other : online_nodes(root)) {
    int distance = 0;
    if (!(distances >> distance)) return std::nullopt;
    if (cores_of_node(other, root).empty() || (nearest && distance >= least)) continue;
    nearest = other;
    least = distance;
  }
  return nearest;
}

}  // namespace cachalot::os
