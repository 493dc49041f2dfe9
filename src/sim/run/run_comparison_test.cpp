#include "sim/run/run_comparison.h"

#include <gtest/gtest.h>

namespace cachalot::sim {
namespace {

// A step takes 1 s.
class OneSecond final : public sched::TimingModel {
 public:
  double step_seconds(std::span<const sched::PrefillPart>,
                      const sched::DecodePart&) const override {
    return 1;
  }
  double prefill_seconds(std::uint64_t, std::uint64_t) const override { return 1; }
};

constexpr EngineOptions kEngine = {.blocks = 10,
                                   .block_tokens = 10,
                                   .max_sequences = 2,
                                   .step_tokens = 50,
                                   .async_scheduling = false};

// The engine above has its first token 1 s after it is scheduled, then one a second.
std::vector<trace::RecordedRequest> recorded() {
  return {{.input_tokens = 10,
           .output_tokens = 3,
           .arrival_s = 0,
           .queued_s = 0,
           .scheduled_s = 0,
           .first_token_s = 2,
           .last_token_s = 4},
          {.input_tokens = 10,
           .output_tokens = 1,
           .arrival_s = 0.5,
           .queued_s = 1,
           .scheduled_s = 1,
           .first_token_s = 2,
           .last_token_s = 2}};
}

TEST(RunComparison, FiguresAreThoseOfTheRecordedTimes) {
  const RunFigures figures = figures_of(recorded());
  EXPECT_DOUBLE_EQ(figures.ttft_mean, 1.5);
  EXPECT_DOUBLE_EQ(figures.ttft_p50, 1.5);
  EXPECT_DOUBLE_EQ(figures.service_mean, 1.5);
  // Of the first request alone: the other has one token.
  EXPECT_DOUBLE_EQ(figures.tpot_mean, 1);
  EXPECT_DOUBLE_EQ(figures.makespan, 4);
}

TEST(RunComparison, ARunIsAMeasuredPoint) {
  const Result<sched::MeasuredRow> row = row_of(recorded(), 2);
  ASSERT_TRUE(row);
  EXPECT_DOUBLE_EQ(row->tensor_parallel, 2);
  EXPECT_DOUBLE_EQ(row->input_tokens, 10);
  EXPECT_DOUBLE_EQ(row->output_tokens, 2);
  EXPECT_DOUBLE_EQ(row->concurrency, 1.25);  // 4 s and 1 s of requests in 4 s
  EXPECT_DOUBLE_EQ(row->ttft_s, 1.5);
  EXPECT_DOUBLE_EQ(row->tpot_s, 1);
  auto single = recorded();
  for (trace::RecordedRequest& request : single) request.output_tokens = 1;
  EXPECT_FALSE(row_of(single, 2));
}

TEST(RunComparison, ARunIsReplayedAtItsArrivals) {
  const OneSecond timing;
  const auto run = simulate_run(recorded(), kEngine, timing);
  ASSERT_TRUE(run.ok());
  EXPECT_DOUBLE_EQ(run->requests[0].first_token_s, 1);
  EXPECT_DOUBLE_EQ(run->requests[0].last_token_s, 3);
  EXPECT_DOUBLE_EQ(run->requests[1].queued_s, 1);
  EXPECT_DOUBLE_EQ(run->requests[1].first_token_s, 2);
  const RunFigures figures = figures_of(recorded(), *run);
  EXPECT_DOUBLE_EQ(figures.ttft_mean, 1);
  EXPECT_NEAR(relative_error(figures.ttft_mean, 1.5), -1.0 / 3, 1e-12);
  EXPECT_DOUBLE_EQ(relative_error(1, 0), 0);
}

TEST(RunComparison, CurvesAreComparedWhereTheyWereSampled) {
  const OneSecond timing;
  const auto run = simulate_run(recorded(), kEngine, timing);
  ASSERT_TRUE(run.ok());
  // Simulated after steps 1, 2 and 3: 1, 1 and 0 running, 2, 2 and 0 of 10 blocks (request 0 has 11 tokens at 2 s).
  const trace::RunSecond seconds[] = {{1.5, 1, 0, 0.2}, {2.5, 3, 0, 0.1}, {3.5, 0, 0, 0.1}};
  const CurveErrors errors = curve_errors(seconds, *run, 10);
  EXPECT_DOUBLE_EQ(errors.running, 2.0 / 4);
  ASSERT_TRUE(errors.has_kv_cache);
  // Distances: |0.1 - 0.2| at 1.5 s, |0.2 - 0.1| at 2.5 s, |0 - 0.1| at 3.5 s, over a sum of 0.4.
  EXPECT_NEAR(errors.kv_cache, 0.3 / 0.4, 1e-12);
  const trace::RunSecond without[] = {{1.5, 1, 0, 0}};
  EXPECT_FALSE(curve_errors(without, *run, 10).has_kv_cache);
}

TEST(RunComparison, ARequestThatTheEngineCannotHoldIsAnError) {
  const OneSecond timing;
  std::vector<trace::RecordedRequest> requests = recorded();
  requests[1].input_tokens = 101;
  EXPECT_FALSE(simulate_run(requests, kEngine, timing).ok());
}

}  // namespace
}  // namespace cachalot::sim
