// Which prefixes have KV in device memory (L1) and in host memory (L2), as a radix tree over pages of tokens.
//
// A node is a run of whole pages; its path from the root is a prefix. The tree keeps book only: the caller owns
// the pools of slots, moves the data, and is told which slots to free. Storage behind the host (L3) is not
// recorded here; a node's block hashes name its pages there.
//
//   match      the longest prefix: what is in device memory, then what continues in host memory
//   insert     computed or fetched pages; equal pages are kept once, the caller's duplicates are returned
//   lock       a node and its prefix stay in a tier until unlock
//   attach     another tier has a copy (load back, a finished backup); detach is the reverse (demote)
//   evict      leaves, by a LeafOrder for each tier
//
// 1. What TieredForest and PrefixForest list.
// 2. What Backups lists.
//
// A match, an insert or a backup that ends inside a node splits it. The end of the old node keeps the id, so a
// handle names the same prefix before and after.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tier/radix/backups.h"
#include "tier/radix/radix_key.h"
#include "tier/radix/tier.h"
#include "tier/radix/tiered_forest.h"

namespace cachalot::tier {

struct RadixOptions {
  std::uint32_t page_tokens = 16;  // > 0
  eviction::LeafOrder device_order = {};
  eviction::LeafOrder host_order = {};
};

// The longest prefix of a key that the tree has.
struct RadixMatch {
  std::uint32_t device_pages = 0;  // in device memory
  std::uint32_t host_pages = 0;    // that follow, in host memory alone
  NodeId device_node = kNoNode;    // the last whole node of device_pages; kNoNode: none
  NodeId node = kNoNode;           // the last whole node of pages(); kNoNode: none

  std::uint32_t pages() const { return device_pages + host_pages; }
};

// Where the KV is, one slot a page; appended.
struct MatchSlots {
  std::vector<Slot> device;  // of device_pages
  std::vector<Slot> host;    // of host_pages
};

struct InsertOptions {
  Tier tier = Tier::kDevice;
  // The first pages, which are the tree's own (matched and locked before): no slots are given for them.
  std::uint32_t owned_pages = 0;
  std::int32_t priority = 0;  // nodes of the path have at least it
  bool counts_use = true;     // false: part of a prompt, whose whole is inserted later
  // Of the key's pages from the first on; empty: not known. Nodes without hashes get them.
  std::span<const BlockHash> hashes = {};
};

// Pages from `owned_pages` on, each in one of the four.
struct Inserted {
  NodeId node = kNoNode;            // the end of the key in the tree
  std::uint32_t present_pages = 0;  // were in the tier: the caller's slots are surplus
  std::uint32_t adopted_pages = 0;  // were in the other tier alone
  std::uint32_t new_pages = 0;
  std::uint32_t refused_pages = 0;  // below owned pages that are gone; surplus
};

// What to do with a victim in device memory that has no copy in host memory.
enum class UnbackedVictim : std::uint8_t {
  kDrop,      // remove it and all below it
  kBackedUp,  // the handler has attached host slots: demote it
};
// May attach host slots to its node, and evict host memory; changes nothing else.
using UnbackedHandler = std::function<UnbackedVictim(NodeId)>;

// @threads one at a time
class RadixTree {
 public:
  explicit RadixTree(const RadixOptions& options);
  RadixTree(const RadixTree&) = delete;
  RadixTree& operator=(const RadixTree&) = delete;

  const RadixOptions& options() const { return options_; }
  const RadixNode& node(NodeId node) const { return nodes_[node]; }
  const PrefixForest& forest() const { return nodes_.forest(); }
  const TierUse& use(Tier tier) const { return nodes_.use(tier); }
  std::uint64_t held_locks() const { return nodes_.held_locks(); }

  // Finds the longest prefix, splits a node where it ends, and uses its nodes.
  // @shape slots: if not null, gets one a page
  // @cost  memcmp of the tokens, and some cache misses a node
  RadixMatch match(const RadixKey& key, MatchSlots* slots = nullptr);
  // As match(), but changes nothing: pages are counted to the end of the match, nodes to the last whole one.
  RadixMatch peek(const RadixKey& key) const;

