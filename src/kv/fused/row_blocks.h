// Rows as the fused kernels copy them. A kernel knows one arithmetic for all blocks of a call, and rows that were
// chosen one by one have none. So each row is a block of its own: one fragment, of one page that is as large as a unit
// of addresses, and begins where it begins in a unit of the pool. All have the same length: rows of several
// lengths are cut.
//
// @cost  64 bytes of tables for each row: more than a plan's 4 for each chosen token, less than the row
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv/copy_engine.h"

namespace cachalot::kv {

// What of a row lies in one extent of the pool, and where it goes.
struct RowPiece {
  memory::Extent pool;
  std::uint64_t engine;  // address
  std::uint32_t tensor;  // that it is in
};

class RowBlocks {
 public:
  // @param pieces  at least one
  // @return none: the addresses are further apart than a page id can say
  static std::optional<RowBlocks> make(std::span<const RowPiece> pieces);

  // For CallTables::make().
  const CopyPlan& plan() const { return plan_; }
  std::vector<BlockCopy> blocks() const;
  std::span<const std::uint64_t> tensors() const { return {&base_, 1}; }

 private:
  explicit RowBlocks(const CopyPlan& plan) : plan_(plan) {}

  CopyPlan plan_;
  std::uint64_t base_ = 0;  // the lowest address
  // One of each for each row.
  std::vector<memory::Extent> pool_;
  std::vector<std::uint32_t> pages_;
  std::vector<TokenRange> tokens_;
};

}  // namespace cachalot::kv
