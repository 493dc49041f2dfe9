#include "machine_checks.h"

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>

#include "os/memory.h"
#include "os/topology.h"
#include "values.h"

namespace cachalot::apps {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// The first line. Empty: it cannot be read.
std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    names.insert(at->path().filename().string());
  return {names.begin(), names.end()};
}

Finding memory(const std::string& root) {
  const os::AvailableMemory available = os::available_memory(root);
  const std::string by = available.limited_by.empty() ? "" : " (" + available.limited_by + ")";
  if (available.bytes == ~std::uint64_t{0})
    return {"memory", Health::kWarning, "nothing says how much there is",
            "mount /proc: a pool that is too large ends by the kernel's out-of-memory killer"};
  if (available.bytes < 256 * kMiB)
    return {"memory", Health::kWarning, bytes_text(available.bytes) + " left" + by,
            "a pool needs its whole capacity: raise the limit, or end other processes"};
  return {"memory", Health::kOk, bytes_text(available.bytes) + " left" + by};
}

// A container's /dev/shm has 64 MiB unless it is told otherwise.
Finding shared_memory(const std::string& root) {
  struct statvfs space {};
  const std::string path = root + "/dev/shm";
  if (statvfs(path.c_str(), &space) != 0)
    return {"shared_memory", Health::kFault, "/dev/shm is not there",
            "mount a tmpfs at /dev/shm, or put pools on another one that all engines see"};
  const std::uint64_t all = space.f_blocks * space.f_frsize, left = space.f_bavail * space.f_frsize;
  const std::string found = "/dev/shm has " + bytes_text(left) + " of " + bytes_text(all) + " left";
  if (all != 0 && left < 256 * kMiB)
    return {"shared_memory", Health::kWarning, found,
            "containers: --shm-size=SIZE, --ipc=host, or a volume of medium Memory; else mount -o "
            "remount,size=SIZE /dev/shm"};
  return {"shared_memory", Health::kOk, found};
}

// The pools' own pages: what `serve --huge-pages` and mappings ask for.
Finding huge_pages(const std::string& root) {
  const std::string line = line_of(root + "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  const auto begin = line.find('['), end = line.find(']');
  const std::string mode = begin == std::string::npos || end == std::string::npos
                               ? ""
                               : line.substr(begin + 1, end - begin - 1);
  if (mode.empty())
    return {"huge_pages", Health::kWarning, "the kernel has none for shared memory",
            "a kernel with CONFIG_TRANSPARENT_HUGEPAGE; without, loads of many blocks take longer"};
  if (mode == "never" || mode == "deny")
    return {"huge_pages", Health::kWarning, "switched off for shared memory (" + mode + ")",
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"};
  return {"huge_pages", Health::kOk, "for shared memory: " + mode};
}

std::string limit_text(rlim_t value) {
  return value == RLIM_INFINITY ? "unlimited" : bytes_text(value);
}

// Of interest to RDMA alone: the GPU's driver locks pages by itself.
Finding locked_memory(const std::string& root) {
  rlimit limit{};
  (void)getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string found = limit_text(limit.rlim_cur);
  const std::vector<std::string> adapters = names_in(root + "/sys/class/infiniband");
  if (adapters.empty())
    return {"locked_memory", Health::kOk, found + "; no RDMA adapter needs any"};
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= 1024 * kMiB)
    return {"locked_memory", Health::kOk, found};
  return {"locked_memory", Health::kWarning, found + ", and RDMA adapter " + adapters.front(),
          "for ucx: addresses: ulimit -l unlimited, or LimitMEMLOCK=infinity"};
}

Finding descriptors() {
  rlimit limit{};
  (void)getrlimit(RLIMIT_NOFILE, &limit);
  const std::string found =
      std::to_string(limit.rlim_cur) + ", at most " +
      (limit.rlim_max == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_max));
  if (limit.rlim_max < 4096)
    return {"descriptors", Health::kWarning, found,
            "storage in files and many peers need more: ulimit -n 65536, or LimitNOFILE=65536"};
  return {"descriptors", Health::kOk, found};
}

