// Which leaf goes when a tree of blocks is full: the one interface that keeper, tiers, simulator
// and `cachalot hitrate` share.
//
// A policy keeps the Residency of its nodes, so that a caller has one object to keep in step.
// A victim is always a leaf: a block is never kept when its parent is gone.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "index/node.h"
#include "index/residency.h"

namespace cachalot::index {

// @threads one at a time
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // Its name on the command line: "lru".
  virtual const char* name() const = 0;
  virtual const Residency& residency() const = 0;
  virtual void grow(std::uint32_t capacity_nodes) = 0;

  // Adds an absent node below a resident parent (kNoNode: a root). It takes its parent's rank; a
  // root counts as used now. Touch the parent first where a store is a use of the whole prefix.
  virtual void insert(NodeId node, NodeId parent) = 0;

  // An access to a resident node, which is one to its whole prefix. O(depth of the node).
  virtual void touch(NodeId node) = 0;

  // Removes a resident leaf, whether it was a victim or not.
  virtual void erase(NodeId node) = 0;

  // The leaf to go next which is not `protect` (kNoNode: protects none), or kNoNode if there is
  // none. Ancestors of `protect` are no leaves, so protecting the tail protects a path. Changes
  // nothing: erase() it, or leave it.
  virtual NodeId victim(NodeId protect) const = 0;
};

enum class PolicyKind { kLru };

// @errors kInvalidArgument: no such policy; the message lists those there are
Result<PolicyKind> parse_policy(std::string_view name);
const char* policy_name(PolicyKind kind);

// capacity_nodes <= kMaxNodes; grow() makes it more.
std::unique_ptr<EvictionPolicy> make_leaf_policy(PolicyKind kind, std::uint32_t capacity_nodes);

}  // namespace cachalot::index
