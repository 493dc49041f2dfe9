// Which objects are stored, as one process knows: the tree of blocks, their order of use, and the limit.
//
// Invariants (is_valid)
//   1. The parent of an object is known, or the object is a root: a block without its prefix is of no use.
//   2. The sum of all sizes is bytes(). After take_victims() it is within the limits.
//
// @threads any; each call holds a lock for a moment, and never while anything is read or written
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "eviction/leaf_lru.h"
#include "storage/object.h"

namespace cachalot::storage {

struct Limits {
  std::uint64_t bytes = ~std::uint64_t{0};  // of bodies
  std::uint64_t objects = ~std::uint64_t{0};
};

class Catalogue {
 public:
  explicit Catalogue(const Limits& limits) : limits_(limits), order_(kFirstNodes) {}

  // How many leading blocks of a chain are known.
  std::size_t count_prefix(const BlockHash& space, std::span<const BlockHash> blocks) const;
  bool contains(const ObjectKey& key) const {
    return count_prefix(key.space, {&key.block, 1}) != 0;
  }

  // @return nothing: it is not known
  std::optional<ObjectHead> find(const ObjectKey& key) const;

  // Adds an object, or marks it as used if it is known. @return false: its parent is not known
  bool add(const ObjectHead& head);
  // A use of this object and of its whole prefix. @return false: it is not known
  bool touch(const ObjectKey& key);
  // Removes an object and all below it. @return their keys
  std::vector<ObjectKey> remove(const ObjectKey& key);
  // Removes the least recently used leaves until `more_bytes` and `more_objects` fit, but never the path of
  // `protect` (null: none). @return their keys; fits: whether there is room now
  std::vector<ObjectKey> take_victims(std::uint64_t more_bytes, std::uint64_t more_objects,
                                      const ObjectKey* protect, bool& fits);

  std::uint64_t bytes() const;
  std::uint64_t objects() const;
  bool is_valid() const;

 private:
  static constexpr std::uint32_t kFirstNodes = 1024;
  struct Node {
    ObjectHead head;
    std::vector<eviction::NodeId> children = {};
  };

  eviction::NodeId number_of(const ObjectKey& key) const;
  void erase_leaf(eviction::NodeId node, std::vector<ObjectKey>& removed);

  const Limits limits_;
  mutable std::mutex mutex_;  // all below
  std::unordered_map<ObjectKey, eviction::NodeId> numbers_;
  std::vector<Node> nodes_;
  std::vector<eviction::NodeId> free_;
  eviction::LeafLru order_;
  std::uint64_t bytes_ = 0;
};

}  // namespace cachalot::storage
