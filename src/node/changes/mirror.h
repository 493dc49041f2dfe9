// What a subscriber holds that has heard all events: the published blocks, without their tokens, which lie in
// the pool. Snapshots are made of it.
//
// Invariant, after a read_anew() that succeeded: a live block's parent is live, or it is a root.
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
  // After a loss: what the directory says now, with the changes that the keeper told while it was read. Changes up to the
  // loss are dropped: the directory has them, and an old line beside a new one could make a block its own ancestor.
  // @param changes  from which nothing else takes
  // @param loss     what changes.take_loss() returned
  // @return false: changes were lost again, and the mirror is not consistent; call again with the next loss
  bool read_anew(ChangeQueue& changes, std::uint64_t loss);

  const Block& block(std::uint32_t number) const { return blocks_[number]; }
  // Calls visit(number) for a published block, then for those before it in its chain, until visit() returns false. It
  // ends after as many blocks as the pool has: damaged lines may form a ring.
  template <class Visit>
  void walk_up(std::uint32_t number, Visit&& visit) const {
    for (std::size_t steps = 0; steps < blocks_.size(); ++steps) {
      if (number == pool::kNoBlock || blocks_[number].namespace_id == 0 || !visit(number)) return;
      number = blocks_[number].parent;
    }
  }
  std::uint32_t size() const { return size_; }
  // All blocks, parents first, in runs of at most `most` blocks; runs of a namespace follow each other.
  std::vector<Run> runs(std::size_t most) const;

 private:
  void read_directory();

  const pool::Access& access_;
  std::vector<Block> blocks_;
  std::uint32_t size_ = 0;
};

}  // namespace cachalot::node
