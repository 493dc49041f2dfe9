#include "sim/run/run_comparison.h"

#include <algorithm>
#include <cmath>

#include "sched/timing/quantiles.h"

namespace cachalot::sim {
namespace {

using sched::mean_of;
using sched::quantile_of;

class Recorder final : public EngineListener {
 public:
  explicit Recorder(SimulatedRun& run) : run_(run) {}
  void on_finished(std::uint64_t id, const RequestTimes& times) override {
    run_.requests[id] = times;
  }
  void on_step(const StepRecord& step) override { run_.steps.push_back(step); }

 private:
  SimulatedRun& run_;
};

// `times(i)` has queued_s, scheduled_s, first_token_s and last_token_s of request i.
template <class Times>
RunFigures figures(std::span<const trace::RecordedRequest> recorded, const Times& times) {
  std::vector<double> ttft, service, tpot, end_to_end;
  double first = Engine::kNever, last = 0;
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    const auto& t = times(i);
    ttft.push_back(t.first_token_s - t.queued_s);
    service.push_back(t.first_token_s - t.scheduled_s);
    end_to_end.push_back(t.last_token_s - t.queued_s);
    if (recorded[i].output_tokens > 1) {
      tpot.push_back((t.last_token_s - t.first_token_s) /
                     static_cast<double>(recorded[i].output_tokens - 1));
    }
    first = std::min(first, t.queued_s);
    last = std::max(last, t.last_token_s);
  }
  return {.ttft_mean = mean_of(ttft),
          .ttft_p50 = quantile_of(ttft, 0.5),
          .ttft_p90 = quantile_of(ttft, 0.9),
          .ttft_p99 = quantile_of(ttft, 0.99),
          .service_mean = mean_of(service),
          .service_p50 = quantile_of(service, 0.5),
          .tpot_mean = mean_of(tpot),
          .tpot_p50 = quantile_of(tpot, 0.5),
          .tpot_p90 = quantile_of(tpot, 0.9),
          .tpot_p99 = quantile_of(tpot, 0.99),
          .end_to_end_mean = mean_of(end_to_end),
          .end_to_end_p50 = quantile_of(end_to_end, 0.5),
          .end_to_end_p90 = quantile_of(end_to_end, 0.9),
          .end_to_end_p99 = quantile_of(end_to_end, 0.99),
          .makespan = last - first};
}

}  // namespace

Result<SimulatedRun> simulate_run(std::span<const trace::RecordedRequest> recorded,
                                  const EngineOptions& options, const sched::TimingModel& timing) {
  SimulatedRun run;
  run.requests.resize(recorded.size());
  Recorder recorder(run);
  CACHALOT_TRY_ASSIGN(Engine engine, Engine::make(options, timing, recorder));
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    CACHALOT_TRY(engine.submit({.id = i,
                                .arrival_s = recorded[i].arrival_s,
                                .input_tokens = recorded[i].input_tokens,
                                .output_tokens = recorded[i].output_tokens}));
  }
  while (engine.next_event_s() != Engine::kNever) engine.advance();
  run.preemptions = engine.preemptions();
  return run;
}

RunFigures figures_of(std::span<const trace::RecordedRequest> recorded) {
  return figures(recorded,
                 [&](std::size_t i) -> const trace::RecordedRequest& { return recorded[i]; });
}

Result<sched::MeasuredRow> row_of(std::span<const trace::RecordedRequest> recorded,
                                  double tensor_parallel) {
  const RunFigures figures = figures_of(recorded);
  const auto requests = static_cast<double>(recorded.size());
  sched::MeasuredRow row{.tensor_parallel = tensor_parallel,
                         .concurrency = figures.end_to_end_mean * requests / figures.makespan,
                         .ttft_s = figures.ttft_mean,
                         .tpot_s = figures.tpot_mean};
  for (const trace::RecordedRequest& request : recorded) {
    row.input_tokens += static_cast<double>(request.input_tokens) / requests;
    row.output_tokens += static_cast<double>(request.output_tokens) / requests;
  }
  if (row.ttft_s > 0 && row.tpot_s > 0 && row.concurrency > 0) return row;
  return Error::make(
      Code::kInvalidArgument,
      "recorded run: TTFT %.3g s, TPOT %.3g s, %.3g requests in flight, expected all "
      "above 0",
      row.ttft_s, row.tpot_s, row.concurrency);
}

RunFigures figures_of(std::span<const trace::RecordedRequest> recorded, const SimulatedRun& run) {
  return figures(recorded, [&](std::size_t i) -> const RequestTimes& { return run.requests[i]; });
}

double relative_error(double simulated, double recorded) {
  return recorded == 0 ? 0 : simulated / recorded - 1;
}

CurveErrors curve_errors(std::span<const trace::RunSecond> recorded, const SimulatedRun& run,
                         std::uint64_t blocks) {
  double running = 0, running_distance = 0, used = 0, used_distance = 0;
  std::size_t next = 0;
  StepRecord last;
  for (const trace::RunSecond& second : recorded) {
    while (next < run.steps.size() && run.steps[next].end_s <= second.at_s)
      last = run.steps[next++];
    running += second.running;
    running_distance += std::abs(static_cast<double>(last.running) - second.running);
    const double share = static_cast<double>(last.used_blocks) / static_cast<double>(blocks);
    used += second.kv_cache_share;
    used_distance += std::abs(share - second.kv_cache_share);
  }
  CurveErrors errors;
  errors.running = running == 0 ? 0 : running_distance / running;
  errors.has_kv_cache = used != 0;
  errors.kv_cache = used == 0 ? 0 : used_distance / used;
  return errors;
}

}  // namespace cachalot::sim
