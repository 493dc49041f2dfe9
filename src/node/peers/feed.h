// Tells peers that follow which blocks the pool has: all of them, then what changes.
//
// It hears of changes from the keeper, through a queue. When changes were lost, all followers are told anew. All that a pool
// has may be more than may wait for a follower, so that is told in parts, as the follower reads.
//
// Invariant: what a follower was told since its last News "anew", applied in order, is the mirror as of the last change that
// was told, of all blocks below Follower::next. (Messages of a connection keep their order; a connection that breaks is
// another follower.)
//
// @threads its own; add() and remove(): any
// @cost    40 bytes a block of the pool; a directory line for each published block; 56 bytes a change and follower
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "node/changes/change_queue.h"
#include "node/changes/mirror.h"
#include "node/peers/messages.h"
#include "transfer/engine/engine.h"

namespace cachalot::node {

class PeerFeed {
 public:
  // @return false: the follower is gone
  using Send = std::function<bool(transfer::PeerId, const NewsMessage&)>;
  // Bytes that a follower has not taken yet.
  using Waiting = std::function<std::uint64_t(transfer::PeerId)>;

  // @param access  outlives it
  PeerFeed(const pool::Access& access, Send send, Waiting waiting);
  ~PeerFeed() { end(); }
  // Nothing is sent any more.
  void end();

  pool::BlockObserver& observer() { return changes_; }
  void add(transfer::PeerId follower);
  void remove(transfer::PeerId follower);
  std::size_t followers() const;
  std::uint64_t told() const { return told_.load(std::memory_order_relaxed); }
  // Changes that the keeper has made and that are not in told() yet: 0 only after all followers were sent them.
  std::uint64_t untold() const {
    const std::uint64_t told_to = told_to_.load(std::memory_order_acquire);
    return changes_.has_lost() ? 1 : changes_.end() - told_to;
  }

 private:
  struct Follower {
    bool has_begun = false;  // it was told "anew"
    std::uint32_t next = 0;  // block
  };

  void run();
  bool take_changes();
  // @param to  null: all that have begun
  void tell(const transfer::PeerId* to, const NewsMessage& news);
  // @return whether a follower was told something
  bool tell_those_behind(bool& is_any_behind);
  void tell_more(transfer::PeerId to, const Follower& follower);
  bool describe(std::uint32_t block, BlockNews& news);

  const pool::Access& access_;
  const Send send_;
  const Waiting waiting_;
  ChangeQueue changes_;
  // Of the thread:
  Mirror mirror_;
  bool is_current_ = false;
  std::vector<BlockHash> spaces_;  // digests; namespace id - 1

  mutable std::mutex mutex_;  // below
  std::map<transfer::PeerId, Follower> followers_;
  std::atomic<std::uint64_t> told_{0};
  std::atomic<std::uint64_t> told_to_{0};  // of changes_; pairs with untold()
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace cachalot::node
