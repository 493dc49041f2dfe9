#include "tier/radix/backups.h"

#include <algorithm>

#include "base/check.h"

namespace cachalot::tier {

Result<BackupTicket> Backups::begin(NodeId node) {
  const RadixNode& record = nodes_[node];
  if (!record.is_in(Tier::kDevice))
    return Error::make(Code::kRefused, "radix backup: node %u is not in device memory", node);
  if (record.is_in(Tier::kHost) || record.backup != 0)
    return Error::make(Code::kRefused, "radix backup: node %u is in host memory or on the way",
                       node);
  const BackupTicket ticket = next_ticket_++;
  tickets_[ticket] = node;
  nodes_.set_backup(node, ticket);
  nodes_.lock(Tier::kDevice, node);
  return ticket;
}

// Takes the ticket off its nodes, which are appended to `nodes`, parents first.
void Backups::end(Tickets::iterator backup, std::vector<NodeId>& nodes) {
  const auto start = static_cast<std::ptrdiff_t>(nodes.size());
  for (NodeId node = backup->second; nodes_[node].backup == backup->first;
       node = nodes_[node].parent) {
    nodes_.set_backup(node, 0);
    nodes.push_back(node);
  }
  std::reverse(nodes.begin() + start, nodes.end());
  nodes_.unlock(Tier::kDevice, backup->second);
  tickets_.erase(backup);
}

Status Backups::finish(BackupTicket ticket, std::span<const Slot> slots, std::vector<NodeId>& nodes,
                       std::vector<Slot>& surplus) {
  const auto backup = tickets_.find(ticket);
  if (backup == tickets_.end()) {
    return Error::make(Code::kNotFound, "radix backup: no ticket %llu",
                       static_cast<unsigned long long>(ticket));
  }
  std::size_t pages = 0;
  for (NodeId node = backup->second; nodes_[node].backup == ticket; node = nodes_[node].parent)
    pages += nodes_[node].pages;
  if (slots.size() != pages) {
    return Error::make(Code::kInvalidArgument,
                       "radix backup: %zu slots for ticket %llu; expected %zu", slots.size(),
                       static_cast<unsigned long long>(ticket), pages);
  }
  const std::size_t start = nodes.size();
  end(backup, nodes);
  for (std::size_t i = start; i < nodes.size(); ++i) {
    const std::span<const Slot> own = slots.first(nodes_[nodes[i]].pages);
    slots = slots.subspan(own.size());
    if (nodes_[nodes[i]].is_in(Tier::kHost)) {
      surplus.insert(surplus.end(), own.begin(), own.end());
    } else {
      nodes_.put(Tier::kHost, nodes[i], own);
    }
  }
  return {};
}

Status Backups::cancel(BackupTicket ticket) {
  const auto backup = tickets_.find(ticket);
  if (backup == tickets_.end()) {
    return Error::make(Code::kNotFound, "radix backup: no ticket %llu",
                       static_cast<unsigned long long>(ticket));
  }
  std::vector<NodeId> nodes;
  end(backup, nodes);
  return {};
}

bool Backups::is_valid() const {
  std::size_t in_flight = 0, chained = 0;
  for (const auto& [ticket, last] : tickets_) {
    if (nodes_[last].backup != ticket) return false;
    for (NodeId node = last; nodes_[node].backup == ticket; node = nodes_[node].parent) {
      ++chained;
      if (!nodes_[node].is_in(Tier::kDevice) || !nodes_[node].is_locked(Tier::kDevice))
        return false;
    }
  }
  for (const NodeId root : nodes_.forest().roots()) {
    std::vector<NodeId> all;
    nodes_.forest().append_subtree(root, all);
    for (const NodeId node : all) in_flight += nodes_[node].backup != 0 ? 1 : 0;
  }
  return in_flight == chained;
}

}  // namespace cachalot::tier
