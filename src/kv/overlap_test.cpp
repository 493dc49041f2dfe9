// The search against the definition: every byte of every element written down.
#include "kv/overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "base/rng.h"

namespace cachalot::kv {
namespace {

using Index = std::array<std::uint64_t, kPlaneDimensions>;

std::uint64_t place_of(const Plane& plane, const Index& index) {
  std::uint64_t at = plane.at;
  for (std::uint32_t d = 0; d < kPlaneDimensions; ++d) at += index[d] * plane.stride[d];
  return at;
}

template <class F>
void for_each_element(const Plane& plane, F&& f) {
  Index i;
  for (i[0] = 0; i[0] < plane.count[0]; ++i[0]) {
    for (i[1] = 0; i[1] < plane.count[1]; ++i[1]) {
      for (i[2] = 0; i[2] < plane.count[2]; ++i[2]) {
        for (i[3] = 0; i[3] < plane.count[3]; ++i[3]) f(i);
      }
    }
  }
}

// The bytes of a plane, each with how many elements have it.
std::map<std::uint64_t, int> bytes_of(const Plane& plane) {
  std::map<std::uint64_t, int> bytes;
  for_each_element(plane, [&](const Index& index) {
    for (std::uint64_t b = 0; b < plane.bytes; ++b) ++bytes[place_of(plane, index) + b];
  });
  return bytes;
}

bool is_element(const Plane& plane, const std::uint64_t (&index)[kPlaneDimensions]) {
  for (std::uint32_t d = 0; d < kPlaneDimensions; ++d) {
    if (index[d] >= plane.count[d]) return false;
  }
  return true;
}

// That the two elements which the search names share a byte, and differ if they are of one plane.
void expect_witness(const Plane& a, const Plane& b, const Overlap& overlap, bool is_one_plane) {
  ASSERT_TRUE(is_element(a, overlap.first) && is_element(b, overlap.second));
  const Index first = std::to_array(overlap.first), second = std::to_array(overlap.second);
  if (is_one_plane) {
    EXPECT_NE(first, second);
  }
  const std::uint64_t at = place_of(a, first), other = place_of(b, second);
  EXPECT_TRUE(at < other + b.bytes && other < at + a.bytes) << at << " and " << other;
}

// Small numbers, so that about as many planes overlap as do not.
Plane any_plane(base::Rng& rng) {
  Plane plane;
  plane.at = 1000 + rng.below(40);
  plane.bytes = 1 + rng.below(4);
  std::uint64_t inside = plane.bytes;
  for (std::uint32_t d = kPlaneDimensions; d-- > 0;) {
    plane.count[d] = 1 + rng.below(4);
    plane.stride[d] = rng.chance(0.7) ? inside + rng.below(6) : rng.below(60);
    inside = plane.stride[d] * (rng.chance(0.5) ? plane.count[d] : 1);
  }
  std::swap(plane.stride[rng.below(4)], plane.stride[rng.below(4)]);
  return plane;
}

TEST(OverlapSearch, FindsWithinAPlaneWhatTheDefinitionFinds) {
  int overlapping = 0;
  constexpr int kPlanes = 4000;
  for (int seed = 0; seed < kPlanes; ++seed) {
    base::Rng rng(static_cast<std::uint64_t>(seed));
    const Plane plane = any_plane(rng);
    bool shared = false;
    for (const auto& [at, elements] : bytes_of(plane)) shared |= elements > 1;
    OverlapSearch search(1'000'000);
    const std::optional<Overlap> found = search.within(plane);
    ASSERT_EQ(found.has_value(), shared) << "seed " << seed;
    ASSERT_FALSE(search.gave_up());
    if (found) expect_witness(plane, plane, *found, true);
    overlapping += shared ? 1 : 0;
  }
  EXPECT_GT(overlapping, kPlanes / 10);
  EXPECT_LT(overlapping, kPlanes * 9 / 10);
}

TEST(OverlapSearch, FindsBetweenPlanesWhatTheDefinitionFinds) {
  int overlapping = 0;
  constexpr int kPairs = 4000;
  for (int seed = 0; seed < kPairs; ++seed) {
    base::Rng rng(static_cast<std::uint64_t>(seed));
    const Plane a = any_plane(rng);
    Plane b = rng.chance(0.5) ? any_plane(rng) : a;
    b.at = a.at + rng.below(100) - 50;
    if (rng.chance(0.3)) ++b.stride[rng.below(4)];
    const std::map<std::uint64_t, int> first = bytes_of(a);
    bool shared = false;
    for (const auto& [at, elements] : bytes_of(b)) shared |= first.contains(at);
    OverlapSearch search(1'000'000);
    const std::optional<Overlap> found = search.between(a, b);
    ASSERT_EQ(found.has_value(), shared) << "seed " << seed;
    ASSERT_FALSE(search.gave_up());
    if (found) expect_witness(a, b, *found, false);
    overlapping += shared ? 1 : 0;
  }
  EXPECT_GT(overlapping, kPairs / 10);
  EXPECT_LT(overlapping, kPairs * 9 / 10);
}

// A cache of 128 GiB: a million pages of 61 layers. No index is tried that cannot matter.
TEST(OverlapSearch, TakesFewStepsWhereStridesNest) {
  Plane plane;
  plane.bytes = 256;
  const std::uint64_t counts[] = {61, 1'000'000, 8, 16};
  const std::uint64_t strides[] = {std::uint64_t{1'000'000} * 32768, 32768, 256, 2048};
  std::copy_n(counts, 4, plane.count);
  std::copy_n(strides, 4, plane.stride);
  OverlapSearch search(1000);
  EXPECT_FALSE(search.within(plane));
  EXPECT_FALSE(search.gave_up());
  plane.stride[1] -= 2;  // the last token of a page, and the first of the next
  const std::optional<Overlap> found = search.within(plane);
  ASSERT_TRUE(found);
  expect_witness(plane, plane, *found, true);
}

TEST(OverlapSearch, StridesNear2To63DoNotWrap) {
  Plane plane;
  plane.bytes = 2;
  std::fill_n(plane.count, 4, 2);
  const std::uint64_t strides[] = {std::uint64_t{1} << 62, std::uint64_t{1} << 61,
                                   std::uint64_t{1} << 60, std::uint64_t{1} << 59};
  std::copy_n(strides, 4, plane.stride);
  Plane other = plane;
  other.at = std::uint64_t{1} << 63;
  OverlapSearch search(10'000);
  EXPECT_FALSE(search.within(plane));
  EXPECT_FALSE(search.between(plane, other));
  EXPECT_FALSE(search.between(other, plane));
  other.at = (std::uint64_t{1} << 62) + 1;
  EXPECT_TRUE(search.between(plane, other));
}

TEST(OverlapSearch, SaysThatItGaveUp) {
  Plane plane;
  plane.bytes = 1;
  std::fill_n(plane.count, 4, 1);
  OverlapSearch search(1);
  EXPECT_FALSE(search.between(plane, plane));
  EXPECT_TRUE(search.gave_up());
}

}  // namespace
}  // namespace cachalot::kv
