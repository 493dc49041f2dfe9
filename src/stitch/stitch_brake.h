// The brake: a program whose requests are new again and again would stitch for ever. It gets more memory
// instead, piece by piece, but never more than expandable segments would hold for the same requests.
//
// A program that settles stitches in its first iterations, and one stitch saves memory for good. So
// stitches are counted, and forgotten in time: one for each `free_stitch_requests` requests. Each that is left
// allows the heap to grow by one part in `growth_divisor` where a stitch would do, in pieces of
// at most one part in `growth_piece_divisor`: small ones first, which avoid as many stitches as large ones.
//
// How much expandable segments would hold is known, because their bookkeeping runs along.
//
// 1. What was bought is at most (stitches that are not forgotten) / growth_divisor of the heap when it was bought.
// 2. Nothing is bought by which the heap would exceed the twin's.
// 3. What the twin gave back at a release counts again when one of its ranges has to grow: so it never holds more
//    addresses than it once needed, however often something is released.
//
// @threads one at a time
// @cost    O(log blocks) a request, 60 ns: an allocation in the twin
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "device_memory/baseline/expandable_range.h"
#include "stitch/stitch_options.h"

namespace cachalot::stitch {

class StitchBrake {
 public:
  explicit StitchBrake(const StitchOptions& options)
      : free_stitch_requests_(options.free_stitch_requests),
        growth_divisor_(options.growth_divisor),
        growth_piece_divisor_(options.growth_piece_divisor) {}

  // A request was served. @return its place in the twin, for freed()
  device_memory::Block* served(std::uint64_t bytes, gpu::StreamId stream, bool is_stitched);
  void freed(device_memory::Block* twin) { device_memory::ExpandableRange::free(twin); }

  // Whether new memory of that size is to be had instead of a stitch.
  bool may_buy(std::uint64_t bytes, std::uint64_t reserved_bytes) const;
  void bought(std::uint64_t bytes) { bought_bytes_ += bytes; }
  // The device has no more: until something is released, nothing is bought.
  void device_is_full() { is_full_ = true; }
  // What was cached is given back, there as here.
  void released();

  std::uint64_t stitches() const {
    return level_ / free_stitch_requests_;
  }  // that are not forgotten
  std::uint64_t twin_bytes() const { return twin_bytes_; }
  std::uint64_t twin_range_bytes() const;  // its addresses
  Status check() const;

 private:
  struct Key {
    gpu::StreamId stream;
    bool is_small;
    auto operator<=>(const Key&) const = default;
  };
  struct TwinRange {
    device_memory::ExpandableRange blocks;
    std::vector<device_memory::Block*> aside;  // what was given back
    TwinRange(gpu::StreamId stream, bool is_small);
  };
  TwinRange& range_for(Key key);
  device_memory::Block* grow(TwinRange& range, std::uint64_t bytes);

  const std::uint64_t free_stitch_requests_, growth_divisor_, growth_piece_divisor_;
  std::map<Key, std::unique_ptr<TwinRange>> twin_;
  TwinRange* recent_ = nullptr;
  Key recent_key_ = {};
  std::uint64_t twin_bytes_ = 0;
  // At most kMostStitches of them: so it forgets, and products of them and of sizes fit 64 bits.
  static constexpr std::uint64_t kMostStitches = std::uint64_t{1} << 16;
  std::uint64_t level_ = 0;  // free_stitch_requests for each stitch, less one for each request
  std::uint64_t bought_bytes_ = 0;
  bool is_full_ = false;
};

}  // namespace cachalot::stitch
