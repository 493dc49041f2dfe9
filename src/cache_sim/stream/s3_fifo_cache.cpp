#include "cache_sim/stream/s3_fifo_cache.h"

#include <algorithm>

namespace cachalot::cache_sim {

S3FifoCache::S3FifoCache(std::uint64_t capacity_blocks)
    : capacity_(capacity_blocks),
      main_capacity_(capacity_blocks - std::max<std::uint64_t>(1, capacity_blocks / 10)),
      ghost_capacity_(capacity_blocks - capacity_blocks / 10) {}

bool S3FifoCache::access(std::uint32_t block, std::uint32_t) {
  eviction::NodeId node = nodes_.find(block);
  if (node != eviction::kNoNode && queues_.list_of(node) != kGhost) {
    if (hits_[node] < kMostHits) ++hits_[node];
    return true;
  }
  const bool was_ghost = node != eviction::kNoNode;
  if (was_ghost) {
    queues_.erase(node);
    nodes_.remove(node);
  }
  if (resident_blocks() >= capacity_) evict();
  node = nodes_.add(block);
  queues_.grow(nodes_.room());
  if (hits_.size() < nodes_.room()) hits_.resize(nodes_.room());
  hits_[node] = 0;
  queues_.push_newest(was_ghost ? kMain : kSmall, node);
  return false;
}

void S3FifoCache::evict() {
  const bool from_main = queues_.size(kMain) > main_capacity_ || queues_.size(kSmall) == 0;
  if (from_main ? evict_from_main() : evict_from_small()) return;
  evict_from_main();  // all of small went to main
}

bool S3FifoCache::evict_from_small() {
  for (eviction::NodeId node; (node = queues_.oldest(kSmall)) != eviction::kNoNode;) {
    queues_.erase(node);
    if (hits_[node] < kHitsForMain) {
      become_ghost(node);
      return true;
    }
    queues_.push_newest(kMain, node);
  }
  return false;
}

bool S3FifoCache::evict_from_main() {
  for (eviction::NodeId node; (node = queues_.oldest(kMain)) != eviction::kNoNode;) {
    queues_.erase(node);
    if (hits_[node] == 0) {
      nodes_.remove(node);
      return true;
    }
    --hits_[node];
    queues_.push_newest(kMain, node);
  }
  return false;
}

void S3FifoCache::become_ghost(eviction::NodeId node) {
  if (queues_.size(kGhost) >= ghost_capacity_) {
    const eviction::NodeId oldest = queues_.oldest(kGhost);
    if (oldest == eviction::kNoNode) return nodes_.remove(node);  // no room for any ghost
    queues_.erase(oldest);
    nodes_.remove(oldest);
  }
  queues_.push_newest(kGhost, node);
}

}  // namespace cachalot::cache_sim
