#include "eviction/eviction_policy.h"

#include "base/check.h"
#include "eviction/hit_density.h"
#include "eviction/leaf_lru.h"
#include "eviction/ranked_leaves.h"

namespace cachalot::eviction {

std::unique_ptr<EvictionPolicy> make_leaf_policy(PolicyKind kind, std::uint32_t capacity_nodes) {
  switch (kind) {
    case PolicyKind::kLru:
      return std::make_unique<LeafLru>(capacity_nodes);
    case PolicyKind::kFifo:
      return std::make_unique<LeafFifo>(capacity_nodes);
    case PolicyKind::kLfu:
      return std::make_unique<LeafLfu>(capacity_nodes);
    case PolicyKind::kLengthAware:
      return std::make_unique<LeafLengthAware>(capacity_nodes);
    case PolicyKind::kHitDensity:
      return std::make_unique<HitDensity>(capacity_nodes);
    case PolicyKind::kS3Fifo:
    case PolicyKind::kArc:
    case PolicyKind::kWTinyLfu:
    case PolicyKind::kOpt:
      break;
  }
  CACHALOT_CHECK(false);
  return nullptr;
}

}  // namespace cachalot::eviction
