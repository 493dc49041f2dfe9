#include "pool/keeper/keeper_options.h"

#include "eviction/policy_kind.h"
#include "eviction/wrappers/prioritized_leaves.h"
#include "eviction/wrappers/quota_leaves.h"

namespace cachalot::pool {

Status KeeperOptions::check() const {
  CACHALOT_TRY(eviction::parse_pool_policy(policy));
  if (max_grants == 0) {
    return Error::make(Code::kInvalidArgument, "grants per client: 0 is not at least 1");
  }
  for (const NamespacePriority& wanted : priorities) {
    if (wanted.priority < eviction::PrioritizedLeaves::kPriorities) continue;
    return Error::make(Code::kInvalidArgument, "priority of a namespace: %u, expected 0 to %u",
                       wanted.priority, eviction::PrioritizedLeaves::kPriorities - 1);
  }
  if (quotas.size() > eviction::QuotaLeaves::kMaxQuotas) {
    return Error::make(Code::kInvalidArgument, "quotas: %zu namespaces, at most %u can have one",
                       quotas.size(), eviction::QuotaLeaves::kMaxQuotas);
  }
  return {};
}

}  // namespace cachalot::pool
