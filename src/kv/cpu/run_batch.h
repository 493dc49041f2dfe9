// Turns the fragments of blocks, as they come in pool order, into runs for the domain, a batch at a
// time. A batch's runs are on the stack; the bytes themselves are moved once, from where they are
// to where they belong. A batch may go on from block to block: one layer of many blocks is one call
// of the domain, with one pair of fences.
//
// What does not fill a line of the pool goes by way of a line of our own: its pieces come from, or
// go to, several fragments, while the pool is written in whole lines only, and hashed in whole
// lines.
//
// @threads  one
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kv/extent_cursor.h"
#include "memory/coherence.h"

namespace cachalot::kv {

// Fragments of the engine into lines of the pool.
class GatherBatch {
 public:
  explicit GatherBatch(memory::Domain& domain) : domain_(domain) {}

  void begin_block(std::span<const memory::Extent> pool, memory::FusedHash* hash);
  void add(std::uint64_t pool_offset, const std::byte* from, std::uint64_t bytes);
  void end_block();  // fills the last line with zeros
  void flush();      // moves all that waits

 private:
  static constexpr std::size_t kRuns = 192, kLines = 96;

  void add_lines(std::uint64_t pool_offset, const std::byte* from, std::uint64_t bytes);
  std::uint64_t fill_line(const std::byte* from, std::uint64_t bytes);

  memory::Domain& domain_;
  ExtentCursor cursor_{{}};
  memory::FusedHash* hash_ = nullptr;
  std::size_t runs_used_ = 0, lines_used_ = 0;  // lines_used_: complete ones
  std::size_t filled_ = 0;                      // bytes of the line behind them
  std::uint64_t line_offset_ = 0;               // where in the block that line begins
  memory::CopyRun runs_[kRuns];
  memory::Line lines_[kLines + 1];
};

// Invalidation before a read: by the caller for everything, or by each batch for its own lines with one
// pair of fences.
enum class Preparation { kDone, kByBatch };

// Bytes of the pool into fragments of the engine.
class ScatterBatch {
 public:
  ScatterBatch(memory::Domain& domain, Preparation preparation)
      : domain_(domain), preparation_(preparation) {}

  void begin_block(std::span<const memory::Extent> pool, memory::FusedHash* hash);
  void add(std::uint64_t pool_offset, std::byte* to, std::uint64_t bytes);
  void flush();

 private:
  static constexpr std::size_t kRuns = 192, kLines = 96, kPieces = 192;
  struct Piece {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
  };

  void add_run(std::uint64_t pool_offset, std::byte* to, std::uint64_t bytes);
  std::uint64_t take_from_line(std::uint64_t pool_offset, std::byte* to, std::uint64_t bytes);
  void prepare();
  std::byte* line(std::size_t number) { return lines_ + 8 + number * memory::kLineBytes; }

  memory::Domain& domain_;
  ExtentCursor cursor_{{}};
  memory::FusedHash* hash_ = nullptr;
  const Preparation preparation_;
  std::size_t runs_used_ = 0, lines_used_ = 0, pieces_used_ = 0;
  std::uint64_t line_offset_ = ~std::uint64_t{0};  // what the last line of ours will hold
  memory::CopyRun runs_[kRuns];
  Piece pieces_[kPieces];
  // Aligned to 8 bytes and no more, so that the domain does not stream into them past the cache.
  alignas(memory::kLineBytes) std::byte lines_[(kLines + 1) * memory::kLineBytes];
};

}  // namespace cachalot::kv
