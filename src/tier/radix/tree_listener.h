// What is told while a radix tree changes, for events of a cache and for controllers that follow nodes.
#pragma once

#include "tier/radix/tier.h"

namespace cachalot::tier {

// The node is complete in each call: its tokens, hashes and parent can be read from the tree. A listener does not
// change the tree.
class TreeListener {
 public:
  virtual ~TreeListener() = default;

  // The pages of `node` are in `tier` from now on. Parents come first.
  virtual void on_stored(Tier, NodeId) {}
  // They will not be from now on. Children come first.
  virtual void on_removed(Tier, NodeId) {}
  // `upper` is new and has the first pages of `lower`, in the same tiers. on_stored() is not called for it.
  virtual void on_split(NodeId /*upper*/, NodeId /*lower*/) {}
  // All nodes are removed. on_removed() is not called for them.
  virtual void on_cleared() {}
};

}  // namespace cachalot::tier
