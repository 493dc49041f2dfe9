#include "host_cache.h"

#include <new>
#include <utility>

namespace cachalot::llama {

using eviction::kNoNode;
using eviction::NodeId;

NodeId HostCache::number_of(const BlockHash& hash) const {
  const auto at = numbers_.find(hash);
  return at == numbers_.end() ? kNoNode : at->second;
}

std::size_t HostCache::lookup(std::span<const BlockHash> hashes) const {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  while (count < hashes.size() && numbers_.contains(hashes[count])) ++count;
  return count;
}

std::optional<HostCache::Pinned> HostCache::pin(const BlockHash& hash) {
  const std::lock_guard lock(mutex_);
  const NodeId node = number_of(hash);
  if (node == kNoNode) return {};
  order_.hold(node);
  ++counts_.hit_blocks;
  return Pinned(this, node, {nodes_[node].data.get(), nodes_[node].bytes});
}

void HostCache::unpin(NodeId node) {
  const std::lock_guard lock(mutex_);
  order_.release(node);  // as just used
}

bool HostCache::add(const BlockHash* parent, const BlockHash& hash, std::uint64_t bytes,
                    const Fill& fill) {
  std::optional<Room> room;
  {
    const std::lock_guard lock(mutex_);
    if (const NodeId known = number_of(hash); known != kNoNode) {
      order_.touch(known);
      return true;
    }
    room = take_room(parent, bytes);
    if (!room) ++counts_.refused_blocks;
  }
  if (!room) return false;
  const Status filled = fill({room->data.get(), bytes});
  const std::lock_guard lock(mutex_);
  filling_bytes_ -= bytes;
  if (room->parent != kNoNode) order_.release(room->parent);
  if (!filled) return false;
  if (number_of(hash) == kNoNode) link(hash, *std::move(room), bytes);
  return true;
}

// The parent is held until the block is linked.
std::optional<HostCache::Room> HostCache::take_room(const BlockHash* parent, std::uint64_t bytes) {
  Room room{{}, parent == nullptr ? kNoNode : number_of(*parent)};
  if (parent != nullptr && room.parent == kNoNode) return {};
  room.data = make_room(room.parent, bytes);
  if (!room.data) return {};
  if (room.parent != kNoNode) order_.hold(room.parent);
  filling_bytes_ += bytes;
  return room;
}

// Evicts until the bytes fit. @return memory for them, of a victim where it has the size; null: no room
HostCache::Bytes HostCache::make_room(NodeId parent, std::uint64_t bytes) {
  Bytes data;
  while (bytes > capacity_bytes_ || counts_.bytes + filling_bytes_ > capacity_bytes_ - bytes) {
    const NodeId victim = bytes > capacity_bytes_ ? kNoNode : order_.victim(parent);
    if (victim == kNoNode) return {};
    Node& node = nodes_[victim];
    if (node.bytes == bytes) data = std::move(node.data);
    node.data.reset();
    order_.erase(victim);
    numbers_.erase(node.hash);
    free_.push_back(victim);
    counts_.bytes -= node.bytes;
    ++counts_.evicted_blocks;
  }
  if (!data) data.reset(new (std::nothrow) std::byte[bytes]);
  return data;
}

void HostCache::link(const BlockHash& hash, Room room, std::uint64_t bytes) {
  NodeId node = static_cast<NodeId>(nodes_.size());
  if (free_.empty()) {
    nodes_.emplace_back();
    if (node >= order_.residency().capacity_nodes()) order_.grow(2 * node);
  } else {
    node = free_.back();
    free_.pop_back();
  }
  nodes_[node] = {hash, std::move(room.data), bytes};
  if (room.parent != kNoNode) order_.touch(room.parent);
  order_.insert(node, room.parent);
  numbers_.emplace(hash, node);
  counts_.bytes += bytes;
  ++counts_.added_blocks;
}

HostCache::Counts HostCache::counts() const {
  const std::lock_guard lock(mutex_);
  Counts now = counts_;
  now.blocks = numbers_.size();
  return now;
}

bool HostCache::is_valid() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t bytes = 0;
  for (const auto& [hash, node] : numbers_) {
    if (!(nodes_[node].hash == hash) || !order_.residency().contains(node)) return false;
    bytes += nodes_[node].bytes;
  }
  return bytes == counts_.bytes && bytes + filling_bytes_ <= capacity_bytes_ &&
         numbers_.size() + free_.size() == nodes_.size() &&
         order_.residency().size() == numbers_.size() && order_.is_valid();
}

}  // namespace cachalot::llama
