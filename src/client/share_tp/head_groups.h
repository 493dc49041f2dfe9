// How the blocks of a rank become blocks of the pool. With ClientOptions::share_tp a pool block holds one group of
// heads, so that ranks of another tensor parallelism can use it; without, all heads of the rank.
//
// Pool blocks that belong to one block are consecutive in a lookup: what is found of all groups is a prefix.
#pragma once

#include <cachalot/client.h>

#include <span>
#include <vector>

#include "block_hash/block_hash.h"
#include "kv/copy_engine.h"

namespace cachalot::client {

// The groups of a rank, a part of the model's.
struct HeadGroups {
  std::uint32_t first = 0;
  std::uint32_t count = 1;  // pool blocks of each block of the rank

  BlockHash name_of(const BlockHash& block, std::uint32_t number) const {
    return block_hash::hash_head_group(block, first + number);
  }
};

// Copies by group, for RegisteredCache.
using GroupCopies = std::vector<std::vector<kv::BlockCopy>>;
using GroupRows = std::vector<std::vector<kv::RowBlock>>;

// Names of pool blocks; without groups the given ones. The given names outlive it.
class PoolNames {
 public:
  // Of all groups of each block, block by block.
  PoolNames(const HeadGroups& groups, std::span<const BlockHash> blocks) : given_(blocks) {
    if (groups.first == 0 && groups.count == 1) return;  // group 0 has the names of the blocks
    made_.reserve(blocks.size() * groups.count);
    for (const BlockHash& block : blocks) {
      for (std::uint32_t i = 0; i < groups.count; ++i) made_.push_back(groups.name_of(block, i));
    }
  }
  // Of one of the rank's groups.
  static PoolNames of_group(const HeadGroups& groups, std::uint32_t number,
                            std::span<const BlockHash> blocks) {
    return {HeadGroups{groups.first + number, 1}, blocks};
  }

  std::span<const BlockHash> get() const { return made_.empty() ? given_ : made_; }

 private:
  std::span<const BlockHash> given_;
  std::vector<BlockHash> made_;
};

}  // namespace cachalot::client
