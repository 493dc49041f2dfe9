// Opaque blocks in this process's memory (L2), for all contexts of an engine. Needs no llama.h.
//
//   auto cache = std::make_shared<HostCache>(capacity_bytes);
//   cache->add(parent, hash, bytes, fill);                      // a block that was computed, or came from the pool
//   while (std::optional<HostCache::Pinned> block = cache->pin(hashes[i])) import(block->bytes());
//
// Invariants
//   1. The parent of a block is here, or the block is the first of a chain.
//   2. The bytes of all blocks, and of those that are being filled, are at most the capacity.
//   3. A block's bytes do not change, and stay while it is pinned. The least recently used leaf that is not pinned is
//      evicted first.
//
// @threads any; a lock is held for a moment, never while a block is filled
#pragma once

#include <cachalot/hash.h>
#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "eviction/leaf_lru.h"

namespace cachalot::llama {

class HostCache {
 public:
  explicit HostCache(std::uint64_t capacity_bytes)
      : capacity_bytes_(capacity_bytes), order_(kFirstNodes) {}
  HostCache(const HostCache&) = delete;
  HostCache& operator=(const HostCache&) = delete;

  struct Counts {
    std::uint64_t blocks = 0, bytes = 0;  // now
    std::uint64_t hit_blocks = 0, added_blocks = 0, evicted_blocks = 0;
    std::uint64_t refused_blocks = 0;  // no room, or the parent is not here
  };

  // How many leading blocks of a chain are here.
  std::size_t lookup(std::span<const BlockHash> hashes) const;

  // Keeps a block as it is, until it is destroyed. It must not outlive the cache.
  class Pinned {
   public:
    Pinned(Pinned&& from) noexcept : cache_(from.cache_), node_(from.node_), bytes_(from.bytes_) {
      from.cache_ = nullptr;
    }
    Pinned& operator=(Pinned&&) = delete;
    ~Pinned() {
      if (cache_ != nullptr) cache_->unpin(node_);
    }
    std::span<const std::byte> bytes() const { return bytes_; }

   private:
    friend class HostCache;
    Pinned(HostCache* cache, eviction::NodeId node, std::span<const std::byte> bytes)
        : cache_(cache), node_(node), bytes_(bytes) {}
    HostCache* cache_;
    eviction::NodeId node_;
    std::span<const std::byte> bytes_;
  };
  // A hit. @return nothing: it is not here
  std::optional<Pinned> pin(const BlockHash& hash);

  // Writes a block's bytes. An error: the block is not added.
  using Fill = std::function<Status(std::span<std::byte> room)>;
  // Adds a block, or marks it as used if it is here, and evicts others for it.
  // @param parent  null: it is the first of a chain
  // @return false: the parent is not here, no room can be had, or `fill` failed
  bool add(const BlockHash* parent, const BlockHash& hash, std::uint64_t bytes, const Fill& fill);

  std::uint64_t capacity_bytes() const { return capacity_bytes_; }
  Counts counts() const;
  bool is_valid() const;

 private:
  static constexpr std::uint32_t kFirstNodes = 256;
  using Bytes = std::unique_ptr<std::byte[]>;
  struct Node {
    BlockHash hash;
    Bytes data;
    std::uint64_t bytes = 0;
  };
  // For a block that is not here yet.
  struct Room {
    Bytes data;
    eviction::NodeId parent;
  };

  eviction::NodeId number_of(const BlockHash& hash) const;
  std::optional<Room> take_room(const BlockHash* parent, std::uint64_t bytes);
  Bytes make_room(eviction::NodeId parent, std::uint64_t bytes);
  void link(const BlockHash& hash, Room room, std::uint64_t bytes);
  void unpin(eviction::NodeId node);

  const std::uint64_t capacity_bytes_;
  mutable std::mutex mutex_;  // all below
  std::unordered_map<BlockHash, eviction::NodeId> numbers_;
  std::vector<Node> nodes_;
  std::vector<eviction::NodeId> free_;
  eviction::LeafLru order_;
  std::uint64_t filling_bytes_ = 0;
  Counts counts_;
};

}  // namespace cachalot::llama
