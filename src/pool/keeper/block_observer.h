// What a keeper tells of the blocks that clients can find: each that it publishes and each that it removes,
// whatever the reason (eviction, expiry, an operator, damage).
//
// A call follows the writes of the directory: when a block is told as published, every thread of this machine finds
// it. So an observer that begins, or has missed a call, reads the directory: it holds all changes that were told
// before, and later ones are told.
//
// @threads  the keeper's; a call must not wait for anything
#pragma once

#include <cachalot/hash.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "pool/format/requests.h"

namespace cachalot::pool {

struct PublishedBlock {
  BlockHash hash;
  BlockUse use;
  std::uint32_t parent;  // block of the parent, kNoBlock at a root
  std::uint32_t namespace_id;
};

class BlockObserver {
 public:
  virtual ~BlockObserver() = default;
  virtual void on_published(const PublishedBlock& block) = 0;
  virtual void on_removed(std::uint32_t block, const BlockHash& hash) = 0;
  // Lines of the directory had been overwritten, and are right again.
  virtual void on_repaired() = 0;
  // A client has used this published block and all before it.
  virtual void on_touched(std::uint32_t block) { static_cast<void>(block); }
};

// All observers of a keeper. @threads the keeper's
class BlockObservers {
 public:
  // Again is no change, as is to remove what is not there.
  void add(BlockObserver& observer) {
    if (std::find(observers_.begin(), observers_.end(), &observer) == observers_.end())
      observers_.push_back(&observer);
  }
  void remove(BlockObserver& observer) { std::erase(observers_, &observer); }
  bool empty() const { return observers_.empty(); }

  template <class Tell>
  void tell(Tell&& tell) const {
    for (BlockObserver* const observer : observers_) tell(*observer);
  }

 private:
  std::vector<BlockObserver*> observers_;
};

}  // namespace cachalot::pool
