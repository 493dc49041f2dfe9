// A profile as it was measured: tables of operator times. One layer of the model was profiled, on one GPU.
//
//   dense         operator, tokens                                    -> microseconds
//   per_sequence  operator (lm_head, sampler), sequences              -> microseconds
//   attention     prompt chunk, its context, decodes, their context   -> microseconds
//   skew          which share of "as if all had the longest context" uneven contexts add, by buckets
//
// ProfileModel composes them. sched/calibration reads them from a folder.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace cachalot::sched {

// Measured points (x, microseconds), sorted by x, each x once.
using Curve = std::vector<std::pair<double, double>>;

// @return  between two points linear; before the first its value; behind the last the slope of the last stretch that
//          spans an eighth of the range, because neighbours alone would carry their noise on
double value_at(const Curve& curve, double x);

struct AttentionPoint {
  double chunk = 0;             // tokens of the prompt part; 0: none
  double chunk_context = 0;     // tokens before it
  double sequences = 0;         // that decode beside it
  double sequence_context = 0;  // of each
  double us = 0;
};

// Buckets of skew_fit.csv. A value lies in the first bucket whose upper edge is not below it.
struct SkewAxis {
  std::vector<double> upper_edges;
  std::vector<std::string> labels;

  const std::string& label_of(double value) const;  // the axis is not empty
};

struct SkewTable {
  SkewAxis sequences, skew_rate, longest_context, chunk_context;
  // (chunk, sequences, skew rate, longest context, chunk context) -> alpha
  std::map<std::tuple<std::uint64_t, std::string, std::string, std::string, std::string>, double>
      alpha;
  double alpha_default = 0;
};

struct ProfileTables {
  std::string hardware, model;
  std::uint64_t tensor_parallel = 1;
  std::map<std::string, Curve> dense;
  std::map<std::string, Curve> per_sequence;
  std::vector<AttentionPoint> attention;
  bool has_skew = false;  // false: it was not measured
  SkewTable skew;
};

}  // namespace cachalot::sched
