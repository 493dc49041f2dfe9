#include "cache_sim/reuse.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace cachalot::cache_sim {

std::uint64_t ReuseDistances::add(std::uint32_t block) {
  if (block >= position_of_.size()) {
    position_of_.resize(std::max<std::size_t>(1024, std::size_t{block} * 2), kNone);
  }
  std::uint64_t distance = kFirst;
  if (const std::uint32_t last = position_of_[block]; last != kNone) {
    distance = marks_ - marks_up_to(last);
    unmark(last);
    distances_.record(distance);
    longest_ = std::max(longest_, distance);
    position_of_[block] = kNone;
  }
  if (next_ == block_at_.size()) move_together();
  position_of_[block] = next_;
  block_at_[next_] = block;
  mark(next_++);
  return distance;
}

void ReuseDistances::reset_positions(std::uint32_t positions) {
  const std::uint32_t chunks = (positions + kChunkBits - 1) / kChunkBits;
  block_at_.resize(positions);
  bits_.assign(std::size_t{chunks} * kWords, 0);
  tree_.assign(std::size_t{chunks} + 1, 0);
  next_ = 0;
  marks_ = 0;
}

// Marks keep their order. Then at least half of the positions are free: amortised O(1) a reference.
void ReuseDistances::move_together() {
  const base::HugeVector<std::uint64_t> bits = std::exchange(bits_, {});
  const auto wanted = std::uint64_t{marks_} * 2;
  const auto positions = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(wanted, block_at_.size(), std::uint64_t{kNone} - kChunkBits));
  std::uint32_t kept = 0;
  for (std::size_t word = 0; word < bits.size(); ++word) {
    for (std::uint64_t left = bits[word]; left != 0; left &= left - 1) {
      const std::uint32_t block =
          block_at_[word * 64 + static_cast<std::size_t>(std::countr_zero(left))];
      position_of_[block] = kept;
      block_at_[kept++] = block;
    }
  }
  CACHALOT_CHECK(kept < positions);
  reset_positions(positions);
  while (next_ < kept) mark(next_++);
}

void ReuseDistances::mark(std::uint32_t position) {
  bits_[position / 64] |= std::uint64_t{1} << position % 64;
  for (std::size_t at = position / kChunkBits + 1; at < tree_.size(); at += at & -at) ++tree_[at];
  ++marks_;
}

void ReuseDistances::unmark(std::uint32_t position) {
  bits_[position / 64] &= ~(std::uint64_t{1} << position % 64);
  for (std::size_t at = position / kChunkBits + 1; at < tree_.size(); at += at & -at) --tree_[at];
  --marks_;
}

std::uint32_t ReuseDistances::marks_up_to(std::uint32_t position) const {
  std::uint32_t marks = 0;
  for (std::size_t at = position / kChunkBits; at != 0; at &= at - 1) marks += tree_[at];
  const std::size_t last = position / 64;
  for (std::size_t word = last / kWords * kWords; word < last; ++word) {
    marks += static_cast<std::uint32_t>(std::popcount(bits_[word]));
  }
  const std::uint64_t up_to_here = ~std::uint64_t{0} >> (63 - position % 64);
  return marks + static_cast<std::uint32_t>(std::popcount(bits_[last] & up_to_here));
}

void WorkingSet::add(std::uint32_t block, double time_ms) {
  if (time_ms >= end_ms_) {
    largest_ = std::max(largest_, in_window_);
    in_window_ = 0;
    ++windows_;
    const auto window = static_cast<double>(window_ms_);
    end_ms_ = (std::floor(time_ms / window) + 1) * window;
    // beyond a double's precision
    if (end_ms_ <= time_ms) end_ms_ = std::nextafter(time_ms, INFINITY);
  }
  if (block >= seen_in_.size())
    seen_in_.resize(std::max<std::size_t>(1024, std::size_t{block} * 2));
  if (seen_in_[block] == windows_) return;
  seen_in_[block] = windows_;
  ++in_window_;
  ++total_;
}

}  // namespace cachalot::cache_sim
