// Attention times of a profile between the points that were measured.
//
// The points form no box: a chunk has contexts of its own, and so on (a profile may be two grids laid over each
// other). So interpolation goes axis by axis: between the two neighbours on the first axis, each of which
// interpolates among its own points of the next. Behind the last point of an axis it goes on linearly.
//
// 1. Times are not below 0.
#pragma once

#include <cachalot/result.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sched/timing/profile_tables.h"

namespace cachalot::sched {

class AttentionGrid {
 public:
  // @errors kBadInput: no points of decode alone, or none with a prompt chunk
  static Result<AttentionGrid> make(std::span<const AttentionPoint> points);

  // Microseconds of one layer; 0 for nothing. Contexts are those of each sequence.
  // @cost four binary searches deep, 15 in all; no allocation
  double decode_us(double sequences, double context) const;
  double mixed_us(double chunk, double chunk_context, double sequences, double context) const;

 private:
  static constexpr std::size_t kAxes = 4;

  // A value of one axis, and where its points of the next one lie: nodes_[axis + 1][begin, end), or its time.
  struct Node {
    double at = 0;
    double us = 0;
    std::uint32_t begin = 0, end = 0;
  };

  double at(std::size_t axis, std::uint32_t begin, std::uint32_t end, const double* where) const;
  static double between(const Node& low, const Node& high, double where, double at_low,
                        double at_high);

  std::array<std::vector<Node>, kAxes> nodes_;
  std::uint32_t decode_begin_ = 0, decode_end_ = 0;  // in nodes_[2]: without a chunk
  std::uint32_t mixed_begin_ = 0, mixed_end_ = 0;    // in nodes_[0]
};

}  // namespace cachalot::sched
