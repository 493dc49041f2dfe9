// What every cache of single blocks owes its callers, and each of them against its definition, written
// down naively.
#include "cache_sim/stream/stream_cache.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <deque>
#include <list>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "eviction/ranked_leaves.h"

namespace cachalot::cache_sim {
namespace {

constexpr eviction::PolicyKind kOnline[] = {
    eviction::PolicyKind::kLru,         eviction::PolicyKind::kFifo,   eviction::PolicyKind::kLfu,
    eviction::PolicyKind::kLengthAware, eviction::PolicyKind::kS3Fifo, eviction::PolicyKind::kArc,
    eviction::PolicyKind::kWTinyLfu};

class StreamCacheTest : public testing::TestWithParam<eviction::PolicyKind> {};

TEST_P(StreamCacheTest, NeverHoldsMoreThanItsCapacityAndHitsOnlyWhatWasStored) {
  for (const std::uint64_t capacity : {1u, 2u, 3u, 9u, 10u, 64u, 101u}) {
    const auto cache = make_stream_cache(GetParam(), capacity);
    base::Rng rng(capacity);
    std::set<std::uint32_t> seen;
    for (int i = 0; i < 20000; ++i) {
      // Half of the references to a few blocks, so that every list of every policy gets its share.
      const auto block = static_cast<std::uint32_t>(rng.below(rng.chance(0.5) ? 20 : 400));
      const bool was_seen = !seen.insert(block).second;
      const bool is_hit = cache->access(block, block % 7);
      ASSERT_TRUE(was_seen || !is_hit);
      ASSERT_LE(cache->resident_blocks(), capacity);
      ASSERT_GE(cache->resident_blocks(), 1u);
    }
  }
}

TEST_P(StreamCacheTest, HitsEverythingASecondTimeWhereThereIsRoom) {
  for (const std::uint64_t capacity : {std::uint64_t{5000}, ~std::uint64_t{0}}) {
    const auto cache = make_stream_cache(GetParam(), capacity);
    for (std::uint32_t block = 0; block < 5000; ++block) EXPECT_FALSE(cache->access(block, 0));
    // A window of W-TinyLFU may have turned some away before its main part was full: not here.
    for (std::uint32_t block = 0; block < 5000; ++block) EXPECT_TRUE(cache->access(block, 0));
    EXPECT_EQ(cache->resident_blocks(), 5000u);
  }
}

INSTANTIATE_TEST_SUITE_P(All, StreamCacheTest, testing::ValuesIn(kOnline), [](const auto& kind) {
  return std::string(eviction::policy_name(kind.param));
});

// Blocks in order of some key, by search.
template <class Order>
class NaiveRanked {
 public:
  explicit NaiveRanked(std::size_t capacity) : capacity_(capacity) {}
  bool access(std::uint32_t block, std::uint32_t place) {
    ++now_;
    if (const auto at = blocks_.find(block); at != blocks_.end()) {
      if (Order::kIsTouched) at->second.used_at = now_;
      if (Order::kIsTouched) ++at->second.uses;
      return true;
    }
    if (blocks_.size() == capacity_) {
      blocks_.erase(std::min_element(blocks_.begin(), blocks_.end(), [](auto& a, auto& b) {
        return Order::rank(a.second) < Order::rank(b.second);
      }));
    }
    blocks_[block] = {now_, now_, 1, place};
    return false;
  }

 private:
  std::size_t capacity_;
  std::uint64_t now_ = 0;
  std::map<std::uint32_t, eviction::NodeMemory> blocks_;
};

struct LruOrder {
  static constexpr bool kIsTouched = true;
  static eviction::Rank rank(const eviction::NodeMemory& node) { return {node.used_at, 0}; }
};

// Figure 4 of the paper, line by line, on lists of numbers; the oldest is in front.
class NaiveArc {
 public:
  explicit NaiveArc(std::size_t capacity) : c_(static_cast<double>(capacity)) {}
  bool access(std::uint32_t x, std::uint32_t) {
    if (take(t1_, x) || take(t2_, x)) return t2_.push_back(x), true;
    const double b1 = size(b1_), b2 = size(b2_);
    if (has(b1_, x)) {
      p_ = std::min(c_, p_ + (b1 >= b2 ? 1 : b2 / b1));
      replace(false);
      take(b1_, x);
      return t2_.push_back(x), false;
    }
    if (has(b2_, x)) {
      p_ = std::max(0.0, p_ - (b2 >= b1 ? 1 : b1 / b2));
      replace(true);
      take(b2_, x);
      return t2_.push_back(x), false;
    }
    const double l1 = size(t1_) + size(b1_), all = l1 + size(t2_) + size(b2_);
    if (l1 == c_) {
      if (size(t1_) < c_) {
        b1_.pop_front();
        replace(false);
      } else {
        t1_.pop_front();
      }
    } else if (all >= c_) {
      if (all == 2 * c_) b2_.pop_front();
      replace(false);
    }
    return t1_.push_back(x), false;
  }

