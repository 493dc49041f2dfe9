#include "sim/run/link_fit.h"

#include <array>
#include <cmath>

namespace cachalot::sim {
namespace {

// A grid of logarithms around the best point so far, closer in each round: along the valley in which bandwidth makes up
// for latency, steps by one axis at a time find no way down.
constexpr int kGrid = 6;  // points each way
constexpr double kFirstStep = 0.75, kCloser = 0.4;
constexpr int kRounds = 5;
// What is not seen in the figures stays near the start.
constexpr double kPull = 1e-6;

using Logs = std::array<double, 2>;  // of bandwidth and latency over those of the start

class LinkSearch {
 public:
  LinkSearch(const trace::RecordedRun& run, const EngineOptions& options, const Link& start,
             const TimingOfLink& timing)
      : run_(run),
        options_(options),
        start_(start),
        timing_(timing),
        recorded_(figures_of(run.requests)) {}

  Result<LinkFit> search() {
    Logs best = {0, 0};
    CACHALOT_TRY_ASSIGN(double distance, distance_of(best));
    double step = kFirstStep;
    for (int round = 0; round < kRounds; ++round, step *= kCloser) {
      const Logs middle = best;
      for (int x = -kGrid; x <= kGrid; ++x) {
        for (int y = -kGrid; y <= kGrid; ++y) {
          const Logs next = {middle[0] + step * x, middle[1] + step * y};
          CACHALOT_TRY_ASSIGN(const double there, distance_of(next));
          if (there >= distance) continue;
          best = next;
          distance = there;
        }
      }
    }
    CACHALOT_TRY_ASSIGN(const RunFigures figures, figures_with(best));
    return LinkFit{link_of(best), figures};
  }

 private:
  Link link_of(const Logs& logs) const {
    return {start_.bytes_per_second * std::exp(logs[0]), start_.latency_s * std::exp(logs[1])};
  }

  Result<RunFigures> figures_with(const Logs& logs) const {
    CACHALOT_TRY_ASSIGN(const auto model, timing_(link_of(logs)));
    CACHALOT_TRY_ASSIGN(const SimulatedRun simulated,
                        simulate_run(run_.requests, options_, *model));
    return figures_of(run_.requests, simulated);
  }

  Result<double> distance_of(const Logs& logs) const {
    CACHALOT_TRY_ASSIGN(const RunFigures figures, figures_with(logs));
    const auto off = [](double simulated, double recorded) {
      const double log = recorded > 0 && simulated > 0 ? std::log(simulated / recorded) : 0;
      return log * log;
    };
    double sum = off(figures.tpot_mean, recorded_.tpot_mean) +
                 off(figures.tpot_p50, recorded_.tpot_p50) +
                 off(figures.tpot_p90, recorded_.tpot_p90);
    // Without the engine's times the wait in its queue is in the figures; of middle requests least.
    if (run_.has_engine_times()) {
      sum += off(figures.service_mean, recorded_.service_mean) +
             off(figures.service_p50, recorded_.service_p50);
    } else {
      sum +=
          off(figures.ttft_mean, recorded_.ttft_mean) + off(figures.ttft_p50, recorded_.ttft_p50);
    }
    return sum + kPull * (logs[0] * logs[0] + logs[1] * logs[1]);
  }

  const trace::RecordedRun& run_;
  const EngineOptions& options_;
  Link start_;
  const TimingOfLink& timing_;
  RunFigures recorded_;
};

}  // namespace

Result<LinkFit> fit_link(const trace::RecordedRun& run, const EngineOptions& options,
                         const Link& start, const TimingOfLink& timing) {
  const RunFigures recorded = figures_of(run.requests);
  if (recorded.tpot_mean <= 0 || recorded.ttft_p50 <= 0) {
    return Error::make(Code::kInvalidArgument,
                       "recorded run: no time to a first token or between tokens, expected both: a "
                       "link cannot be told without");
  }
  return LinkSearch(run, options, start, timing).search();
}

}  // namespace cachalot::sim
