#include "cache_sim/stream/stream_cache.h"

#include "base/check.h"
#include "cache_sim/stream/arc_cache.h"
#include "cache_sim/stream/queue_cache.h"
#include "cache_sim/stream/ranked_cache.h"
#include "cache_sim/stream/s3_fifo_cache.h"
#include "cache_sim/stream/w_tiny_lfu_cache.h"

namespace cachalot::cache_sim {

std::unique_ptr<StreamCache> make_stream_cache(eviction::PolicyKind kind,
                                               std::uint64_t capacity_blocks) {
  CACHALOT_CHECK(capacity_blocks > 0);
  switch (kind) {
    case eviction::PolicyKind::kLru:
      return std::make_unique<QueueCache<true>>(capacity_blocks);
    case eviction::PolicyKind::kFifo:
      return std::make_unique<QueueCache<false>>(capacity_blocks);
    case eviction::PolicyKind::kLfu:
      return std::make_unique<RankedCache<eviction::LfuOrder>>(capacity_blocks);
    case eviction::PolicyKind::kLengthAware:
      return std::make_unique<RankedCache<eviction::LengthAwareOrder>>(capacity_blocks);
    case eviction::PolicyKind::kS3Fifo:
      return std::make_unique<S3FifoCache>(capacity_blocks);
    case eviction::PolicyKind::kArc:
      return std::make_unique<ArcCache>(capacity_blocks);
    case eviction::PolicyKind::kWTinyLfu:
      return std::make_unique<WTinyLfuCache>(capacity_blocks);
    case eviction::PolicyKind::kHitDensity:
    case eviction::PolicyKind::kOpt:
      break;
  }
  CACHALOT_CHECK(false);
  return nullptr;
}

}  // namespace cachalot::cache_sim
