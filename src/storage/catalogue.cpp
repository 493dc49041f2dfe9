#include "storage/catalogue.h"

#include <algorithm>
#include <utility>

namespace cachalot::storage {

using eviction::kNoNode;
using eviction::NodeId;

NodeId Catalogue::number_of(const ObjectKey& key) const {
  const auto at = numbers_.find(key);
  return at == numbers_.end() ? kNoNode : at->second;
}

std::size_t Catalogue::count_prefix(const BlockHash& space,
                                    std::span<const BlockHash> blocks) const {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  while (count < blocks.size() && numbers_.contains({space, blocks[count]})) ++count;
  return count;
}

bool Catalogue::has_space(const BlockHash& space) const {
  const std::lock_guard lock(mutex_);
  return objects_of_.contains(space);
}

std::optional<ObjectHead> Catalogue::find(const ObjectKey& key) const {
  const std::lock_guard lock(mutex_);
  const NodeId node = number_of(key);
  if (node == kNoNode) return {};
  return nodes_[node].head;
}

bool Catalogue::add(const ObjectHead& head) {
  const std::lock_guard lock(mutex_);
  return add_locked(head);
}

bool Catalogue::add_reserved(const ObjectHead& head) {
  const std::lock_guard lock(mutex_);
  release_locked(head.body_bytes(), 1);
  return add_locked(head);
}

void Catalogue::release(std::uint64_t bytes, std::uint64_t objects) {
  const std::lock_guard lock(mutex_);
  release_locked(bytes, objects);
}

void Catalogue::release_locked(std::uint64_t bytes, std::uint64_t objects) {
  reserved_bytes_ -= bytes;
  reserved_objects_ -= objects;
}

bool Catalogue::add_locked(const ObjectHead& head) {
  if (const NodeId known = number_of(head.key); known != kNoNode) {
    order_.touch(known);
    return true;
  }
  const NodeId parent = head.is_root() ? kNoNode : number_of({head.key.space, head.parent});
  if (!head.is_root() && parent == kNoNode) return false;
  insert_locked(head, parent);
  return true;
}

bool Catalogue::add_detached(const ObjectHead& head) {
  const std::lock_guard lock(mutex_);
  if (numbers_.contains(head.key)) return false;
  insert_locked(head, head.is_root() ? kNoNode : number_of({head.key.space, head.parent}));
  return true;
}

// @param parent  kNoNode: none, or it is unknown
void Catalogue::insert_locked(const ObjectHead& head, NodeId parent) {
  NodeId node = kNoNode;
  if (free_.empty()) {
    node = static_cast<NodeId>(nodes_.size());
    nodes_.emplace_back();
    if (node >= order_.residency().capacity_nodes()) order_.grow(node * 2);
  } else {
    node = free_.back();
    free_.pop_back();
  }
  nodes_[node].head = head;
  nodes_[node].addition = additions_++;
  if (parent != kNoNode) nodes_[parent].children.push_back(node);
  // As the pool's policy: a store is a use of the whole prefix.
  if (parent != kNoNode) order_.touch(parent);
  order_.insert(node, parent);
  numbers_.emplace(head.key, node);
  ++objects_of_[head.key.space];
  bytes_ += head.body_bytes();
  ++objects_;
}

bool Catalogue::touch(const ObjectKey& key) {
  const std::lock_guard lock(mutex_);
  const NodeId node = number_of(key);
  if (node != kNoNode) order_.touch(node);
  return node != kNoNode;
}

void Catalogue::erase_leaf(NodeId node, std::vector<ObjectKey>& removed) {
  const NodeId parent = order_.residency().parent(node);
  if (parent != kNoNode) std::erase(nodes_[parent].children, node);
  order_.erase(node);
  const ObjectKey& key = nodes_[node].head.key;
  numbers_.erase(key);
  if (--objects_of_[key.space] == 0) objects_of_.erase(key.space);
  bytes_ -= nodes_[node].head.body_bytes();
  --objects_;
  removed.push_back(key);
  free_.push_back(node);
}

std::uint64_t Catalogue::additions() const {
  const std::lock_guard lock(mutex_);
  return additions_;
}

std::vector<ObjectKey> Catalogue::remove(const ObjectKey& key, std::uint64_t mark) {
  const std::lock_guard lock(mutex_);
  std::vector<ObjectKey> removed;
  const NodeId root = number_of(key);
  if (root == kNoNode || nodes_[root].addition >= mark) return removed;
  std::vector<NodeId> below{root};
  for (std::size_t i = 0; i < below.size(); ++i) {
    const std::vector<NodeId>& children = nodes_[below[i]].children;
    below.insert(below.end(), children.begin(), children.end());
  }
  for (auto at = below.rbegin(); at != below.rend(); ++at) erase_leaf(*at, removed);
  return removed;
}

void Catalogue::limit_bytes(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  server_bytes_ = bytes;
}

std::vector<ObjectKey> Catalogue::take_victims(std::uint64_t more_bytes, std::uint64_t more_objects,
                                               const ObjectKey* protect, bool& fits) {
  const std::lock_guard lock(mutex_);
  std::vector<ObjectKey> removed;
  const NodeId spared = protect == nullptr ? kNoNode : number_of(*protect);
  const std::uint64_t most_bytes = std::min(limits_.bytes, server_bytes_);
  // Whether they fit beside so much.
  const auto has_room = [&](std::uint64_t bytes, std::uint64_t objects) {
    return more_bytes <= most_bytes && bytes <= most_bytes - more_bytes &&
           more_objects <= limits_.objects && objects <= limits_.objects - more_objects;
  };
  fits = has_room(reserved_bytes_, reserved_objects_);
  if (!fits) return removed;
  while (!has_room(bytes_ + reserved_bytes_, numbers_.size() + reserved_objects_)) {
    const NodeId victim = order_.victim(spared);
    fits = victim != kNoNode;
    if (!fits) return removed;
    erase_leaf(victim, removed);
  }
  reserved_bytes_ += more_bytes;
  reserved_objects_ += more_objects;
  return removed;
}

std::vector<ObjectKey> Catalogue::take_coldest(std::uint64_t bytes, const ObjectKey* protect) {
  const std::lock_guard lock(mutex_);
  std::vector<ObjectKey> removed;
  const NodeId spared = protect == nullptr ? kNoNode : number_of(*protect);
  const std::uint64_t held = bytes_, end = held - std::min(held, bytes);
  while (bytes_ > end) {
    const NodeId victim = order_.victim(spared);
    if (victim == kNoNode) break;
    erase_leaf(victim, removed);
  }
  return removed;
}

void Catalogue::forget_coldest(std::uint64_t objects) {
  const std::lock_guard lock(mutex_);
  std::vector<ObjectKey> removed;
  while (numbers_.size() > objects) {
    const NodeId victim = order_.victim(kNoNode);
    if (victim == kNoNode) return;
    erase_leaf(victim, removed);
    removed.clear();
  }
}

std::vector<ObjectKey> Catalogue::keys() const {
  std::vector<std::pair<std::uint64_t, ObjectKey>> added;
  {
    const std::lock_guard lock(mutex_);
    added.reserve(numbers_.size());
    for (const auto& [key, node] : numbers_) added.emplace_back(nodes_[node].addition, key);
  }
  std::ranges::sort(added, {}, &std::pair<std::uint64_t, ObjectKey>::first);
  std::vector<ObjectKey> keys;
  keys.reserve(added.size());
  for (const auto& [addition, key] : added) keys.push_back(key);
  return keys;
}

bool Catalogue::is_valid() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t bytes = 0;
  std::unordered_map<BlockHash, std::uint64_t> objects_of;
  for (const auto& [key, node] : numbers_) {
    ++objects_of[key.space];
    if (!(nodes_[node].head.key == key) || !order_.residency().contains(node)) return false;
    if (order_.residency().children(node) != nodes_[node].children.size()) return false;
    bytes += nodes_[node].head.body_bytes();
  }
  return bytes == bytes_ && numbers_.size() == objects_ && objects_of == objects_of_ &&
         numbers_.size() + free_.size() == nodes_.size() &&
         order_.residency().size() == numbers_.size() && order_.is_valid();
}

}  // namespace cachalot::storage
