// Which objects are stored, as one process knows: the tree of blocks, their order of use, and the limit.
//
// Invariants (is_valid)
//   1. The parent of an object is known, or the object is a root: a block without its prefix is of no use. Or it was
//      added as the first of a chain that begins elsewhere.
//   2. The objects of all spaces are all objects.
//   3. The sum of all sizes is bytes(). With what is reserved it is within the limits after take_victims().
//
// @threads any; each call holds a lock for a moment, and never while anything is read or written
#pragma once

#include <atomic>
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

  // Whether an object of this space is known.
  bool has_space(const BlockHash& space) const;

  // @return nothing: it is not known
  std::optional<ObjectHead> find(const ObjectKey& key) const;

  // Adds an object, or marks it as used if it is known. @return false: its parent is not known
  bool add(const ObjectHead& head);
  // Adds an object whose parent may be unknown: it lies in the pool, and storage that others write has what is below.
  // @return false: it is known already
  bool add_detached(const ObjectHead& head);
  // The same as add() for an object that take_victims() reserved room for; the reservation ends.
  bool add_reserved(const ObjectHead& head);
  // Ends a reservation of take_victims() whose objects will not be added.
  void release(std::uint64_t bytes, std::uint64_t objects);
  // A use of this object and of its whole prefix. @return false: it is not known
  bool touch(const ObjectKey& key);
  // How many objects were ever added: a mark for remove().
  std::uint64_t additions() const;
  // Removes an object and all below it. @return their keys
  // @param mark  from additions(): an object that was added afterwards stays
  std::vector<ObjectKey> remove(const ObjectKey& key, std::uint64_t mark = ~std::uint64_t{0});
  // Removes the least recently used leaves until `more_bytes` and `more_objects` fit, but never the path of
  // `protect` (null: none), and reserves this room. Nothing is removed for what could not fit without others.
  // @return their keys; fits: whether the room is reserved
  std::vector<ObjectKey> take_victims(std::uint64_t more_bytes, std::uint64_t more_objects,
                                      const ObjectKey* protect, bool& fits);

  // A limit beside the one of the options, for the next take_victims(): what a server has room for.
  void limit_bytes(std::uint64_t bytes);

  // Removes the least recently used leaves, but not the path of `protect`, until `bytes` are gone or none is left.
  // @return their keys
  std::vector<ObjectKey> take_coldest(std::uint64_t bytes, const ObjectKey* protect);

  // Forgets the least recently used leaves, until `objects` are known at most.
  void forget_coldest(std::uint64_t objects);

  // All that are known, in the order in which they were added: parents first.
  std::vector<ObjectKey> keys() const;
  // Never wait: a keeper's thread asks every few milliseconds.
  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  std::uint64_t objects() const { return objects_.load(std::memory_order_relaxed); }
  bool is_valid() const;

 private:
  static constexpr std::uint32_t kFirstNodes = 1024;
  struct Node {
    ObjectHead head;
    std::uint64_t addition = 0;  // the additions before this one
    std::vector<eviction::NodeId> children = {};
  };

  bool add_locked(const ObjectHead& head);
  void insert_locked(const ObjectHead& head, eviction::NodeId parent);
  void release_locked(std::uint64_t bytes, std::uint64_t objects);
  eviction::NodeId number_of(const ObjectKey& key) const;
  void erase_leaf(eviction::NodeId node, std::vector<ObjectKey>& removed);

  const Limits limits_;
  mutable std::mutex mutex_;  // all below
  std::unordered_map<ObjectKey, eviction::NodeId> numbers_;
  std::unordered_map<BlockHash, std::uint64_t> objects_of_;  // by space; none of 0
  std::vector<Node> nodes_;
  std::vector<eviction::NodeId> free_;
  eviction::LeafLru order_;
  // Of `numbers_`. They change under the lock; relaxed: figures that order nothing.
  std::atomic<std::uint64_t> bytes_{0}, objects_{0};
  std::uint64_t additions_ = 0;
  std::uint64_t server_bytes_ = ~std::uint64_t{0};
  // By puts in flight.
  std::uint64_t reserved_bytes_ = 0, reserved_objects_ = 0;
};

}  // namespace cachalot::storage
