// What an operator asked to keep: blocks that are never evicted, and namespaces that are evicted last.
//
// @threads  one
#pragma once

#include <cstdint>
#include <vector>

#include "pool/keeper/keeper_options.h"
#include "pool/keeper/namespaces.h"

namespace cachalot::pool {

class RetentionRules {
 public:
  RetentionRules(const KeeperOptions& options, const Namespaces& namespaces);

  bool has_priorities() const { return !priorities_.empty(); }
  std::uint32_t priority_of(std::uint32_t namespace_id) const;
  bool is_pinned(std::uint32_t namespace_id, const BlockHash& hash) const {
    return !pins_.empty() && is_in_list(namespace_id, hash);
  }

 private:
  bool is_in_list(std::uint32_t namespace_id, const BlockHash& hash) const;

  const Namespaces& namespaces_;
  std::vector<PinnedBlock> pins_;  // sorted
  std::vector<NamespacePriority> priorities_;
};

}  // namespace cachalot::pool
