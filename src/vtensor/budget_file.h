// The file that processes share a device by. It records the owner of each credit; memory itself is not in it.
//
//      0  magic  8 | version 4 | slots 4 | credits 8 | chunk_bytes 8 | given 4 | 0
//     64  slot 0, 128 bytes: used 4 | asks 4 | guarantee 8 | held 8 | wanted 8 | pid 4 | 0
//                       +64  asked_by 16 * 4
//    192  slot 1 …
//   2112  credits: a byte each, 0 or the number of its owner's slot and 1
//
// The user of slot i holds the file lock on byte kSlotLock + i for as long as its process lives, so
// the kernel itself says which process is dead. Slots are taken and left with the lock on byte kDoorLock held.
#pragma once

#include <cachalot/result.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "os/file_lock.h"
#include "os/shared_file.h"

namespace cachalot::vtensor {

inline constexpr std::uint32_t kBudgetSlots = 16;
inline constexpr std::uint64_t kMostCredits = std::uint64_t{1} << 30;

// Of a slot, what others read. held and wanted are for their decisions only: what counts are the
// credits' bytes.
struct BudgetSlot {
  std::atomic<std::uint32_t> used;
  std::atomic<std::uint32_t> asks;  // how often others have asked; its owner sleeps on it
  std::atomic<std::uint64_t> guarantee;
  std::atomic<std::uint64_t> held;    // written by its owner
  std::atomic<std::uint64_t> wanted;  // written by its owner: of its guarantee, what it waits for
  std::atomic<std::uint32_t> pid;     // for people
  std::uint32_t reserved[7];
  std::atomic<std::uint32_t> asked_by[kBudgetSlots];  // [i]: what slot i would like to have back
};
static_assert(sizeof(BudgetSlot) == 128);

struct BudgetHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t slot_count;
  std::uint64_t credits;
  std::uint64_t chunk_bytes;
  // counts returned credits; a process that waits for memory sleeps on it
  std::atomic<std::uint32_t> given;
  std::uint32_t reserved[7];
  BudgetSlot slots[kBudgetSlots];
};
static_assert(sizeof(BudgetHeader) == 64 + kBudgetSlots * 128);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint8_t>::is_always_lock_free);

class BudgetFile {
 public:
  static constexpr std::uint64_t kSlotLock = std::uint64_t{1} << 40;
  static constexpr std::uint64_t kDoorLock = kSlotLock + kBudgetSlots;

  // Opens the file, or makes it complete: no process ever sees half of one. What is there
  // may have other sizes.
  // @param  path     of a file, or shm:NAME
  // @param  credits  0: the file must be there
  // @errors kNotFound; kCorrupt: not a budget; kVersionMismatch; kInvalidArgument: too many credits
  static Result<BudgetFile> open(const std::string& path, std::uint64_t credits,
                                 std::uint64_t chunk_bytes);
  // @param credits  0: any  @errors kInvalidArgument
  Status check_sizes(std::uint64_t credits, std::uint64_t chunk_bytes) const;

  // Joins and leaves are serialised. @errors kBusy: after 5 s
  Result<os::FileLock> enter() const;
  // @errors kBusy: its process lives
  Result<os::FileLock> lock_slot(std::uint32_t slot) const;

  // Whether the path still leads to this file: its last user has removed it otherwise.
  bool is_linked() const;
  Status remove() const { return file_.remove(); }

  // As they were when it was opened: a write to the file by mistake moves no bounds.
  std::uint64_t credits() const { return credits_; }
  std::uint64_t chunk_bytes() const { return chunk_bytes_; }
  BudgetHeader& header() const { return *reinterpret_cast<BudgetHeader*>(mapping_.data()); }
  std::atomic<std::uint8_t>* owners() const {
    return reinterpret_cast<std::atomic<std::uint8_t>*>(mapping_.data() + sizeof(BudgetHeader));
  }
  const std::string& path() const { return file_.path(); }

 private:
  BudgetFile(os::SharedFile file, os::Mapping mapping)
      : file_(std::move(file)), mapping_(std::move(mapping)) {
    credits_ = header().credits;
    chunk_bytes_ = header().chunk_bytes;
  }
  static Result<BudgetFile> open_existing(const std::string& path);
  Status check() const;

  os::SharedFile file_;
  os::Mapping mapping_;
  std::uint64_t credits_ = 0;
  std::uint64_t chunk_bytes_ = 0;
};

}  // namespace cachalot::vtensor
