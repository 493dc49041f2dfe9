// The devices of a pool: an ordered set of shared files of one size, mapped.
//
// 1. The order is part of the pool: all processes give the paths in the same order.
// 2. No file is in the set twice.
// 3. Every device has bytes_each() mapped bytes, a multiple of 2 MiB.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "memory/interleave.h"
#include "memory/pool_view.h"
#include "os/mapping.h"
#include "os/shared_file.h"

namespace cachalot::memory {

class DeviceSet {
 public:
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 62;

  // Makes the files with all their space, and maps them; devdax devices are taken as they are. When
  // one cannot be made, those made before are removed again.
  // @param  paths       as in os/shared_file.h, at least one
  // @param  bytes_each  a multiple of 2 MiB, not 0
  // @param  first_named  as os::CreateOptions::named, of the first file
  // @errors kInvalidArgument; kBusy: exists; kNoSpace; kPermission
  static Result<DeviceSet> create(const std::vector<std::string>& paths, std::uint64_t bytes_each,
                                  const os::MapOptions& options = {},
                                  std::function<void(int fd)> first_named = {});

  // Opens and maps what is there, as many bytes of each as the smallest has, at most `most_bytes`. What a pool's
  // header says goes into require_bytes() then.
  // @errors kInvalidArgument; kNotFound; kPermission; kBadInput: less than 2 MiB
  static Result<DeviceSet> open(const std::vector<std::string>& paths,
                                const os::MapOptions& options = {},
                                os::Owners owners = os::Owners::kAny,
                                std::uint64_t most_bytes = kMostBytes);

  std::uint32_t count() const { return static_cast<std::uint32_t>(devices_.size()); }
  std::uint64_t bytes_each() const { return bytes_each_; }
  std::byte* base(std::uint32_t device) const { return devices_[device].mapping.data(); }
  const os::SharedFile& file(std::uint32_t device) const { return devices_[device].file; }
  os::PageMode page_mode(std::uint32_t device) const {
    return devices_[device].mapping.page_mode();
  }
  PoolView view() const;

  // Looks at all sizes again. @errors kCorrupt: names the device that has fewer bytes than it must
  Status require_bytes(std::uint64_t bytes_each) const;

  // Removes the files' names; mappings, here and elsewhere, live on. Goes on after a failure.
  // @errors the first failure
  Status remove();

 private:
  struct Device {
    os::SharedFile file;
    os::Mapping mapping;
  };
  Status add(os::SharedFile file);
  Status map_all(const os::MapOptions& options);

  std::vector<Device> devices_;
  std::uint64_t bytes_each_ = 0;
};

}  // namespace cachalot::memory
