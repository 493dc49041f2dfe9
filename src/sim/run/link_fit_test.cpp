#include "sim/run/link_fit.h"

#include <gtest/gtest.h>

#include <string>

namespace cachalot::sim {
namespace {

// Steps of an engine over two GPUs that reduce 64 times 8 KB a token.
class OverALink final : public sched::TimingModel {
 public:
  explicit OverALink(const Link& link) : link_(link) {}
  double step_seconds(std::span<const sched::PrefillPart> prefill,
                      const sched::DecodePart& decode) const override {
    auto tokens = static_cast<double>(decode.sequences);
    for (const sched::PrefillPart& part : prefill) tokens += static_cast<double>(part.new_tokens);
    return 2e-3 + 10e-6 * tokens + 64 * (link_.latency_s + tokens * 8192 / link_.bytes_per_second);
  }
  double prefill_seconds(std::uint64_t, std::uint64_t) const override { return 1; }

 private:
  Link link_;
};

Result<std::unique_ptr<sched::TimingModel>> timing_of(const Link& link) {
  return std::unique_ptr<sched::TimingModel>(std::make_unique<OverALink>(link));
}

constexpr EngineOptions kEngine = {
    .blocks = 4000, .block_tokens = 16, .max_sequences = 64, .step_tokens = 2048};

// What an engine with this link would have recorded.
trace::RecordedRun recorded_with(const Link& link, trace::RunFormat format) {
  trace::RecordedRun run;
  run.format = format;
  for (std::uint64_t i = 0; i < 40; ++i) {
    run.requests.push_back({.input_tokens = 500 + 40 * (i % 7),
                            .output_tokens = 50 + i % 5,
                            .arrival_s = 0.11 * static_cast<double>(i)});
  }
  const Result<SimulatedRun> simulated = simulate_run(run.requests, kEngine, OverALink(link));
  EXPECT_TRUE(simulated);
  for (std::size_t i = 0; i < run.requests.size(); ++i) {
    const RequestTimes& times = simulated->requests[i];
    run.requests[i].queued_s = times.queued_s;
    run.requests[i].scheduled_s = times.scheduled_s;
    run.requests[i].first_token_s = times.first_token_s;
    run.requests[i].last_token_s = times.last_token_s;
  }
  return run;
}

TEST(LinkFit, FindsTheLinkThatARunWasRecordedWith) {
  const Link start = {40e9, 12e-6};
  for (const Link& link : {Link{20e9, 40e-6}, Link{5e9, 80e-6}, Link{300e9, 8e-6}}) {
    for (const trace::RunFormat format :
         {trace::RunFormat::kEngine, trace::RunFormat::kVllmBench}) {
      const trace::RecordedRun run = recorded_with(link, format);
      const Result<LinkFit> fit = fit_link(run, kEngine, start, timing_of);
      ASSERT_TRUE(fit) << fit.error().message;
      EXPECT_NEAR(fit->link.bytes_per_second / link.bytes_per_second, 1, 0.1);
      EXPECT_NEAR(fit->link.latency_s / link.latency_s, 1, 0.1);
      EXPECT_NEAR(relative_error(fit->simulated.tpot_mean, figures_of(run.requests).tpot_mean), 0,
                  0.005);
    }
  }
}

TEST(LinkFit, ARunWithoutGapsBetweenTokensCannotTell) {
  trace::RecordedRun run = recorded_with({20e9, 40e-6}, trace::RunFormat::kEngine);
  for (trace::RecordedRequest& request : run.requests) request.output_tokens = 1;
  const Result<LinkFit> fit = fit_link(run, kEngine, {40e9, 12e-6}, timing_of);
  ASSERT_FALSE(fit);
  EXPECT_EQ(fit.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::string(fit.error().message).find("no time to a first token or between tokens"),
            std::string::npos);
}

}  // namespace
}  // namespace cachalot::sim
