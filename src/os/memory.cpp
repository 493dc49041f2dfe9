#include "os/memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <optional>

namespace cachalot::os {
namespace {

constexpr std::uint64_t kUnlimited = ~std::uint64_t{0};

// The file's only number; none: it is not there, or says "max".
std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  if (file >> number) return number;
  return {};
}

// The sum of the lines of a "NAME NUMBER" file that have one of these names.
std::uint64_t sum_in(const std::string& path, const char* first, const char* second) {
  std::ifstream file(path);
  std::string name;
  std::uint64_t number = 0, sum = 0;
  while (file >> name >> number) {
    if (name == first || name == second) sum += number;
  }
  return sum;
}

// How the two versions call the same things.
struct Names {
  const char* folder;
  const char* limit;
  const char* usage;
  const char* active_file;
  const char* inactive_file;
};
constexpr Names kVersion1{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                          "total_active_file", "total_inactive_file"};
constexpr Names kVersion2{"/sys/fs/cgroup", "memory.max", "memory.current", "active_file",
                          "inactive_file"};

void narrow(AvailableMemory& available, const std::string& folder, const std::string& path,
            const Names& names) {
  const auto limit = number_in(folder + "/" + names.limit);
  const auto usage = number_in(folder + "/" + names.usage);
  if (!limit || !usage) return;
  const std::uint64_t given_back =
      sum_in(folder + "/memory.stat", names.active_file, names.inactive_file);
  const std::uint64_t used = *usage - std::min(*usage, given_back);
  const std::uint64_t left = *limit - std::min(*limit, used);
  if (left >= available.bytes) return;
  available = {left, "control group " + (path.empty() ? "/" : path), *limit};
}

// A limit holds for all groups below it. In a container the path may be one of the machine's that is
// not seen here: then it is the mount's root that limits it.
void narrow_by_all(AvailableMemory& available, const std::string& root, std::string path,
                   const Names& names) {
  while (!path.empty() && path.back() == '/') path.pop_back();
  for (;;) {
    narrow(available, root + names.folder + path, path, names);
    if (path.empty()) return;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

std::uint64_t available_machine_bytes(const std::string& root) {
  std::FILE* file = std::fopen((root + "/proc/meminfo").c_str(), "re");
  if (file == nullptr) return kUnlimited;
  std::uint64_t total_kib = 0, kib = 0;
  char line[256];
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1) total_kib += kib;
    if (std::sscanf(line, "SwapFree: %" SCNu64, &kib) == 1) total_kib += kib;
  }
  std::fclose(file);
  return total_kib * 1024;
}

AvailableMemory available_memory(const std::string& root) {
  AvailableMemory available{available_machine_bytes(root), "this machine", kUnlimited};
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // NUMBER:CONTROLLERS:PATH; version 2 is 0 and has no controllers.
    const std::size_t second = line.find(':', line.find(':') + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(line.find(':') + 1, second - line.find(':') - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) narrow_by_all(available, root, path, kVersion2);
    if (("," + controllers + ",").find(",memory,") != std::string::npos)
      narrow_by_all(available, root, path, kVersion1);
  }
  return available;
}

std::uint64_t address_space_limit() {
  rlimit limit{};
  const bool is_limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return is_limited ? limit.rlim_cur : kUnlimited;
}

}  // namespace cachalot::os
