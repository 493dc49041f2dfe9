// What an allocation trace has in it: how much is live, and what sizes are asked for.
//
// Bytes are those that were asked for; what an allocator makes of them is for a replay to say.
#pragma once

#include <cachalot/result.h>

#include <array>
#include <cstdint>

#include "base/pair_table.h"
#include "trace/allocation/alloc_event.h"

namespace cachalot::trace {

// @threads one at a time
// @cost    some nanoseconds an event; memory by the distinct sizes
class AllocTraceSummary {
 public:
  static constexpr std::uint64_t kLargeBytes = std::uint64_t{64} << 20;

  struct SizeClass {
    std::uint64_t allocations = 0;
    std::uint64_t bytes = 0;
  };

  // Events as AllocTrace gives them: of a free, too, with its bytes.
  // @errors kBadInput: allocations that do not add up in 64 bits; the event is not counted
  Status add(const AllocEvent& event);

  std::uint64_t events() const { return allocations_ + frees_ + marks_; }
  std::uint64_t allocations() const { return allocations_; }
  std::uint64_t frees() const { return frees_; }
  std::uint64_t iterations() const { return marks_; }  // that are marked
  std::uint32_t streams() const { return streams_; }   // the highest and one

  std::uint64_t allocated_bytes() const { return allocated_bytes_; }  // in all
  std::uint64_t largest_bytes() const { return largest_bytes_; }
  std::uint64_t peak_live_bytes() const { return peak_live_bytes_; }
  std::uint64_t peak_live_blocks() const { return peak_live_blocks_; }
  std::uint64_t live_bytes() const { return live_bytes_; }  // now, and in the end at the end
  std::uint64_t live_blocks() const { return allocations_ - frees_; }

  std::uint64_t distinct_sizes() const { return sizes_.pairs().size(); }
  // Class k: from 2^k to 2^(k+1) - 1 bytes.
  const std::array<SizeClass, 64>& size_classes() const { return classes_; }
  // Of the bytes that were allocated, those in requests of kLargeBytes and more; 0 of nothing.
  double large_share() const;

 private:
  Status allocate(const AllocEvent& event);

  std::uint64_t allocations_ = 0, frees_ = 0, marks_ = 0;
  std::uint64_t allocated_bytes_ = 0, large_bytes_ = 0, largest_bytes_ = 0;
  std::uint64_t live_bytes_ = 0, peak_live_bytes_ = 0, peak_live_blocks_ = 0;
  std::uint32_t streams_ = 0;
  std::array<SizeClass, 64> classes_{};
  PairTable sizes_;
};

}  // namespace cachalot::trace
