// An eviction policy of several owners, some of which have a quota: as long as an owner has more blocks than that, victims
// come from the one that has most too many. Otherwise the order beneath decides, for all owners together.
//
// So a quota takes nothing away while there is room, and reserves nothing: it says whose blocks give way first.
//
// 1. A tree has one owner. The list of an owner with a quota holds its resident nodes, each once.
// 2. In a list a parent is newer than each of its children.
//
// By 2 the oldest node of a list is a leaf, unless a child of it is held; victim() walks past those.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/huge_allocator.h"
#include "eviction/eviction_policy.h"
#include "eviction/holds.h"
#include "eviction/structure/node_lists.h"

namespace cachalot::eviction {

// @threads one at a time
// @cost    beside the policy's: O(depth) for a use of a node with a quota; victim: O(quotas), and O(held nodes of the
//          owner); 9 bytes a node, whatever the number of quotas
class QuotaLeaves final : public EvictionPolicy {
 public:
  static constexpr std::uint32_t kMaxQuotas = 64;
  static constexpr std::uint32_t kNoQuota = kMaxQuotas;

  // @param quotas    nodes that each owner may have; at most kMaxQuotas
  // @param quota_of  asked for each root that is stored: an index of `quotas`, or kNoQuota
  QuotaLeaves(std::unique_ptr<EvictionPolicy> order, std::uint32_t capacity_nodes,
              std::vector<std::uint64_t> quotas, std::function<std::uint32_t(NodeId)> quota_of);

  const char* name() const override { return order_->name(); }
  const Residency& residency() const override { return order_->residency(); }
  void grow(std::uint32_t capacity_nodes) override;
  void insert(NodeId node, NodeId parent, std::uint64_t name) override;
  void touch(NodeId node) override;
  void erase(NodeId node) override;
  NodeId victim(NodeId protect) const override;
  void hold(NodeId node) override;
  void release(NodeId node) override;
  bool is_valid() const override;

 private:
  using Lists = NodeLists<kMaxQuotas>;

  NodeId oldest_leaf(std::uint32_t quota, NodeId protect) const;

  std::unique_ptr<EvictionPolicy> order_;
  const std::vector<std::uint64_t> quotas_;
  const std::function<std::uint32_t(NodeId)> quota_of_;
  Lists lists_;
  Holds holds_;
};

}  // namespace cachalot::eviction