  // Adds the whole pages of `key`. Appends to `surplus` the slots that the tree does not keep: duplicates,
  // those of pages it refuses, and those after the last whole page. A slot that the tree has for the same page
  // is not surplus.
  // @shape  slots: of the pages from owned_pages on; more are for a part of a page at the end
  // @errors kInvalidArgument: too few slots or hashes, more owned pages than pages;
  //         kStale: an owned page is not in device memory. Nothing is changed then
  Result<Inserted> insert(const RadixKey& key, std::span<const Slot> slots,
                          const InsertOptions& options, std::vector<Slot>& surplus);

  // As long as a node is locked in a tier, it and its prefix stay there. Locks are counted.
  // @shape node: in the tier, or kNoNode: no effect
  // @cost  O(nodes that become locked)
  void lock(Tier tier, NodeId node) { nodes_.lock(tier, node); }
  void unlock(Tier tier, NodeId node) { nodes_.unlock(tier, node); }

  // The tier has a copy of the pages of `node`, which is not kNoNode, from now on.
  // @errors kInvalidArgument: not a slot for each page; kRefused: it is in the tier already, or the
  //         tier is device memory and its parent is not there
  Status attach(Tier tier, NodeId node, std::span<const Slot> slots);
  // The tier's copy is given up.
  // @errors kNotFound: not in the tier; kBusy: locked there; kRefused: no other tier has it, or a child is in
  //         device memory and must not be without its parent
  Status detach(Tier tier, NodeId node, FreedSlots& freed);

  // Evicts whole leaves until `pages` pages have left the tier or none is left that may; returns how many left.
  // Device memory: a node with a host copy loses its device copy; for others `unbacked` decides, without it they
  // are dropped with all below them, unless something there is locked. Host memory: nodes are removed.
  // @cost O(log leaves) a node
  std::uint64_t evict(Tier tier, std::uint64_t pages, FreedSlots& freed,
                      const UnbackedHandler& unbacked = {});
  // Removes all nodes.
  // @errors kBusy: something is locked
  Status clear(FreedSlots& freed);

  // Copies to host memory, and what is next to be copied.
  Backups& backups() { return backups_; }
  const Backups& backups() const { return backups_; }

  // @shape  one a page of the node
  void set_hashes(NodeId node, std::span<const BlockHash> hashes) {
    nodes_.set_hashes(node, hashes);
  }

  // Checks the invariants. O(nodes).
  bool is_valid() const { return nodes_.is_valid() && backups_.is_valid(); }

 private:
  // A walk from the root as far as tokens agree.
  struct Walk {
    NodeId node = kNoNode;     // the last whole node, or the root; kNoNode: no such namespace
    NodeId partial = kNoNode;  // its child that agrees in part
    std::uint32_t pages = 0;   // of whole nodes
    std::uint32_t partial_pages = 0;
  };
  bool exists(NodeId node) const {
    return node < forest().capacity_nodes() && nodes_[node].exists() && !nodes_[node].is_root();
  }
  template <class Visit>
  Walk walk(const RadixKey& key, Visit&& visit) const;
  std::size_t whole_pages(const RadixKey& key) const {
    return key.tokens.size() / options_.page_tokens;
  }

  void extend(RadixMatch& match, NodeId node, std::uint32_t pages) const;
  Status check_insert(const RadixKey& key, std::size_t slots, const InsertOptions& options) const;
  void insert_node(NodeId node, std::span<const Slot> slots, const InsertOptions& options,
                   Inserted& result, std::vector<Slot>& surplus);
  bool evict_from_device(NodeId node, FreedSlots& freed, const UnbackedHandler& unbacked);
  void remove_all(NodeId node, FreedSlots& freed);

  RadixOptions options_;
  TieredForest nodes_;
  std::uint64_t now_ = 0;  // matches and inserts
  Backups backups_;
  std::vector<NodeId> path_;  // of the call in hand
};

}  // namespace cachalot::tier
