// Virtual memory of a device, as its driver gives it: address ranges, physical memory known by
// handles, and maps between the two. What stands on it (stitching allocator, vTensor) is written once
// and runs on CPU memory, on a GPU, or on no memory at all.
//
//   backend | memory                           | for
//   memfd   | pages of a memfd or tmpfs file   | tests with real bytes; machines without a GPU
//   cuda    | a GPU's, by the driver's API     | use
//   model   | none                             | replays: counts calls, charges published costs
//
// The rules are CUDA's. Calls that break them fail on every backend, before anything is changed:
//
// 1. Sizes and places are multiples of granularity_bytes(); a handle is mapped whole, or not at all.
// 2. A range is reserved and freed whole; it is freed only when nothing is mapped in it.
// 3. A place is mapped once; a handle may be mapped at many places, which all show the same bytes.
// 4. Mapped memory cannot be touched before set_access() has named it. Access is set for, and
//    unmap() takes, whole mappings of one range: one or several that lie side by side without a gap.
// 5. Physical memory is freed when its handle was released and its last mapping was undone,
//    whichever is later. A released handle cannot be mapped again.
//
// This class keeps the rules, the counts and the limit (AddressBook); a backend only does the work.
// A device that fails leaves the book as it was, unless the call says otherwise.
//
// @threads any thread may call anything at any time, except that calls on one range come one at a
//          time: one that meets another is refused (kBusy). No lock is held while the device works,
//          so a slow create() in the background delays no call.
// @source  CUDA driver API, virtual memory management (cuMemAddressReserve, cuMemCreate, cuMemMap, …)
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "device_memory/address_book.h"
#include "device_memory/call_counts.h"
#include "device_memory/types.h"

namespace cachalot::device_memory {

class Backend {
 public:
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // "memfd", "cuda", "model".
  virtual const char* name() const = 0;
  // What its memory is made of, for people: the page mode that is active, the device.
  virtual std::string description() const = 0;
  // The smallest handle: 2 MiB on every device so far.
  std::uint64_t granularity_bytes() const { return granularity_bytes_; }

  // Addresses without memory. @errors kInvalidArgument: rule 1; kNoSpace: no address space
  Result<Address> reserve(std::uint64_t bytes);
  // Gives back what reserve() returned. @errors kInvalidArgument: rule 2
  Status free_range(Address range);

  // Physical memory. @errors kInvalidArgument: rule 1; kNoSpace: the limit or the device is full
  Result<Handle> create(std::uint64_t bytes);
  // Rule 5. @errors kInvalidArgument: no such handle; of the device: the handle is gone all the
  //         same, and its bytes stay counted
  Status release(Handle handle);

  // Of a handle that was not released. @errors kInvalidArgument: no such handle
  Result<HandleInfo> info(Handle handle);

  // @errors kInvalidArgument: rules 1, 3 and 5; kNoSpace: the kernel's mappings are used up (memfd)
  Status map(Address at, Handle handle);
  // @errors kInvalidArgument: rule 4; kNoSpace as in map(): the span's access is then undefined
  Status set_access(Address at, std::uint64_t bytes, Access access);
  // @errors kInvalidArgument: rule 4; kNoSpace as in map(), when a mapping in the middle is taken.
  //         If the device does not take back memory that was waiting for this (rule 5), that is
  //         the error; the mappings are undone all the same, and the bytes stay counted.
  Status unmap(Address at, std::uint64_t bytes);

  // No more physical memory than that; 0 (the start): as much as there is.
  void set_limit_bytes(std::uint64_t bytes);

  CallCounts counts() const;             // calls that succeeded
  std::uint64_t physical_bytes() const;  // that exists now
  std::uint64_t reserved_bytes() const;  // address ranges
  std::uint64_t mapped_bytes() const;    // each mapping counts

 protected:
  explicit Backend(std::uint64_t granularity_bytes)
      : granularity_bytes_(granularity_bytes), book_(granularity_bytes) {}

  // What a live handle stands for. @errors kInvalidArgument, named by `call`
  Result<Memory> memory_of(const char* call, Handle handle);

  // Unmaps, releases and frees whatever is left. For the destructor of a backend, which still can.
  void undo_all();

  // The work. The arguments keep the rules. Several threads may be inside at once.
  virtual Result<Address> do_reserve(std::uint64_t bytes) = 0;
  virtual Status do_free(Address range, std::uint64_t bytes) = 0;
  // @return the backend's own number of the memory: Memory::native
  virtual Result<std::uint64_t> do_create(std::uint64_t bytes) = 0;
  // Called once, when both halves of rule 5 have come true: nothing maps the memory any more.
  virtual Status do_release(const Memory& memory) = 0;
  virtual Status do_map(Address at, const Memory& memory) = 0;
  virtual Status do_set_access(const Span& span, Access access) = 0;
  virtual Status do_unmap(const Span& span) = 0;

 private:
  Status give_back(const std::vector<Memory>& freed);

  const std::uint64_t granularity_bytes_;
  mutable std::mutex mutex_;  // of all below
  AddressBook book_;
  CallCounts counts_;
};

}  // namespace cachalot::device_memory
