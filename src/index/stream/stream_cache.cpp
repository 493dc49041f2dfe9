#include "index/stream/stream_cache.h"

#include "base/check.h"
#include "index/stream/arc_cache.h"
#include "index/stream/queue_cache.h"
#include "index/stream/ranked_cache.h"
#include "index/stream/s3_fifo_cache.h"
#include "index/stream/w_tiny_lfu_cache.h"

namespace cachalot::index {

std::unique_ptr<StreamCache> make_stream_cache(PolicyKind kind, std::uint64_t capacity_blocks) {
  CACHALOT_CHECK(capacity_blocks > 0);
  switch (kind) {
    case PolicyKind::kLru:
      return std::make_unique<QueueCache<true>>(capacity_blocks);
    case PolicyKind::kFifo:
      return std::make_unique<QueueCache<false>>(capacity_blocks);
    case PolicyKind::kLfu:
      return std::make_unique<RankedCache<LfuOrder>>(capacity_blocks);
    case PolicyKind::kLengthAware:
      return std::make_unique<RankedCache<LengthAwareOrder>>(capacity_blocks);
    case PolicyKind::kS3Fifo:
      return std::make_unique<S3FifoCache>(capacity_blocks);
    case PolicyKind::kArc:
      return std::make_unique<ArcCache>(capacity_blocks);
    case PolicyKind::kWTinyLfu:
      return std::make_unique<WTinyLfuCache>(capacity_blocks);
    case PolicyKind::kHitDensity:
    case PolicyKind::kOpt:
      break;
  }
  CACHALOT_CHECK(false);
  return nullptr;
}

}  // namespace cachalot::index
