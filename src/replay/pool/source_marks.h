// Where the blocks that were fetched into a host's pool came from: the keeper's process says so, the engines count by it.
//
//   slots  8 bytes each, a power of two of them, probed one after the other
//   slot   bits 63..1 of the hash's low half, bit 0: the source; 0: free. A slot keeps its hash.
//
// @threads any, of any process that inherited it
#pragma once

#include <cachalot/result.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "block_hash/block_hash.h"
#include "os/mapping.h"
#include "os/shared_file.h"
#include "storage/backend.h"

namespace cachalot::replay {

enum class BlockSource : std::uint64_t { kStorage = 0, kPeers = 1 };

class SourceMarks {
 public:
  // @param blocks  different ones at most
  // @cost  16 to 32 bytes a block
  static Result<SourceMarks> make(std::uint64_t blocks);

  void set(const BlockHash& hash, BlockSource source);
  // The last source; of a block that was never fetched: kStorage.
  BlockSource of(const BlockHash& hash) const;

 private:
  SourceMarks(os::SharedFile file, os::Mapping mapping, std::uint64_t slots)
      : file_(std::move(file)), mapping_(std::move(mapping)), slots_(slots) {}
  // The slot of this name, or the free one where it goes.
  std::atomic<std::uint64_t>& slot_of(std::uint64_t name) const;

  os::SharedFile file_;
  os::Mapping mapping_;
  std::uint64_t slots_;
};

// A backend that marks what it reads. @param marks  outlives it
std::unique_ptr<storage::Backend> make_marking(std::unique_ptr<storage::Backend> inner,
                                               SourceMarks& marks, BlockSource source);

}  // namespace cachalot::replay
