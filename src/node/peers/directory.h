// Which blocks the peers have, as they say: a lookup costs no message.
//
// What it says may be old: a block that is gone at its owner is a miss there. What it does not say yet is a miss here.
//
// Invariants
//   1. A block has at least one owner. The peers that were cleared own nothing.
//   2. The length and parent of a block are those that its first owner has said. An owner that says others is left out: the
//      same hash means the same block.
//
// @threads any; each call holds a lock for a moment, but clear(), which reads all
// @cost    about 100 bytes a block, however many peers have it
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>

#include "node/peers/messages.h"

namespace cachalot::node {

inline constexpr std::uint32_t kMostPeers = 64;

class PeerDirectory {
 public:
  struct Known {
    BlockHash parent;
    std::uint32_t length = 0;
    std::uint64_t owners = 0;  // a bit for each peer
  };

  // @param most_length  of a block: larger ones are of no use here
  explicit PeerDirectory(std::size_t most_blocks, std::uint64_t most_length = ~std::uint64_t{0})
      : most_blocks_(most_blocks), most_length_(most_length) {}

  // @param peer  below kMostPeers
  void apply(std::uint32_t peer, std::span<const BlockNews> news);
  void clear(std::uint32_t peer);
  // Whichever peers said that they have it.
  void forget(std::span<const storage::ObjectKey> keys);
  // The peer has it no more.
  void remove(std::uint32_t peer, const storage::ObjectKey& key);

  std::optional<Known> find(const storage::ObjectKey& key) const;
  std::size_t blocks() const;
  // Of this peer.
  std::size_t blocks_of(std::uint32_t peer) const;
  // Not taken in: the directory was full.
  std::uint64_t refused() const;

 private:
  void remove_locked(std::uint32_t peer, const storage::ObjectKey& key);

  const std::size_t most_blocks_;
  const std::uint64_t most_length_;
  mutable std::mutex mutex_;  // all below
  std::unordered_map<storage::ObjectKey, Known> blocks_;
  std::size_t blocks_of_[kMostPeers] = {};
  std::uint64_t refused_ = 0;
};

}  // namespace cachalot::node
