// Whether two elements of a strided cache share a byte: decided exactly, with the two elements as the answer.
//
// An element is what one head keeps of one token in one part. The elements of a plane lie at
//   at + l * stride[0] + p * stride[1] + h * stride[2] + t * stride[3]
// and are equally long. Two of them share a byte if a sum of bounded multiples of the strides falls into an
// interval. The search goes from the largest stride down, and leaves out what the strides below cannot bring
// back, so that strides which nest take a few steps.
#pragma once

#include <cstdint>
#include <optional>

namespace cachalot::kv {

inline constexpr std::uint32_t kPlaneDimensions = 4;  // layer, page, head, token

struct Plane {
  std::uint64_t at = 0;     // of its first element
  std::uint64_t bytes = 0;  // of an element
  std::uint64_t count[kPlaneDimensions] = {};
  std::uint64_t stride[kPlaneDimensions] = {};  // no element ends beyond 2^63 bytes from `at`
};

struct Overlap {
  std::uint64_t first[kPlaneDimensions] = {};
  std::uint64_t second[kPlaneDimensions] = {};
};

class OverlapSearch {
 public:
  // @param most_steps  of all searches together; strides that nest take about a hundred each
  explicit OverlapSearch(std::uint64_t most_steps) : steps_left_(most_steps) {}

  // Two different elements of a plane.
  std::optional<Overlap> within(const Plane& plane);
  // An element of each.
  std::optional<Overlap> between(const Plane& a, const Plane& b);
  // Whether a search ended before it knew.
  bool gave_up() const { return steps_left_ == 0; }

 private:
  std::uint64_t steps_left_;
};

}  // namespace cachalot::kv
