#include "sched/timing/attention_grid.h"

#include <algorithm>

namespace cachalot::sched {
namespace {

std::array<double, 4> place_of(const AttentionPoint& point) {
  return {point.chunk, point.chunk_context, point.sequences, point.sequence_context};
}

}  // namespace

Result<AttentionGrid> AttentionGrid::make(std::span<const AttentionPoint> points) {
  std::vector<AttentionPoint> sorted(points.begin(), points.end());
  std::sort(sorted.begin(), sorted.end(), [](const AttentionPoint& a, const AttentionPoint& b) {
    return place_of(a) < place_of(b);
  });
  AttentionGrid grid;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const std::array<double, 4> place = place_of(sorted[i]);
    // The first axis on which this point differs from the one before it.
    std::size_t axis = 0;
    if (i != 0) {
      const std::array<double, 4> before = place_of(sorted[i - 1]);
      while (axis < kAxes && place[axis] == before[axis]) ++axis;
      if (axis == kAxes) {
        return Error::make(Code::kBadInput, "attention: the point %g,%g,%g,%g is there twice",
                           place[0], place[1], place[2], place[3]);
      }
    }
    for (; axis < kAxes; ++axis) {
      const auto next =
          axis + 1 < kAxes ? static_cast<std::uint32_t>(grid.nodes_[axis + 1].size()) : 0;
      grid.nodes_[axis].push_back({.at = place[axis], .us = sorted[i].us, .begin = next, .end = 0});
    }
    for (std::size_t level = 0; level + 1 < kAxes; ++level) {
      grid.nodes_[level].back().end = static_cast<std::uint32_t>(grid.nodes_[level + 1].size());
    }
  }
  const std::vector<Node>& chunks = grid.nodes_[0];
  if (chunks.empty() || chunks.front().at != 0) {
    return Error::make(Code::kBadInput,
                       "attention: no row has prefill_chunk 0, expected some of decode alone");
  }
  if (chunks.size() < 2) {
    return Error::make(Code::kBadInput,
                       "attention: all rows have prefill_chunk 0, expected some with a chunk");
  }
  const Node& context = grid.nodes_[1][chunks.front().begin];
  grid.decode_begin_ = context.begin;
  grid.decode_end_ = context.end;
  grid.mixed_begin_ = 1;
  grid.mixed_end_ = static_cast<std::uint32_t>(chunks.size());
  return grid;
}

double AttentionGrid::between(const Node& low, const Node& high, double where, double at_low,
                              double at_high) {
  return at_low + (where - low.at) / (high.at - low.at) * (at_high - at_low);
}

double AttentionGrid::at(std::size_t axis, std::uint32_t begin, std::uint32_t end,
                         const double* where) const {
  const std::vector<Node>& nodes = nodes_[axis];
  const auto value = [&](const Node& node) {
    return axis + 1 == kAxes ? node.us : at(axis + 1, node.begin, node.end, where);
  };
  const Node& first = nodes[begin];
  if (end - begin == 1 || where[axis] <= first.at) return value(first);
  const auto behind =
      std::upper_bound(nodes.begin() + begin + 1, nodes.begin() + end - 1, where[axis],
                       [](double wanted, const Node& node) { return wanted < node.at; });
  const Node& high = *behind;
  const Node& low = *(behind - 1);
  if (low.at == where[axis]) return value(low);
  return between(low, high, where[axis], value(low), value(high));
}

double AttentionGrid::decode_us(double sequences, double context) const {
  if (sequences <= 0) return 0;
  const double where[kAxes] = {0, 0, sequences, context};
  return std::max(0.0, at(2, decode_begin_, decode_end_, where));
}

double AttentionGrid::mixed_us(double chunk, double chunk_context, double sequences,
                               double context) const {
  if (chunk <= 0) return decode_us(sequences, context);
  const double where[kAxes] = {chunk, chunk_context, sequences, sequences > 0 ? context : 0};
  return std::max(0.0, at(0, mixed_begin_, mixed_end_, where));
}

}  // namespace cachalot::sched
