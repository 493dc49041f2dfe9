// Virtual memory of a device, as its driver gives it: address ranges, physical memory known by
// handles, and maps between the two. What stands on it (stitching allocator, vTensor) is written once
// and runs on CPU memory, on a GPU, or on no memory at all.
//
//   backend | memory                           | for
//   memfd   | pages of a memfd or tmpfs file   | tests with real bytes; machines without a GPU
//   cuda    | a GPU's, by the driver's API     | use
//   model   | none                             | replays: counts calls, charges published costs
//
// The rules are CUDA's, and calls that break them fail on every backend, before anything is changed:
//
// 1. Sizes and places are multiples of granularity_bytes(); a handle is mapped whole, or not at all.
// 2. A range is reserved and freed whole; it is freed only when nothing is mapped in it.
// 3. A place is mapped once; a handle may be mapped at many places, which all show the same bytes.
// 4. Mapped memory cannot be touched before set_access() has named it. Access is set for, and
//    unmap() takes, whole mappings: one or several that lie side by side without a gap.
// 5. Physical memory is freed when its handle was released and its last mapping was undone,
//    whichever is later. A released handle cannot be mapped again.
//
// @threads any thread may call anything at any time; calls that name the same range one at a time
// @source  CUDA driver API, virtual memory management (cuMemAddressReserve, cuMemCreate, cuMemMap, …)
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <mutex>

#include "vmm/address_book.h"
#include "vmm/call_counts.h"

namespace cachalot::vmm {

// An address of the device. On memfd it is an address of this process.
using Address = std::uint64_t;

enum class Access : std::uint8_t { kNone, kRead, kReadWrite };

// Names physical memory of one create(); 0 names none.
struct Handle {
  std::uint64_t value = 0;
  explicit operator bool() const { return value != 0; }
  bool operator==(const Handle&) const = default;
};

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
  virtual std::uint64_t granularity_bytes() const = 0;

  // Addresses without memory. @errors kInvalidArgument; kNoSpace: no address space
  Result<Address> reserve(std::uint64_t bytes);
  // Gives back what reserve() returned. @errors kInvalidArgument: rule 2
  Status free_range(Address range);

  // Physical memory. @errors kInvalidArgument; kNoSpace: the limit or the device is full
  Result<Handle> create(std::uint64_t bytes);
  // Rule 5. @errors kInvalidArgument: no such handle
  Status release(Handle handle);

  // @errors kInvalidArgument: rules 1 and 3; kNoSpace: the kernel's mappings are used up (memfd)
  Status map(Address at, Handle handle);
  // @errors kInvalidArgument: rule 4
  Status set_access(Address at, std::uint64_t bytes, Access access);
  Status unmap(Address at, std::uint64_t bytes);

  // No more physical memory than that; 0 (the start): as much as there is.
  void set_limit_bytes(std::uint64_t bytes);

  CallCounts counts() const;              // calls that succeeded
  std::uint64_t physical_bytes() const;   // that exists now
  std::uint64_t reserved_bytes() const;   // address ranges
  std::uint64_t mapped_bytes() const;     // each mapping counts
};

}  // namespace cachalot::vmm
