// The devices of one pool, mapped and checked, and the Access that keepers and clients are built on.
//
// 1. The devices are all those of one pool, in its order, each with the bytes that its header states.
// 2. Nothing of a file has to be allocated when it is touched: its holes were filled.
// 3. A growable pool's first device has addresses for all blocks behind it.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory/devices.h"
#include "pool/expansion/mapped_expansions.h"
#include "pool/format/access.h"

namespace cachalot::pool {

struct CreateOptions {
  std::vector<std::string> paths;  // one, or one per device
  Geometry geometry;               // device_bytes 0: as many as needed
  bool huge_pages = true;          // if they can be had
  bool populate = true;            // map all pages now, not at first touch
};

struct OpenOptions {
  bool huge_pages = true;
  bool populate = false;
  // Also a pool of another user than this one and root, or one that every user may write to.
  bool allow_foreign = false;
  // For programs that only look: attach() and serve() fail, and nothing is written.
  bool read_only = false;
};

class MappedPool {
 public:
  // @param  first_named  as memory::DeviceSet::create
  // @errors as Pool::create
  static Result<MappedPool> create(const CreateOptions& options,
                                   std::function<void(int fd)> first_named);
  // @errors as Pool::open; a pool that is still being made is kNotAPool or kCorrupt
  static Result<MappedPool> open(const std::vector<std::string>& paths, const OpenOptions& options);

  // The same where the first device's header is known already. The headers of the devices are not read: they may
  // be damaged.
  static Result<MappedPool> open_as(const Header& first, const std::vector<std::string>& paths,
                                    const OpenOptions& options);

  // The names still belong to the files that are mapped. @errors kStale: they do not
  Status check_still_there() const;
  // Removes the files' names. @errors as memory::DeviceSet::remove
  Status remove() { return devices_.remove(); }

  const Access& access() const { return *access_; }
  // Of a growable pool, else null.
  MappedExpansions* expansions() const { return expansions_.get(); }
  const memory::DeviceSet& devices() const { return devices_; }
  const os::SharedFile& first_file() const { return devices_.file(0); }
  std::uint64_t created_unix_s() const { return created_unix_s_; }

 private:
  explicit MappedPool(memory::DeviceSet devices) : devices_(std::move(devices)) {}

  // What all ways to an Access end with.
  Status finish(const PoolId& id, const Geometry& geometry, bool read_only, os::Owners owners);

  memory::DeviceSet devices_;
  std::unique_ptr<memory::Domain> domain_;
  std::unique_ptr<MappedExpansions> expansions_;  // in the addresses of devices_
  std::unique_ptr<Access> access_;  // callers may keep its address when the pool is moved
  std::uint64_t created_unix_s_ = 0;
};

// The paths of a pool's devices: `paths` itself, or PATH, PATH.1, … if it names only the first.
std::vector<std::string> device_paths(const std::vector<std::string>& paths, std::uint32_t devices);

}  // namespace cachalot::pool
