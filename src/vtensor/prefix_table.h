// Recorded prefixes: which chunks hold the KV of which blocks of tokens. A block's hash stands for all
// in front of it, so the table is a tree: a block is found only below its recorded parent.
//
//   plane    | chunk 0       | chunk 1       | chunk 2       |
//   blocks   | 0   | 1   | 2   | 3   | 4   | 5   | 6   |
//   owned      -     -     0     -     1     -     2        chunks that end in the block
//   tail       0     0     1     1     2     2     -        the chunk in which the block ends before it
//
// 1. A block holds a reference on each chunk that it owns, and on its tails. A chunk is owned by one
//    block at most. The chunks that are full of a prefix are those that its blocks own.
// 2. Only leaves are taken out, the one that was used longest ago first: a prefix stays whole. A block
//    that a running request has pinned stays, and all in front of it: taking it out would free nothing.
// 3. A user of a block uses all blocks before it.
//
// The references are counted by the caller's ChunkStore; the table never calls it.
//
// @threads one at a time
#pragma once

#include <cachalot/hash.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "vtensor/mapped_planes.h"
#include "vtensor/range_layout.h"

namespace cachalot::vtensor {

class PrefixTable {
 public:
  struct Block;

  // What a prefix of `tokens` can be mapped from.
  struct Found {
    std::uint64_t tokens = 0;
    PlaneChunks full;
    // Of each plane that has a tail, the chunk in which it begins.
    struct Tail {
      std::uint64_t plane = 0;
      std::uint64_t bytes = 0;
      Chunk chunk;
    };
    std::vector<Tail> tails;
    Block* last = nullptr;
  };

  // @param block_tokens  of every block; 0: nothing is ever recorded
  // @param with_tails    keep the chunks in which blocks end, to copy from; else only prefixes
  //                      without a tail are found
  PrefixTable(const RangeLayout& layout, std::uint64_t block_tokens, bool with_tails)
      : layout_(layout), block_tokens_(block_tokens), with_tails_(with_tails) {}

  // The longest recorded prefix, up to `most_tokens`, and uses it. @cost planes * blocks found
  Found find(std::span<const BlockHash> hashes, std::uint64_t most_tokens);

  // How many of these blocks are recorded, in a row.
  std::uint64_t known(std::span<const BlockHash> hashes) { return path(hashes).size(); }

  // Enters the blocks that are not there; `planes` has the chunks of all of them.
  struct Recorded {
    std::vector<Chunk> references;  // that the table now holds
    Block* last = nullptr;
  };
  Recorded record(std::span<const BlockHash> hashes, const MappedPlanes& planes);

  // Null is allowed.
  void pin(Block* block);
  void unpin(Block* block);

  // Takes out the leaf that was used longest ago, and is not pinned.
  // @return its references; nothing: there is none
  std::optional<std::vector<Chunk>> evict();

  std::uint64_t block_tokens() const { return block_tokens_; }
  std::uint64_t blocks() const { return blocks_.size(); }

 private:
  Block* find_block(const Block* parent, const BlockHash& hash, std::uint64_t number);
  std::vector<Block*> path(std::span<const BlockHash> hashes);
  void use(std::span<Block* const> path);
  void add(Block& block, const MappedPlanes& planes, std::vector<Chunk>& references);
  std::uint64_t owned_before(std::uint64_t p, const Block& block) const;
  std::uint64_t owned_until(std::uint64_t p, const Block& block) const;
  void collect_full(std::span<Block* const> path, Found& found) const;
  void collect_tails(const Block& last, Found& found) const;

  const RangeLayout& layout_;
  const std::uint64_t block_tokens_;
  const bool with_tails_;
  std::unordered_map<BlockHash, std::unique_ptr<Block>> blocks_;
  std::map<std::uint64_t, Block*> leaves_;  // by last_use, which no two leaves share
  std::uint64_t uses_ = 0;
};

struct PrefixTable::Block {
  Block(const BlockHash& name, std::uint64_t number_in_prompt, Block* block_before)
      : hash(name), number(number_in_prompt), parent(block_before) {}

  const BlockHash hash;
  const std::uint64_t number;
  Block* const parent;
  std::uint64_t children = 0;
  std::uint64_t pins = 0;
  std::uint64_t last_use = 0;
  std::vector<Chunk> owned, tails;  // those of plane 0 first
};

}  // namespace cachalot::vtensor
