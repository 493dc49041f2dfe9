// Which blocks the peers have, as they say: a lookup costs no message.
//
// What it says may be old: a block that is gone at its owner is a miss there. What it does not say yet is a miss here.
//
// Invariants
//   1. A block has at least one owner. The peers that were cleared own nothing.
//   2. The length and parent of a block are those that its first owner has said. An owner that says others is left out: the
//      same hash means the same block.
//   3. Only a peer's own news change what it has. What a reader finds out (the block was not there, its bytes were damaged)
//      is a doubt, which ends by itself: the peer may have stored the block again meanwhile, and told so before the reader
//      found out. Without an end the block would be a miss here for as long as the peer has it.
//
// @threads apply(), clear(): one; the others: any. Each holds the lock for a moment at a time
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
  // These peers are as if they had it not, for so long or until they tell of it.
  // @param peers  a bit for each
  void doubt(std::uint64_t peers, const storage::ObjectKey& key, std::uint64_t now_ns,
             std::uint64_t for_ns);

  // @return its owners that are not in doubt, at least one
  std::optional<Known> find(const storage::ObjectKey& key, std::uint64_t now_ns) const;
  std::size_t blocks() const;
  // Of this peer, as it has told.
  std::size_t blocks_of(std::uint32_t peer) const;

 private:
  struct Doubt {
    std::uint64_t peers = 0;
    std::uint64_t until_ns = 0;
  };

  void remove_locked(std::uint32_t peer, const storage::ObjectKey& key);

  const std::size_t most_blocks_;
  const std::uint64_t most_length_;
  mutable std::mutex mutex_;  // all below
  std::unordered_map<storage::ObjectKey, Known> blocks_;
  std::unordered_map<storage::ObjectKey, Doubt> doubts_;
  std::size_t blocks_of_[kMostPeers] = {};
};

}  // namespace cachalot::node