 private:
  using Blocks = std::list<std::uint32_t>;
  static double size(const Blocks& list) { return static_cast<double>(list.size()); }
  static bool has(const Blocks& list, std::uint32_t x) {
    return std::find(list.begin(), list.end(), x) != list.end();
  }
  static bool take(Blocks& list, std::uint32_t x) { return std::erase(list, x) != 0; }
  void replace(bool in_b2) {
    if (!t1_.empty() && (size(t1_) > p_ || (in_b2 && size(t1_) == p_))) {
      b1_.push_back(t1_.front());
      t1_.pop_front();
    } else if (!t2_.empty()) {
      b2_.push_back(t2_.front());
      t2_.pop_front();
    }
  }
  double c_, p_ = 0;
  Blocks t1_, t2_, b1_, b2_;
};

class NaiveS3Fifo {
 public:
  explicit NaiveS3Fifo(std::size_t capacity)
      : capacity_(capacity),
        main_capacity_(capacity - std::max<std::size_t>(1, capacity / 10)),
        ghost_capacity_(capacity - capacity / 10) {}
  bool access(std::uint32_t block, std::uint32_t) {
    if (const auto at = hits_.find(block); at != hits_.end()) {
      at->second = std::min(at->second + 1, 3);
      return true;
    }
    const bool was_ghost = std::erase(ghost_, block) != 0;
    if (hits_.size() == capacity_) evict();
    (was_ghost ? main_ : small_).push_back(block);
    hits_[block] = 0;
    return false;
  }

 private:
  void evict() {
    if (main_.size() <= main_capacity_) {
      while (!small_.empty()) {
        const std::uint32_t block = small_.front();
        small_.pop_front();
        if (hits_[block] < 2) {
          hits_.erase(block);
          if (ghost_.size() == ghost_capacity_) ghost_.pop_front();
          return ghost_.push_back(block);
        }
        main_.push_back(block);
      }
    }
    for (;;) {
      const std::uint32_t block = main_.front();
      main_.pop_front();
      if (hits_[block]-- == 0) return void(hits_.erase(block));
      main_.push_back(block);
    }
  }
  std::size_t capacity_, main_capacity_, ghost_capacity_;
  std::deque<std::uint32_t> small_, main_;
  std::list<std::uint32_t> ghost_;
  std::map<std::uint32_t, int> hits_;
};

class NaiveWTinyLfu {
 public:
  explicit NaiveWTinyLfu(std::size_t capacity)
      : capacity_(capacity),
        window_capacity_(std::max<std::size_t>(1, capacity / 100)),
        main_capacity_(capacity - window_capacity_) {}
  bool access(std::uint32_t block, std::uint32_t) {
    if (++references_ >= 10 * capacity_) {
      references_ /= 2;
      for (auto& [other, count] : counts_) count /= 2;
    }
    ++counts_[block];
    if (std::erase(window_, block) != 0) return window_.push_back(block), true;
    if (std::erase(probation_, block) + std::erase(protected_, block) != 0) {
      protected_.push_back(block);
      if (protected_.size() > main_capacity_ * 4 / 5) {
        probation_.push_back(protected_.front());
        protected_.pop_front();
      }
      return true;
    }
    window_.push_back(block);
    if (window_.size() <= window_capacity_) return false;
    const std::uint32_t candidate = window_.front();
    window_.pop_front();
    if (probation_.size() + protected_.size() == main_capacity_) {
      auto& from = probation_.empty() ? protected_ : probation_;
      if (from.empty() || counts_[candidate] <= counts_[from.front()]) return false;
      from.pop_front();
    }
    probation_.push_back(candidate);
    return false;
  }

 private:
  std::size_t capacity_, window_capacity_, main_capacity_;
  std::uint64_t references_ = 0;
  std::map<std::uint32_t, std::uint32_t> counts_;
  std::list<std::uint32_t> window_, probation_, protected_;
};

template <class Naive>
void compare_with_the_definition(eviction::PolicyKind kind) {
  const auto capacity = *rc::gen::inRange<std::uint32_t>(1, 30);
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  const auto cache = make_stream_cache(kind, capacity);
  Naive naive(capacity);
  base::Rng rng(seed);
  for (int i = 0; i < 3000; ++i) {
    const auto block = static_cast<std::uint32_t>(rng.below(rng.chance(0.5) ? 10 : 60));
    const auto place = static_cast<std::uint32_t>(rng.below(4));
    const bool is_hit = naive.access(block, place);
    if (cache->access(block, place) != is_hit) RC_FAIL("differs at reference " + std::to_string(i));
  }
}

RC_GTEST_PROP(StreamCaches, LruHitsAsByItsDefinition, ()) {
  compare_with_the_definition<NaiveRanked<LruOrder>>(eviction::PolicyKind::kLru);
}
RC_GTEST_PROP(StreamCaches, FifoHitsAsByItsDefinition, ()) {
  compare_with_the_definition<NaiveRanked<eviction::FifoOrder>>(eviction::PolicyKind::kFifo);
}
RC_GTEST_PROP(StreamCaches, LfuHitsAsByItsDefinition, ()) {
  compare_with_the_definition<NaiveRanked<eviction::LfuOrder>>(eviction::PolicyKind::kLfu);
}
RC_GTEST_PROP(StreamCaches, LengthAwareHitsAsByItsDefinition, ()) {
  compare_with_the_definition<NaiveRanked<eviction::LengthAwareOrder>>(
      eviction::PolicyKind::kLengthAware);
}
RC_GTEST_PROP(StreamCaches, ArcHitsAsByItsDefinition, ()) {
  compare_with_the_definition<NaiveArc>(eviction::PolicyKind::kArc);
}
RC_GTEST_PROP(StreamCaches, S3FifoHitsAsByItsDefinition, ()) {
  compare_with_the_definition<NaiveS3Fifo>(eviction::PolicyKind::kS3Fifo);
}
RC_GTEST_PROP(StreamCaches, WTinyLfuHitsAsByItsDefinition, ()) {
  compare_with_the_definition<NaiveWTinyLfu>(eviction::PolicyKind::kWTinyLfu);
}

}  // namespace
}  // namespace cachalot::cache_sim
