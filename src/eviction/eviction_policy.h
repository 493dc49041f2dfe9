// Which leaf goes when a tree of blocks is full: the one interface that keeper, tiers, simulator
// and `cachalot hitrate` share.
//
// A policy keeps the Residency of its nodes, so that a caller has one object to keep in step.
// A victim is always a leaf: a block is never kept when its parent is gone.
//
// What a policy decides depends on the calls and their order only, never on a clock or on how nodes
// are numbered: two callers that number differently get the same victims.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "eviction/policy_kind.h"
#include "eviction/residency.h"
#include "eviction/structure/node.h"

namespace cachalot::eviction {

// @threads one at a time
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // Its name on the command line: "lru".
  virtual const char* name() const = 0;
  virtual const Residency& residency() const = 0;
  // Makes room for nodes below `capacity_nodes`; never shrinks.
  virtual void grow(std::uint32_t capacity_nodes) = 0;

  // Adds an absent node below a resident parent (kNoNode: a root), not held. Touch the parent
  // first where a store is a use of the whole prefix. `name` stands for the block's whole prefix, as its
  // hash does, so that a policy may know again what it dropped; only equality counts.
  virtual void insert(NodeId node, NodeId parent, std::uint64_t name) = 0;

  // An access to a resident node, which is one to its whole prefix. O(depth of the node).
  virtual void touch(NodeId node) = 0;

  // Removes a resident leaf, whether it was a victim or held or not.
  virtual void erase(NodeId node) = 0;

  // The leaf to go next which is neither `protect` (kNoNode, or an absent node: protects none) nor
  // held, or kNoNode if there is none. Ancestors of `protect` are no leaves, so protecting the tail protects a path.
  // Changes nothing: erase() it, or leave it.
  virtual NodeId victim(NodeId protect) const = 0;

  // As long as a resident node is held it is no victim, and so its whole prefix is none. Holds are
  // counted; release() takes one back.
  virtual void hold(NodeId node) = 0;
  virtual void release(NodeId node) = 0;

  // Checks the invariants that its class lists. O(capacity), may allocate.
  virtual bool is_valid() const = 0;
};

// `kind` must have a leaf mode; capacity_nodes <= kMaxNodes; grow() makes it more.
std::unique_ptr<EvictionPolicy> make_leaf_policy(PolicyKind kind, std::uint32_t capacity_nodes);

}  // namespace cachalot::eviction
