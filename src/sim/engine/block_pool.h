// The KV blocks of one engine, as vLLM V1 keeps them: reference counts, and a queue of free blocks whose content stays
// usable until they are given out again.
//
// 1. A block is in the free queue exactly if nothing refers to it.
// 2. The queue gives out the block that was freed longest ago. Of a request's blocks the last is freed first, so that
//    beginnings of prompts, which others share, stay longest.
// 3. A key names at most one block.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace cachalot::sim {

class BlockPool {
 public:
  // A block as a request held it: it has that content as long as the generation is the same.
  struct Held {
    std::uint32_t block = 0;
    std::uint32_t generation = 0;
  };

  BlockPool(std::uint32_t blocks, bool prefix_caching);

  std::uint32_t blocks() const { return static_cast<std::uint32_t>(references_.size()); }
  std::uint32_t free_blocks() const { return free_; }
  std::uint32_t used_blocks() const { return blocks() - free_; }

  // The longest beginning of `held`, then of `keys` behind it, that can be used again.
  // @param most  blocks at most
  // @param free  how many of them are in the free queue now
  // @cost  linear in the result
  void find(std::span<const Held> held, std::span<const std::uint64_t> keys, std::uint64_t most,
            std::vector<std::uint32_t>& found, std::uint32_t& free) const;

  bool has(std::uint64_t key) const { return by_key_.contains(key); }

  void refer(std::uint32_t block);  // one reference more
  // Appends `count` blocks, with one reference each. @pre count <= free_blocks()
  void allocate(std::uint32_t count, std::vector<std::uint32_t>& blocks);
  // From now on `key` finds the block, unless it finds another one already.
  void name(std::uint32_t block, std::uint64_t key);
  // One reference less for each, the last first.
  void release(std::span<const std::uint32_t> blocks);

  std::uint32_t generation(std::uint32_t block) const { return generations_[block]; }

  // For tests: checks 1 and 3.
  bool is_valid() const;

 private:
  static constexpr std::uint32_t kNone = 0xffffffff;

  void append_free(std::uint32_t block);
  void remove_free(std::uint32_t block);

  bool prefix_caching_;
  std::uint32_t free_ = 0;
  std::uint32_t first_free_ = kNone, last_free_ = kNone;
  std::vector<std::uint32_t> references_, generations_, next_, previous_;
  std::vector<std::uint64_t> keys_;
  std::vector<bool> has_key_;
  std::unordered_map<std::uint64_t, std::uint32_t> by_key_;
};

}  // namespace cachalot::sim
