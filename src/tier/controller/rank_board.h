// Where the ranks of an engine agree on a number: a small block of memory that all of them map.
//
// Each round has an entry, one of 64 in turn. A rank writes its value, and then looks whether all have. The decision
// is one compare-and-swap, so there is one for all: the minimum by the rank that saw all values, or 0 by a rank whose
// time was over. Words carry their round, so an entry needs no reset: a word of an older round counts as not written.
//
// Memory orders: a value is stored with release and read with acquire only to be compared; the decision is a single
// word, read and changed by sequentially consistent operations. Nothing else is published through the board.
//
// Source: the consensus number of compare-and-swap (Herlihy 1991).
#pragma once

#include <cachalot/tier.h>

#include <atomic>
#include <cstdint>

namespace cachalot::tier {

inline constexpr std::uint32_t kMostRanks = 64;

struct RankBoard {
  struct Entry {
    std::atomic<std::uint64_t> decision;
    std::atomic<std::uint32_t> decisions;  // is woken on
    std::atomic<std::uint64_t> values[kMostRanks];
  };
  static constexpr std::uint32_t kEntries = 64;

  std::atomic<std::uint64_t> ranks;  // of the group; 0: not used yet
  std::atomic<std::uint64_t>
      joined;  // a bit a rank: each joins a file once, so an old file's answers are not taken
  Entry entries[kEntries];  // zero: no round
};

// One rank of a board. Zero bytes are an empty board.
class BoardRank final : public RankGroup {
 public:
  // @param board  stays as long as this object
  BoardRank(std::shared_ptr<RankBoard> board, std::uint32_t rank, std::uint32_t ranks)
      : board_(std::move(board)), rank_(rank), ranks_(ranks) {}

  Result<std::uint64_t> minimum(std::uint64_t round, std::uint64_t value,
                                std::uint64_t timeout_ns) override;

 private:
  std::shared_ptr<RankBoard> board_;
  std::uint32_t rank_, ranks_;
};

}  // namespace cachalot::tier
