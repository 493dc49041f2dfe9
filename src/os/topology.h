// Cores: which there are, how to stay on one, how to wait on one, and which memory is near to which.
#pragma once

#include <cachalot/result.h>
#include <immintrin.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot::os {

// For the inside of a spin loop: gives the core's other thread the execution units.
inline void cpu_relax() {
  _mm_pause();
}

// The cores that this thread may run on, ascending; never empty.
std::vector<int> online_cores();

// The core that the calling thread runs on, or has just left; -1 where the kernel does not say.
// @cost a few ns
int current_core();

// Keeps the calling thread on one core. @errors kInvalidArgument: not one of online_cores()
Status pin_to_core(int core);

// Keeps the calling thread, and threads that it starts from here on, on these cores.
// @errors kInvalidArgument: one of them is no core's number, or none of them may be used
Status run_on(std::span<const int> cores);

// A set of cores as the kernel writes it, "0-3,8": ascending, each once. Nothing: the text is no such set.
std::optional<std::vector<int>> parse_cores(std::string_view text);

// Memory nodes, as the kernel numbers them. @param root  where /sys is looked for; for tests

// Of a devdax device ("dax0.0"). Nothing: the kernel does not say.
std::optional<int> node_of_dax(const std::string& name, const std::string& root = "");

// Of the page at an address, which is touched. Nothing: the kernel does not say, as in some containers.
std::optional<int> node_of_page(const std::byte* at);

// Those with cores, ascending: one on a machine with one socket.
std::vector<int> nodes_with_cores(const std::string& root = "");

// The node itself if it has cores. Of one that has none, as CXL memory: the nearest that has some. Nothing: there is none,
// or the kernel does not say how far they are.
std::optional<int> nearest_node_with_cores(int node, const std::string& root = "");

std::vector<int> cores_of_node(int node, const std::string& root = "");

}  // namespace cachalot::os
