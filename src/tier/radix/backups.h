// Copies of nodes from device memory to host memory: what is to be copied, and copies in flight, which survive a
// split of their nodes.
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
  Backups(TieredForest& nodes, HostRule host_rule) : nodes_(nodes), host_rule_(host_rule) {}

  // The nodes to back up so that `node` is in host memory, in this order; empty if it is, or will be. With
  // kAnyNode only the node itself. `min_uses`: begins with the last node of the path that has so many uses.
  void append_plan(NodeId node, std::uint32_t min_uses, std::vector<NodeId>& plan) const;
  // A copy of the node to host memory starts; the node is locked in device memory until the ticket ends.
  // @errors kRefused: not in device memory, in host memory or on the way there, or its parent is neither
  Result<BackupTicket> begin(NodeId node);
  // The copy is there. If the node was split, attaches the slots to all its pieces, parents first, and appends
  // the pieces to `nodes`. Slots of pages that came to host memory otherwise are surplus.
  // @shape  slots: one for each page of the node as it was at the start
  // @errors kNotFound: no such ticket; kInvalidArgument: wrong number of slots; both end nothing.
  //         kRefused: the parent is not in host memory; the ticket has ended, and all slots are the caller's
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
  HostRule host_rule_;
  BackupTicket next_ticket_ = 1;
  Tickets tickets_;  // the last node of each
};

}  // namespace cachalot::tier
