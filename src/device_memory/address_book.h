// Which ranges, handles and mappings there are, and which calls may change that: the rules of
// backend.h, apart from any device.
//
// 1. What is refused has changed nothing.
// 2. A call is written down before the device does its work (begin_x) and finished or taken back
//    after it, so that the lock need not be held meanwhile: a driver takes up to a millisecond.
//    Memory that is being mapped counts as mapped: it is not freed.
// 3. While a call on a range is in flight the range is busy, and another call on it is refused.
//
// A range is found by address in an ordered map, a mapping by its place in the range (PlaceTable), a
// handle by hash: no call looks at more than what it names.
//
// @threads one at a time
// @cost    O(log ranges), and O(1) for each granule that is mapped or undone
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "device_memory/place_table.h"
#include "device_memory/types.h"

namespace cachalot::device_memory {

class AddressBook {
 public:
  struct Physical {
    Memory memory;
    Handle handle;
    std::uint64_t mappings = 0;
    bool released = false;
  };
  struct Range {
    Range(Address begin, std::uint64_t size, std::uint64_t places)
        : at(begin), bytes(size), table(places) {}
    const Address at;
    const std::uint64_t bytes;
    bool busy = false;
    PlaceTable<Physical> table;
  };
  // Calls in flight, and the range that each keeps busy.
  struct MapCall {
    Address at = 0;
    Memory memory;
    Range* range = nullptr;
  };
  struct SpanCall {
    Span span;
    Range* range = nullptr;
  };

  explicit AddressBook(std::uint64_t granularity_bytes) : granularity_bytes_(granularity_bytes) {}

  // More than any device's addresses, 128 TiB of granules of 2 MiB: it bounds a range's table.
  static constexpr std::uint64_t kMaxRangePlaces = std::uint64_t{1} << 26;

  // @errors kInvalidArgument: rule 1; kNoSpace: above kMaxRangePlaces
  Status check_reserve(std::uint64_t bytes) const;
  void add_range(Address range, std::uint64_t bytes);
  // Takes it out of the book; add_range() puts it back.
  // @return its bytes  @errors kInvalidArgument: rule 2; kBusy
  Result<std::uint64_t> remove_range(Address at);

  // Counts the bytes as there, within the limit. @errors kInvalidArgument: rule 1; kNoSpace
  Status begin_create(std::uint64_t bytes);
  Handle finish_create(Memory memory);
  // They are not there (any more): creation failed, or the device took back what it gave.
  void bytes_gone(std::uint64_t bytes) { physical_bytes_ -= bytes; }

  // @param  name  of the call, for messages  @errors kInvalidArgument: released, or never created
  Result<Physical*> find_live(const char* name, Handle handle);
  // Rule 5. `freed` takes what the device is now to take back. @errors kInvalidArgument
  Status release(Handle handle, std::vector<Memory>* freed);

  // @errors kInvalidArgument: rules 1, 3 and 5; kBusy
  Result<MapCall> begin_map(Address at, Handle handle);
  void finish_map(const MapCall& call) { end(call.range); }
  void cancel_map(const MapCall& call, std::vector<Memory>* freed);

  // @errors kInvalidArgument: rule 4; kBusy
  Result<SpanCall> begin_span(const char* name, Address at, std::uint64_t bytes);
  void finish_span(const SpanCall& call) { end(call.range); }
  // Takes the mappings out. `freed` as in release().
  void finish_unmap(const SpanCall& call, std::vector<Memory>* freed);

  // All that exists, in the order in which it can be undone.
  struct Leftovers {
    std::vector<Span> mappings;
    std::vector<Memory> memory;
    std::vector<Span> ranges;
  };
  Leftovers leftovers() const;

  void set_limit_bytes(std::uint64_t bytes) { limit_bytes_ = bytes; }
  std::uint64_t granularity_bytes() const { return granularity_bytes_; }
  std::uint64_t physical_bytes() const { return physical_bytes_; }
  std::uint64_t reserved_bytes() const { return reserved_bytes_; }
  std::uint64_t mapped_bytes() const { return mapped_bytes_; }

 private:
  using Ranges = std::map<Address, Range>;

  Status check_size(const char* name, std::uint64_t bytes) const;
  Range* range_at(Address at);
  Result<Range*> find_idle(const char* name, Address at, std::uint64_t bytes);
  Status check_free(const Range& range, Address at, const Physical& physical) const;
  void take_out(Range* range, const Span& span, std::vector<Memory>* freed);
  void free_if_unused(Physical* physical, std::vector<Memory>* freed);
  static void end(Range* range);

  std::uint64_t granularity_bytes_;
  std::uint64_t limit_bytes_ = 0;  // 0: none
  std::uint64_t physical_bytes_ = 0;
  std::uint64_t reserved_bytes_ = 0;
  std::uint64_t mapped_bytes_ = 0;
  std::uint64_t last_handle_ = 0;
  Ranges ranges_;
  Range* last_range_ = nullptr;  // the range of the last call: most often of the next one, too
  std::unordered_map<std::uint64_t, Physical> handles_;
};

}  // namespace cachalot::device_memory
