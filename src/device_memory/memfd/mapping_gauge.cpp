#include "device_memory/memfd/mapping_gauge.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <fstream>

#include "os/file_descriptor.h"

namespace cachalot::device_memory {

std::uint64_t MappingGauge::limit() const {
  constexpr std::uint64_t kDefault = 65530;
  std::ifstream file(root_ + "/proc/sys/vm/max_map_count");
  std::uint64_t limit = 0;
  return file >> limit ? limit : kDefault;
}

// The lines of /proc/self/maps. Without one, nothing is known and the kernel decides.
std::uint64_t MappingGauge::count() const {
  const os::FileDescriptor file(open((root_ + "/proc/self/maps").c_str(), O_RDONLY | O_CLOEXEC));
  std::uint64_t lines = 0;
  std::array<char, 16384> text;
  for (ssize_t bytes; (bytes = read(file.get(), text.data(), text.size())) > 0;) {
    lines += static_cast<std::uint64_t>(std::count(text.data(), text.data() + bytes, '\n'));
  }
  return lines;
}

Status MappingGauge::admit(const char* call) {
  if (calls_left_.fetch_sub(1, std::memory_order_relaxed) > 0) return {};
  const std::lock_guard lock(counting_);
  // Another thread may have counted meanwhile.
  if (calls_left_.fetch_sub(1, std::memory_order_relaxed) > 0) return {};
  const std::uint64_t allowed = limit(), used = count();
  const std::uint64_t most = allowed - allowed / kSparePart;
  const std::uint64_t left = most - std::min(most, used);
  if (left < kMappingsOfACall) return full(call, used, allowed);
  // A quarter of what is left is for others: they add mappings, too.
  calls_left_.store(static_cast<std::int64_t>(left * 3 / 4 / kMappingsOfACall),
                    std::memory_order_relaxed);
  return {};
}

Error MappingGauge::refused(const char* call) const {
  return full(call, count(), limit());
}

Error MappingGauge::full(const char* call, std::uint64_t used, std::uint64_t allowed) {
  Error error =
      Error::make(Code::kNoSpace,
                  "%s: this process has %" PRIu64 " mappings and the kernel allows %" PRIu64
                  " (vm.max_map_count), 1/%" PRIu64
                  " of them spared; expected fewer: larger handles, or neighbours created "
                  "in a row",
                  call, used, allowed, kSparePart);
  error.detail = allowed;
  return error;
}

}  // namespace cachalot::device_memory
