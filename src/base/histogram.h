// How long things took, or how far apart they were: counts in buckets that are a thirty-second of their
// power of two wide, so that a percentile is right within 2 percent from one to 2^64.
//
// Plain numbers, all zero at first: it can lie in memory that processes share.
// @threads one writes; others read after it has ended
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace cachalot::base {

class Histogram {
 public:
  void record(std::uint64_t value, std::uint64_t count = 1) {
    buckets_[bucket_of(value)] += count;
    count_ += count;
  }

  void add(const Histogram& other) {
    for (std::uint32_t i = 0; i < kBuckets; ++i) buckets_[i] += other.buckets_[i];
    count_ += other.count_;
  }

  std::uint64_t count() const { return count_; }

  // The middle of the bucket of the smallest value that is not below `fraction` (0 to 1) of all;
  // 0 if there are none.
  double percentile(double fraction) const {
    const auto rank = static_cast<std::uint64_t>(fraction * static_cast<double>(count_));
    std::uint64_t seen = 0;
    for (std::uint32_t i = 0; i < kBuckets; ++i) {
      seen += buckets_[i];
      if (seen > rank || (seen != 0 && seen == count_)) return middle_of(i);
    }
    return 0;
  }

 private:
  static constexpr std::uint32_t kSubBits = 5;
  static constexpr std::uint32_t kSub = 1u << kSubBits;
  static constexpr std::uint32_t kBuckets = (64 - kSubBits + 1) * kSub;

  static std::uint32_t bucket_of(std::uint64_t value) {
    if (value < kSub) return static_cast<std::uint32_t>(value);
    const auto shift = static_cast<std::uint32_t>(std::bit_width(value)) - kSubBits - 1;
    return (shift + 1) * kSub + static_cast<std::uint32_t>((value >> shift) % kSub);
  }
  static double middle_of(std::uint32_t bucket) {
    if (bucket < kSub) return bucket;
    const std::uint32_t shift = bucket / kSub - 1;
    const std::uint64_t first = std::uint64_t{kSub + bucket % kSub} << shift;
    return static_cast<double>(first) + static_cast<double>(std::uint64_t{1} << shift) / 2;
  }

  std::array<std::uint64_t, kBuckets> buckets_{};
  std::uint64_t count_ = 0;
};

}  // namespace cachalot::base
