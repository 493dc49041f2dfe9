// Times of single operations, measured in turns: how the benchmarks of one operation at a time measure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "measure.h"

namespace cachalot::apps::bench {

struct Latency {
  Spread us;  // the median and the quartiles
  double p99_us = 0;
};
Latency latency_of(const std::vector<double>& us);

// One way to do an operation. `prepare` is not timed: it chooses the place and brings the caches into the state that is
// measured.
struct TimedWay {
  std::string name;
  std::function<void()> prepare, run;
};

// Every way `samples` times, one after the other and each round beginning with another one.
// @return a latency a way, in their order
std::vector<Latency> time_in_turns(const std::vector<TimedWay>& ways, std::uint32_t samples);

// Microseconds of one `run`, after stores of `prepare` have reached memory. Contains one reading of the clock.
double time_once(const TimedWay& way);

// Two rows: `name` has the median, `name`/p99 the 99th percentile, each beside that of the limit (null: none).
// @param paper_us  the paper's median; 0: it gives none
void add_latency(Report& report, const std::string& name, const Latency& latency,
                 const std::string& limit_name, const Latency* limit, double paper_us = 0,
                 double paper_ratio = 0);

// A note on what one reading of the clock costs, which every time contains.
void note_clock(Report& report);

// Places of one size in a range, each far from the one before, none again before all others: not in the caches when its
// turn comes, if the range is larger than they are.
class ColdPlaces {
 public:
  // @shape bytes, each: powers of two
  ColdPlaces(std::byte* base, std::uint64_t bytes, std::uint64_t each)
      : base_(base), each_(each), count_(bytes / each) {}

  std::byte* next() {
    // An odd step visits all of a power of two; the golden ratio keeps neighbours in time apart in space.
    const auto step = static_cast<std::uint64_t>(static_cast<double>(count_) * 0.618) | 1;
    at_ = (at_ + step) % count_;
    return base_ + at_ * each_;
  }

 private:
  std::byte* base_;
  std::uint64_t each_, count_, at_ = 0;
};

}  // namespace cachalot::apps::bench
