// Checks and repairs a pool by its paths: `cachalot pool fsck`.
//
// A repair is a takeover (keeper/takeover) with all payloads verified: it keeps what the next keeper would keep and
// has the right bytes, and writes every line of directory and ledger again. Before it the headers are mended, after
// it the lines that a takeover leaves alone (mend.h).
//
// @threads one; it starts others for payloads
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <vector>

#include "pool/check/fault.h"
#include "pool/check/pool_check.h"

namespace cachalot::pool {

struct FsckOptions {
  bool payloads = true;         // verify payloads and notes
  std::uint32_t host = 0;       // this machine's number, for a repair of a pool of several machines
  std::uint32_t messages = 10;  // faults of a kind that are kept with their places
};

// Which keeper serves the pool while it is checked.
enum class KeeperPlace { kNone, kHere, kElsewhere };

struct FsckReport {
  std::vector<std::string> paths;        // of all devices that the pool was made with
  std::vector<std::string> added_paths;  // and of those that it got later
  KeeperPlace keeper = KeeperPlace::kNone;
  // False: the devices cannot be read as a pool, and only their headers were checked.
  bool is_whole = false;
  // The machine was restarted and the last keeper had not stopped in order: the next one drops blocks that no
  // checksum proves (keeper/takeover).
  bool is_unproven = false;
  std::uint32_t blocks = 0;  // of the pool
  CheckReport check;
  std::vector<Fault> faults;  // the first of each kind, remnants too
  std::vector<std::uint64_t> counts = std::vector<std::uint64_t>(kFaultKinds);

  const std::string& path_of(std::uint32_t device) const {
    return device < paths.size() ? paths[device] : added_paths[device - paths.size()];
  }
  std::uint64_t count_faults() const { return count(false); }
  std::uint64_t count_remnants() const { return count(true); }

 private:
  std::uint64_t count(bool of_remnants) const;
};

// Only reads; a keeper may serve the pool.
// @errors as check_headers() and MappedPool::open_as
Result<FsckReport> check_pool_at(const std::vector<std::string>& paths, const FsckOptions& options);

// What was found, what was done, and what a second check finds.
struct RepairReport {
  FsckReport before, after;
  bool was_taken_over = false;  // else nothing was written
  std::uint32_t mended_lines = 0;
};

// Does nothing if the pool has neither faults nor remnants, or cannot be read as one.
// @errors as above; kBusy: a keeper serves the pool; as Pool::serve
Result<RepairReport> repair_pool_at(const std::vector<std::string>& paths,
                                    const FsckOptions& options);

}  // namespace cachalot::pool
