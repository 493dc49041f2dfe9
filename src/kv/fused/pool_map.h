// Where pool memory is for a device: host addresses to the device's. Nothing outside of what was added
// is reached by a copy; that is checked for every extent before a launch. Neighbours of the host's may be
// apart on the device, so an extent may lie in several ranges.
//
// @threads  any; what a copy uses is not removed before its end
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <shared_mutex>

#include "memory/copy_run.h"

namespace cachalot::kv {

// As far as one range goes.
struct PoolPart {
  std::uint64_t at, bytes;  // the device's address
};

class PoolMap {
 public:
  // @errors kInvalidArgument: it overlaps what is there
  Status add(const std::byte* at, std::uint64_t bytes, std::uint64_t device);
  bool remove(const std::byte* at);

  // @errors kInvalidArgument: not all of it is in one range that was added
  Result<std::uint64_t> find(const memory::Extent& extent) const;
  // Where its first bytes are; the next ones are found from there. @errors kInvalidArgument: in no range
  Result<PoolPart> find_part(const memory::Extent& extent) const;

 private:
  struct Range {
    std::uint64_t bytes, device;
  };
  mutable std::shared_mutex mutex_;        // a pool grows while copies find their places
  std::map<std::uint64_t, Range> ranges_;  // by host address
};

}  // namespace cachalot::kv
