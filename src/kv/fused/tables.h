// The tables of a fused copy: made by the host out of a call's blocks, in one piece of memory that goes
// to the device as it is, with the launch or by a copy.
//
//   [ blocks + 1 ][ pieces, one more for each block ][ tensors ][ page ids ][ tokens ]
//
// @cost  some 20 ns a block; 4 bytes a page and a chosen token, 56 a block in one extent
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/copy_engine.h"
#include "kv/fused/call.h"
#include "kv/fused/pool_map.h"

namespace cachalot::kv {

// How a call's bytes are divided among workers.
struct WorkShape {
  std::uint32_t lanes = 0, item_bytes = 0;
};

// What suits a plan. An item has half as many lanes as the longest run has units, because each lane finds out where
// the item is; but no fewer than make a GPU's line of 128 bytes, and at most `most_lanes`. It has as many units as
// these lanes can have in flight.
WorkShape shape_for(const Plan& plan, std::uint32_t most_lanes);

// The largest power of two, up to 256, that all the pool's offsets and the lengths of a plan's fragments
// are multiples of, and on the engine's side all offsets and strides.
std::uint32_t pool_alignment(const Plan& plan);
std::uint32_t engine_alignment(const Plan& plan, std::span<const std::uint64_t> tensors);

class CallTables {
 public:
  // @param tensors  base addresses on the device
  // @param pool     null: the device's addresses are the host's
  // @errors kInvalidArgument: an extent that is not in `pool`, or more than 2^32 of anything
  static Result<CallTables> make(const CopyPlan& plan, std::span<const BlockCopy> blocks,
                                 std::span<const std::uint64_t> tensors, const PoolMap* pool,
                                 const WorkShape& shape);

  std::span<const std::byte> bytes() const { return bytes_; }
  // The arguments, for tables that lie at `at` in the device's memory, 16-byte aligned.
  FusedCall call_at(std::uint64_t at) const;
  // A launch's parameter with such a call, or, for 0, with the tables in it: kInlineTableBytes at most.
  FusedLaunch launch_at(std::uint64_t at) const;

 private:
  CallTables() = default;

  FusedCall call_;
  std::vector<std::byte> bytes_;
};

}  // namespace cachalot::kv
