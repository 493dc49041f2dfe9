// Where the hardware benchmarks measure: in memory of this machine, or on the devices that --device names.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <utility>

#include "measure.h"
#include "memory/devices.h"

namespace cachalot::apps::bench {

// Files that were made for the benchmark go with it.
class TestedDevices {
 public:
  // The first `wanted` of --device, or as many in memory.
  // @errors kInvalidArgument: fewer were named; kBusy: one holds a pool; as memory::DeviceSet::create
  static Result<TestedDevices> take(const Settings& settings, std::uint32_t wanted,
                                    std::uint64_t bytes_each);
  TestedDevices(TestedDevices&&) = default;
  TestedDevices& operator=(TestedDevices&&) = delete;
  ~TestedDevices() { (void)devices_.remove(); }

  std::byte* base(std::uint32_t device) const { return devices_.base(device); }
  const memory::DeviceSet& all() const { return devices_; }

 private:
  explicit TestedDevices(memory::DeviceSet devices) : devices_(std::move(devices)) {}
  memory::DeviceSet devices_;
};

}  // namespace cachalot::apps::bench
