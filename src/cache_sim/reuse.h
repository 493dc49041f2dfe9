// How far apart the uses of a block are, and how many blocks are in use over a while: what a cache must
// hold, whatever its policy.
#pragma once

#include <cstdint>
#include <vector>

#include "base/histogram.h"
#include "base/huge_allocator.h"

namespace cachalot::cache_sim {

// Reuse distances (LRU stack distances): how many distinct other blocks are referenced between two
// references of the same block. A stream LRU of c blocks hits just the references whose distance is
// below c, so their distribution is its hit-rate curve over all capacities at once.
//
// Each block has a mark at the position of its last reference; the distance is the number of marks behind
// it. Marks are bits, counted in words of 512 by a Fenwick tree: small enough for the cache where the
// trace is not. When positions run out, marks are moved together.
// @source Mattson, Gecsei, Slutz, Traiger: Evaluation techniques for storage hierarchies, IBM Systems
//         Journal 1970; Bennett, Kruskal: LRU stack processing, IBM J. Res. Dev. 1975
//
// @threads one at a time
// @cost    O(log blocks) a reference; 8 to 16 bytes a distinct block
class ReuseDistances {
 public:
  static constexpr std::uint64_t kFirst = 0xffffffffffffffffu;

  ReuseDistances() { reset_positions(kLeastPositions); }

  // @shape  block: dense numbers
  // @return the distance, or kFirst for the first reference of a block; counted in the histogram
  std::uint64_t add(std::uint32_t block);

  std::uint64_t reuses() const { return distances_.count(); }
  // Of the reuses: within 2 percent, and never above the longest. 0 if there are none.
  double percentile(double fraction) const {
    const double distance = distances_.percentile(fraction);
    const auto longest = static_cast<double>(longest_);
    return distance < longest ? distance : longest;
  }
  std::uint64_t longest() const { return longest_; }

 private:
  static constexpr std::uint32_t kNone = 0xffffffffu, kLeastPositions = 1u << 16;
  static constexpr std::uint32_t kWords = 8, kChunkBits = kWords * 64;

  void reset_positions(std::uint32_t positions);
  void move_together();
  void mark(std::uint32_t position);
  void unmark(std::uint32_t position);
  std::uint32_t marks_up_to(std::uint32_t position) const;

  base::HugeVector<std::uint32_t> position_of_;  // of a block's last reference
  base::HugeVector<std::uint32_t> block_at_;     // whose mark a position has, if it has one
  base::HugeVector<std::uint64_t> bits_;
  std::vector<std::uint32_t> tree_;  // Fenwick's, over chunks; [0] is not used
  std::uint32_t next_ = 0, marks_ = 0;
  base::Histogram distances_;
  std::uint64_t longest_ = 0;
};

// How many distinct blocks are referenced within windows of equal length that follow each other.
//
// @threads one at a time
// @cost    O(1); 4 bytes a distinct block
class WorkingSet {
 public:
  explicit WorkingSet(std::uint64_t window_ms) : window_ms_(window_ms) {}

  // A reference at this time, which may not be earlier than those before: what comes late counts to the
  // window in hand.
  void add(std::uint32_t block, double time_ms);

  std::uint64_t window_ms() const { return window_ms_; }
  std::uint64_t windows() const { return windows_; }  // those that had a reference
  std::uint64_t largest_blocks() const { return largest_ > in_window_ ? largest_ : in_window_; }
  double mean_blocks() const {
    return windows_ == 0 ? 0 : static_cast<double>(total_) / static_cast<double>(windows_);
  }

 private:
  std::uint64_t window_ms_;
  double end_ms_ = -1;
  std::uint32_t windows_ = 0;
  std::uint64_t in_window_ = 0, largest_ = 0, total_ = 0;
  base::HugeVector<std::uint32_t> seen_in_;  // of a block: the last window it was met in, from 1
};

}  // namespace cachalot::cache_sim
