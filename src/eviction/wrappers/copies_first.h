// An eviction policy that gives up copies first: blocks that came from another host, which still has them.
//
// A copy is *fresh* until its prompt has used it: it goes as any other block does. Then it is *used*, and goes before
// any block that is no copy, the one unused for longest first. With a second use it is no copy any more: what is wanted
// here again stays here, so prompts that all hosts get come to lie on all of them.
//
// The prompt that used a copy may still be reading it. So a used copy is spared until a sixteenth of the blocks that
// there are has come after its use.
//
// 1. used_ holds the used copies that are leaves, each once; the first one is the next to go.
#pragma once

#include <cstdint>
#include <memory>

#include "base/huge_allocator.h"
#include "eviction/eviction_policy.h"
#include "eviction/holds.h"
#include "eviction/structure/lru_list.h"

namespace cachalot::eviction {

// @threads one at a time
// @cost    beside the policy's: O(depth) for a use while there are copies; 13 bytes a node
class CopiesFirst final : public EvictionPolicy {
 public:
  CopiesFirst(std::unique_ptr<EvictionPolicy> order, std::uint32_t capacity_nodes);

  // The resident node, inserted just now, is a copy.
  void mark_copy(NodeId node);
  std::uint32_t copies() const { return copies_; }

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
  enum class Copy : std::uint8_t { kNone, kFresh, kUsed };
  static constexpr std::uint32_t kSpared = 16;  // one of so many blocks

  void use(NodeId node);

  std::unique_ptr<EvictionPolicy> order_;
  LruList used_;
  Holds holds_;
  base::HugeVector<Copy> copy_;
  base::HugeVector<std::uint32_t> used_at_;  // inserts_ at the use of a used copy
  std::uint32_t copies_ = 0;
  std::uint32_t inserts_ = 0;  // so far; it may wrap
};

}  // namespace cachalot::eviction
