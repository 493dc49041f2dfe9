// The leaves of the density shadow, in lists by class and by when they were used last, so that the
// leaf of the least density is found by a look at each list and not at each leaf.
//
// 1. Buckets of last uses stand oldest first, and do not overlap.
// 2. As time goes on, neighbours whose uses have come to be of one age (bin) become one bucket: at
//    most two are left for each bin.
// 3. Within a list, the first that became a leaf is the first to go.
#pragma once

#include <cstdint>
#include <vector>

#include "eviction/seen_blocks.h"
#include "eviction/structure/density_table.h"

namespace cachalot::eviction {

// @threads one at a time
// @cost    insert: O(log buckets); open: O(buckets); least: O(1), or a look at each list (1,024 at
//          most) after open() or when what it showed has gone
class LeafBuckets {
 public:
  using Seen = SeenBlocks::Seen;
  static constexpr std::uint32_t kBuckets = 64;
  static constexpr std::uint32_t kHeads = DensityTable::kClasses * kBuckets;

  // The lists' heads are those of `blocks` from `first_head` on.
  LeafBuckets(SeenBlocks& blocks, const DensityTable& table, Seen first_head)
      : blocks_(blocks), table_(table), first_head_(first_head) {}

  // Time is `now`, later than before: what is used now goes into a bucket of its own.
  void open(std::uint64_t now);
  // By its class and last use, which stay as they are while it is in.
  void insert(Seen leaf);
  void erase(Seen leaf) {
    if (leaf == least_) least_ = SeenBlocks::kNone;
    blocks_.unlink(leaf, Shadow::kDensity);
  }
  // The leaf of the least density, of equals one of the oldest bucket; kNone if there is no leaf.
  Seen least() const;

  // Checks 1, and that each leaf stands where its class and last use say. O(leaves).
  bool is_valid() const;

 private:
  static_assert(DensityTable::kClasses <= 32);
  struct Bucket {
    std::uint64_t from, to;  // last uses, both inclusive
    std::uint32_t slot;
    mutable std::uint32_t classes;  // a bit for each class that has leaves here, or had
  };

  Seen head(const Bucket& bucket, std::uint32_t cls) const {
    return first_head_ + bucket.slot * DensityTable::kClasses + cls;
  }
  void merge(Bucket& to, const Bucket& from);

  SeenBlocks& blocks_;
  const DensityTable& table_;
  Seen first_head_;
  std::uint64_t now_ = 0;
  std::vector<Bucket> buckets_;
  std::uint64_t free_slots_ = ~std::uint64_t{0};
  static_assert(kBuckets == 64);
  mutable Seen least_ = SeenBlocks::kNone;  // kNone: to be looked for
  mutable float least_density_ = 0;
};

}  // namespace cachalot::eviction