Finding processor(const std::string& root) {
  std::ifstream file(root + "/proc/cpuinfo");
  std::set<std::string> flags;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string word; words >> word;) flags.insert(word);
    break;
  }
  if (flags.empty())
    return {"processor", Health::kWarning, "/proc/cpuinfo names no flags",
            "an x86-64 with SSE4.2 is expected"};
  std::string found, missing;
  for (const char* const name : {"clflush", "clflushopt", "clwb", "avx2", "avx512f"}) {
    std::string& list = flags.contains(name) ? found : missing;
    list += std::string(list.empty() ? "" : " ") + name;
  }
  if (!flags.contains("sse4_2"))
    return {"processor", Health::kFault, "no sse4_2", "the programs do not run here"};
  if (!flags.contains("clflushopt"))
    return {"processor", Health::kWarning, "has " + found + "; lacks " + missing,
            "pools without coherence (--domain noncoherent) flush a line at a time here, which is "
            "slow; "
            "shared memory of one machine needs none"};
  return {"processor", Health::kOk, "has " + found + (missing.empty() ? "" : "; lacks " + missing)};
}

Finding clock(const std::string& root) {
  const std::string source =
      line_of(root + "/sys/devices/system/clocksource/clocksource0/current_clocksource");
  if (source.empty()) return {"clock", Health::kWarning, "its source is not known", "mount /sys"};
  if (source == "tsc" || source == "kvm-clock" || source.starts_with("hyperv"))
    return {"clock", Health::kOk, source};
  return {"clock", Health::kWarning, source,
          "each look at the clock is a system call, about a microsecond: a kernel with "
          "clocksource=tsc"};
}

Finding nodes(const std::string& root) {
  std::vector<std::string> names;
  for (const std::string& name : names_in(root + "/sys/devices/system/node"))
    if (name.starts_with("node")) names.push_back(name);
  if (names.size() <= 1) return {"memory_nodes", Health::kOk, "one"};
  std::string without_cores;
  for (const std::string& name : names) {
    if (line_of(root + "/sys/devices/system/node/" + name + "/cpulist").empty())
      without_cores += (without_cores.empty() ? "" : ", ") + name;
  }
  const std::string found =
      std::to_string(names.size()) +
      (without_cores.empty() ? "" : ", without cores (CXL or GPU memory): " + without_cores);
  return {"memory_nodes", Health::kOk, found,
          "a pool lies where its maker runs: numactl --membind=N or --interleave=all before `serve "
          "--create`"};
}

// The number of the node whose cores are near to a devdax device; empty: not known.
std::string node_near(const std::string& device, const std::string& root) {
  const std::optional<int> own = os::node_of_dax(device, root);
  if (!own) return "";
  const std::optional<int> near = os::nearest_node_with_cores(*own, root);
  return near ? std::to_string(*near) : "";
}

Finding dax(const std::string& root) {
  const std::string folder = root + "/sys/bus/dax/devices";
  std::string found;
  std::set<std::string> nodes_near;
  for (const std::string& name : names_in(folder)) {
    const std::string near = node_near(name, root);
    if (!near.empty()) nodes_near.insert(near);
    const std::string size = line_of(folder + "/" + name + "/size"),
                      align = line_of(folder + "/" + name + "/align");
    found +=
        (found.empty() ? "" : ", ") + name + " of " +
        (size.empty() ? "unknown size" : bytes_text(std::strtoull(size.c_str(), nullptr, 10))) +
        (align.empty() ? ""
                       : ", aligned to " + bytes_text(std::strtoull(align.c_str(), nullptr, 10))) +
        (near.empty() ? "" : ", near to node" + near);
    if (!fs::exists(root + "/dev/" + name))
      return {
          "dax_devices", Health::kFault, found + ": /dev/" + name + " is not there",
          "load device_dax, or pass the device into the container (--device /dev/" + name + ")"};
  }
  if (found.empty())
    return {"dax_devices", Health::kOk, "none (CXL and persistent memory as a device)"};
  std::string advice =
      "whether hosts see each other's writes without flushes is the switch's to say: give "
      "--domain noncoherent unless it is known";
  if (!nodes_near.empty() && os::nodes_with_cores(root).size() > 1) {
    advice +=
        "; copies by cores of another node cross between sockets: give engines copy_cpus=auto";
    if (nodes_near.size() == 1) {
      advice += ", or start them by numactl --cpunodebind=" + *nodes_near.begin();
    }
  }
  return {"dax_devices", Health::kOk, found, advice};
}

}  // namespace

Findings check_machine(const std::string& root) {
  return {memory(root),        shared_memory(root), huge_pages(root),
          locked_memory(root), descriptors(),       processor(root),
          clock(root),         nodes(root),         dax(root)};
}

}  // namespace cachalot::apps
