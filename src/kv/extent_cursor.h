// Finds pool addresses for ascending offsets into a block.
#pragma once

#include <cstdint>
#include <span>

#include "memory/copy_run.h"

namespace cachalot::kv {

class ExtentCursor {
 public:
  explicit ExtentCursor(std::span<const memory::Extent> extents) : extents_(extents) {}

  // The place of an offset, and how many bytes follow it in its extent.
  // @param offset  ascending from call to call, inside the block
  memory::Extent find(std::uint64_t offset) {
    while (offset - start_ >= extents_[0].bytes) {
      start_ += extents_[0].bytes;
      extents_ = extents_.subspan(1);
    }
    const std::uint64_t skipped = offset - start_;
    return {extents_[0].at + skipped, extents_[0].bytes - skipped};
  }

 private:
  std::span<const memory::Extent> extents_;
  std::uint64_t start_ = 0;
};

}  // namespace cachalot::kv
