// The keeper areas of a pool, and the locks by which processes take them.
//
// Each area has a lock, which ends with the process that holds it: the keeper that may rule holds the lock of
// the ruling area. A process holds the succession lock from the look at the areas until its keeper has
// announced itself, and again while the keeper declares its takeover finished. So an announcing keeper knows
// whether its predecessor has finished, that is, which ledger counts. The lock is free in between: a keeper that stalls in its
// takeover is seen to stall, and another one can take over from it.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <vector>

#include "os/file_lock.h"
#include "os/shared_file.h"
#include "pool/format/access.h"

namespace cachalot::pool {

// kOverTheLiving: also from a keeper whose process runs, as one that stalls.
enum class Succession { kOfTheDead, kOverTheLiving };

class KeeperAreas {
 public:
  static constexpr std::uint32_t kPatienceMs = 5'000;

  // @param first_file  of the pool; its name is in all errors
  KeeperAreas(const Access& access, const os::SharedFile& first_file)
      : access_(&access), file_(&first_file) {}

  // Blocks while another process holds it, for `patience_ms`. @errors kBusy
  Result<os::FileLock> lock_succession(std::uint32_t patience_ms = kPatienceMs) const;

  // The areas that a keeper on `host` cannot have, a bit each: those whose keepers' processes still run, and in a pool of
  // several hosts the other host's.
  // @errors kBusy: a keeper rules, here or on another machine; kInvalidArgument: no keeper runs on that host
  Result<std::uint32_t> find_in_use(Succession succession, std::uint32_t host) const;
  // The area that a keeper will take if those `in_use` are not free. @errors kBusy: none is free
  Result<std::uint32_t> find_free(std::uint32_t in_use) const;
  Result<os::FileLock> lock(std::uint32_t area) const;
  // @errors kBusy: a keeper serves this pool
  Result<std::vector<os::FileLock>> lock_all() const;

  const char* pool_name() const { return file_->path().c_str(); }

 private:
  Result<std::uint32_t> find_areas_of_others(Succession succession, std::uint32_t host) const;
  // That no area is free: names the keepers that were taken over from and still run.
  Error all_in_use() const;

  const Access* access_;
  const os::SharedFile* file_;
};

}  // namespace cachalot::pool
