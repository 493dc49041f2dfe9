#include "eviction/leaf_buckets.h"

#include <algorithm>
#include <bit>

namespace cachalot::eviction {

void LeafBuckets::open(std::uint64_t now) {
  now_ = now;
  least_ = SeenBlocks::kNone;
  const auto age = [&](std::uint64_t used_at) { return DensityTable::bin(now_ - used_at); };
  std::size_t kept = 0;
  for (const Bucket& bucket : buckets_) {
    if (kept > 0 && age(buckets_[kept - 1].from) == age(bucket.to)) {
      merge(buckets_[kept - 1], bucket);
    } else {
      buckets_[kept++] = bucket;
    }
  }
  buckets_.resize(kept);
  if (free_slots_ == 0) {
    merge(buckets_[0], buckets_[1]);
    buckets_.erase(buckets_.begin() + 1);
  }
  const auto slot = static_cast<std::uint32_t>(std::countr_zero(free_slots_));
  free_slots_ &= free_slots_ - 1;
  buckets_.push_back(Bucket{now_, now_, slot, 0});
}

void LeafBuckets::merge(Bucket& to, const Bucket& from) {
  for (std::uint32_t rest = from.classes; rest != 0; rest &= rest - 1) {
    const auto cls = static_cast<std::uint32_t>(std::countr_zero(rest));
    blocks_.append(head(to, cls), head(from, cls), Shadow::kDensity);
  }
  to.classes |= from.classes;
  to.to = from.to;
  free_slots_ |= std::uint64_t{1} << from.slot;
}

void LeafBuckets::insert(Seen leaf) {
  const SeenBlocks::Record& r = blocks_[leaf];
  const auto bucket = std::partition_point(buckets_.begin(), buckets_.end() - 1,
                                           [&](const Bucket& b) { return b.to < r.used_at; });
  blocks_.link(leaf, head(*bucket, r.cls), Shadow::kDensity);
  bucket->classes |= std::uint32_t{1} << r.cls;
  if (table_.density(r.cls, DensityTable::bin(now_ - bucket->to)) < least_density_) {
    least_ = SeenBlocks::kNone;
  }
}

LeafBuckets::Seen LeafBuckets::least() const {
  if (least_ != SeenBlocks::kNone) return least_;
  for (const Bucket& bucket : buckets_) {
    const std::uint32_t age = DensityTable::bin(now_ - bucket.to);
    if (least_ != SeenBlocks::kNone && table_.lowest(age) >= least_density_) continue;
    for (std::uint32_t rest = bucket.classes; rest != 0; rest &= rest - 1) {
      const auto cls = static_cast<std::uint32_t>(std::countr_zero(rest));
      const float density = table_.density(cls, age);
      if (least_ != SeenBlocks::kNone && density >= least_density_) continue;
      const Seen first = blocks_.newer(head(bucket, cls), Shadow::kDensity);
      if (first == head(bucket, cls)) {
        bucket.classes &= ~(std::uint32_t{1} << cls);
        continue;
      }
      least_ = first;
      least_density_ = density;
    }
  }
  return least_;
}

bool LeafBuckets::is_valid() const {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = buckets_[i];
    if (bucket.from > bucket.to || (i > 0 && buckets_[i - 1].to >= bucket.from)) return false;
    for (std::uint32_t cls = 0; cls < DensityTable::kClasses; ++cls) {
      for (Seen e = blocks_.newer(head(bucket, cls), Shadow::kDensity); e != head(bucket, cls);
           e = blocks_.newer(e, Shadow::kDensity)) {
        const SeenBlocks::Record& r = blocks_[e];
        if ((bucket.classes >> cls & 1) == 0 || r.cls != cls || r.used_at > bucket.to) return false;
        if (i > 0 && r.used_at <= buckets_[i - 1].to) return false;
      }
    }
  }
  return true;
}

}  // namespace cachalot::eviction
