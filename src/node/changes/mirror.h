// What a subscriber holds that has heard all events: the published blocks, without their tokens, which lie in
// the pool. Snapshots are made of it.
//
// Invariant, between two read_all(): a live block's parent is live, or it is a root.
//
// @threads one
#pragma once

#include <cstdint>
#include <vector>

#include "node/changes/change_queue.h"
#include "pool/format/access.h"

namespace cachalot::node {

// Consecutive blocks of one chain.
struct Run {
  std::uint32_t namespace_id = 0;
  std::uint32_t parent = pool::kNoBlock;
  std::vector<std::uint32_t> blocks = {};
};

class Mirror {
 public:
  struct Block {
    BlockHash hash;
    std::uint32_t generation = 0;
    std::uint32_t parent = pool::kNoBlock;
    std::uint32_t namespace_id = 0;  // 0: not published
  };

  explicit Mirror(const pool::Access& access) : access_(access), blocks_(access.geometry.blocks) {}

  // @return false: it was known before
  bool publish(const pool::PublishedBlock& block);
  // @return false: the block is published no more, or under another hash
  bool remove(std::uint32_t block, const BlockHash& hash);
  // What the directory says now. Changes that were on their way meanwhile are applied afterwards.
  void read_all();

  const Block& block(std::uint32_t number) const { return blocks_[number]; }
  std::uint32_t size() const { return size_; }
  // All blocks, parents first, in runs of at most `most` blocks; runs of a namespace follow each other.
  std::vector<Run> runs(std::size_t most) const;

 private:
  const pool::Access& access_;
  std::vector<Block> blocks_;
  std::uint32_t size_ = 0;
};

}  // namespace cachalot::node
