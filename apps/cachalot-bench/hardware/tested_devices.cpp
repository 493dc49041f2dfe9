#include "tested_devices.h"

#include <string>
#include <vector>

#include "pool/expansion/occupied.h"

namespace cachalot::apps::bench {
Result<TestedDevices> TestedDevices::take(const Settings& settings, std::uint32_t wanted,
                                          std::uint64_t bytes_each) {
  std::vector<std::string> paths = settings.devices;
  if (paths.empty()) {
    for (std::uint32_t i = 0; i < wanted; ++i) paths.push_back("memfd:bench" + std::to_string(i));
  }
  if (paths.size() < wanted) {
    return Error::make(Code::kInvalidArgument, "--device: %zu were named, expected %u",
                       paths.size(), wanted);
  }
  paths.resize(wanted);
  // A device is written over as it is.
  for (const std::string& path : settings.devices)
    CACHALOT_TRY(pool::check_unoccupied(path, bytes_each));
  CACHALOT_TRY_ASSIGN(memory::DeviceSet devices, memory::DeviceSet::create(paths, bytes_each));
  return TestedDevices(std::move(devices));
}

}  // namespace cachalot::apps::bench
