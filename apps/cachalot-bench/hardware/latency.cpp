#include "latency.h"

#include <emmintrin.h>

#include <algorithm>
#include <cstdio>

namespace cachalot::apps::bench {

Latency latency_of(const std::vector<double>& us) {
  if (us.empty()) return {};
  std::vector<double> sorted = us;
  const std::size_t at = std::min(sorted.size() - 1, sorted.size() * 99 / 100);
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(at), sorted.end());
  const double p99 = sorted[at];
  return {spread_of(std::move(sorted)), p99};
}

double time_once(const TimedWay& way) {
  way.prepare();
  _mm_mfence();
  const std::uint64_t start = now_ns();
  way.run();
  return static_cast<double>(now_ns() - start) * 1e-3;
}

std::vector<Latency> time_in_turns(const std::vector<TimedWay>& ways, std::uint32_t samples) {
  std::vector<std::vector<double>> us(ways.size());
  for (auto& times : us) times.reserve(samples);
  for (std::uint32_t i = 0; i < samples; ++i) {
    for (std::size_t k = 0; k < ways.size(); ++k) {
      const std::size_t way = (i + k) % ways.size();
      us[way].push_back(time_once(ways[way]));
    }
  }
  std::vector<Latency> all;
  for (const auto& times : us) all.push_back(latency_of(times));
  return all;
}

void add_latency(Report& report, const std::string& name, const Latency& latency,
                 const std::string& limit_name, const Latency* limit, double paper_us,
                 double paper_ratio) {
  Row median{name, latency.us.median, "us", limit_name, limit == nullptr ? 0 : limit->us.median};
  median.paper = paper_us;
  median.paper_ratio = paper_ratio;
  add_spread(median, latency.us);
  report.add(std::move(median));
  report.add(
      {name + "/p99", latency.p99_us, "us", limit_name, limit == nullptr ? 0 : limit->p99_us});
}

void note_clock(Report& report) {
  std::vector<double> ns;
  for (int i = 0; i < 1001; ++i) {
    const std::uint64_t start = now_ns();
    ns.push_back(static_cast<double>(now_ns() - start));
  }
  char text[80];
  std::snprintf(text, sizeof text, "every time contains one reading of the clock: %.0f ns",
                median_of(ns));
  report.note(text);
}

}  // namespace cachalot::apps::bench
