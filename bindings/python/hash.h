// Block hashes in Python: one by one (BlockHash), and as hash_tokens() hands them out, all in one
// piece of memory (BlockHashes), which NumPy sees as an array (n, 2) of uint64: low, high.
#pragma once

#include <cachalot/hash.h>
#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "memory.h"

namespace cachalot::python {

// Never changes; slices share the memory.
struct BlockHashes {
  std::shared_ptr<const std::vector<BlockHash>> all;
  std::size_t first = 0, count = 0;

  std::span<const BlockHash> get() const { return std::span(*all).subspan(first, count); }
};

// The argument of a call: BlockHashes or an array (n, 2) of uint64 as they lie there, or a sequence of
// BlockHash. Raises InvalidArgumentError or TypeError.
class Hashes {
 public:
  explicit Hashes(nb::handle object);
  std::span<const BlockHash> get() const { return hashes_; }

 private:
  nb::object owner_;
  std::optional<Memory> memory_;
  std::vector<BlockHash> own_;
  std::span<const BlockHash> hashes_;
};

// The hash that a chain goes on from: a BlockHash, a row of an array, or None.
std::optional<BlockHash> parent_of(nb::handle object);

}  // namespace cachalot::python
