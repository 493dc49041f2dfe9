// Copies of nodes from device memory to host memory in flight, which survive a split of their nodes.
//
// 1. The nodes of a ticket are a chain, whose last is the node the copy was started for; they are in device
//    memory, and locked there.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "tier/radix/radix_node.h"
#include "tier/radix/tier.h"
#include "tier/radix/tiered_forest.h"

namespace cachalot::tier {

// @threads one at a time
class Backups {
 public:
  explicit Backups(TieredForest& nodes) : nodes_(nodes) {}

  // A copy of the node to host memory starts; the node is locked in device memory until the ticket ends.
  // @errors kRefused: not in device memory, or in host memory or on the way there
  Result<BackupTicket> begin(NodeId node);
  // The copy is there. If the node was split, attaches the slots to all its pieces, parents first, and appends
  // the pieces to `nodes`. Slots of pages that came to host memory otherwise are surplus.
  // @shape  slots: one for each page of the node as it was at the start
  // @errors kNotFound: no such ticket; kInvalidArgument: wrong number of slots; both end nothing
  Status finish(BackupTicket ticket, std::span<const Slot> slots, std::vector<NodeId>& nodes,
                std::vector<Slot>& surplus);
  // The copy failed: the node is as before.
  // @errors kNotFound: no such ticket
  Status cancel(BackupTicket ticket);

  // Checks invariant 1, and that each node in flight has its ticket. O(nodes).
  bool is_valid() const;

 private:
  using Tickets = std::unordered_map<BackupTicket, NodeId>;
  void end(Tickets::iterator backup, std::vector<NodeId>& nodes);

  TieredForest& nodes_;
  BackupTicket next_ticket_ = 1;
  Tickets tickets_;  // the last node of each
};

}  // namespace cachalot::tier
