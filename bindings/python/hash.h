// Block hashes in Python: one hash (BlockHash), and the result of hash_tokens() in one piece of memory
// (BlockHashes), which is an array (n, 2) of uint64 for NumPy: low, high.
#pragma once

#include <cachalot/hash.h>
#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memory.h"

namespace cachalot::python {

// Immutable; slices share the memory.
struct BlockHashes {
  std::shared_ptr<const std::vector<BlockHash>> all;
  std::size_t first = 0, count = 0;

  std::span<const BlockHash> get() const { return std::span(*all).subspan(first, count); }
};

// An argument of a call: BlockHashes, without a copy; an array (n, 2) of uint64, copied because other threads may write
// it during the call; or a sequence of BlockHash. Raises InvalidArgumentError or TypeError.
class Hashes {
 public:
  explicit Hashes(nb::handle object);
  std::span<const BlockHash> get() const { return hashes_; }

 private:
  nb::object owner_;
  std::vector<BlockHash> own_;
  std::span<const BlockHash> hashes_;
};

// The hash that a chain continues, or another one: a BlockHash, a row of an array, or None.
std::optional<BlockHash> parent_of(nb::handle object, const char* name = "parent");

}  // namespace cachalot::python
