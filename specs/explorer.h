// Visits every state that can be reached, breadth first, so that the schedule to the first
// violation is a shortest one. States are kept whole, without their zero words: no two are taken
// for one.
#pragma once

#include <map>
#include <string>

#include "model.h"

namespace cachalot::specs {

struct Outcome {
  std::uint64_t states = 0;
  std::uint64_t steps = 0;
  std::uint64_t ends = 0;   // states without a next step
  std::uint32_t depth = 0;  // steps to the state that is farthest from the start
  double seconds = 0;
  bool is_complete = false;  // all states were visited
  bool has_cycle = false;    // else every run ends, under any schedule
  std::string violation;     // empty: none
  std::vector<std::string> schedule;
  std::map<std::string, std::uint64_t> taken;  // how often each kind of step was taken
};

struct Search {
  std::uint64_t most_states = 60'000'000;
  bool count_steps = false;
  bool only_wrong_bytes = false;  // look for nothing else: for schedules of broken rules
};

Outcome explore(const Model& model, const Search& search);

}  // namespace cachalot::specs
