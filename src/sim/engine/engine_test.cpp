#include "sim/engine/engine.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace cachalot::sim {
namespace {

// A step takes 1 s, and 0.001 s for each token of a prompt.
class PlainTiming final : public sched::TimingModel {
 public:
  double step_seconds(std::span<const sched::PrefillPart> prefill,
                      const sched::DecodePart&) const override {
    double seconds = 1;
    for (const sched::PrefillPart& part : prefill)
      seconds += 0.001 * static_cast<double>(part.new_tokens);
    return seconds;
  }
  double prefill_seconds(std::uint64_t input, std::uint64_t hit) const override {
    return 1 + 0.001 * static_cast<double>(input - hit);
  }
};

class Notes final : public EngineListener {
 public:
  void on_first_token(std::uint64_t id, const RequestTimes& got) override {
    first[id] = got.first_token_s;
  }
  void on_finished(std::uint64_t id, const RequestTimes& got) override {
    ++finished[id];
    times[id] = got;
  }
  void on_step(const StepRecord& step) override { steps.push_back(step); }

  std::map<std::uint64_t, double> first;
  std::map<std::uint64_t, int> finished;
  std::map<std::uint64_t, RequestTimes> times;
  std::vector<StepRecord> steps;
};

struct Outcome {
  Notes notes;
  std::uint64_t preemptions = 0, used_blocks = 0, used_host_blocks = 0;
};

Outcome run(const EngineOptions& options, const std::vector<EngineRequest>& requests) {
  const PlainTiming timing;
  Outcome outcome;
  Result<Engine> engine = Engine::make(options, timing, outcome.notes);
  EXPECT_TRUE(engine.ok());
  for (const EngineRequest& request : requests) {
    const Status status = engine->submit(request);
    EXPECT_TRUE(status.ok()) << status.error().message;
  }
  while (engine->next_event_s() != Engine::kNever) engine->advance();
  EXPECT_TRUE(engine->pool().is_valid());
  outcome.preemptions = engine->preemptions();
  outcome.used_blocks = engine->used_blocks();
  outcome.used_host_blocks = engine->used_host_blocks();
  return outcome;
}

EngineOptions synchronous(std::uint64_t blocks) {
  return {.blocks = blocks,
          .block_tokens = 10,
          .max_sequences = 4,
          .step_tokens = 100,
          .async_scheduling = false};
}

EngineRequest request(std::uint64_t id, double arrival_s, std::uint64_t input,
                      std::uint64_t output) {
  return {.id = id, .arrival_s = arrival_s, .input_tokens = input, .output_tokens = output};
}

TEST(Engine, ARequestAloneTakesItsChunksAndOneStepAToken) {
  // 250 tokens: chunks of 100, 100 and 50 take 1.1 + 1.1 + 1.05 s; then two more tokens, 1 s each.
  const Outcome got = run(synchronous(100), {request(7, 5, 250, 3)});
  const RequestTimes& times = got.notes.times.at(7);
  EXPECT_DOUBLE_EQ(times.queued_s, 5);
  EXPECT_DOUBLE_EQ(times.scheduled_s, 5);
  EXPECT_DOUBLE_EQ(times.first_token_s, 8.25);
  EXPECT_DOUBLE_EQ(times.last_token_s, 10.25);
  ASSERT_EQ(got.notes.steps.size(), 5u);
  EXPECT_EQ(got.notes.steps[2].prompt_tokens, 50u);
  EXPECT_EQ(got.notes.steps[3].decodes, 1u);
  EXPECT_EQ(got.used_blocks, 0u);
}

TEST(Engine, WithAsynchronousSchedulingArrivalsAreSeenWhenAStepEndsAndStartOneStepLater) {
  EngineOptions options = synchronous(100);
  options.async_scheduling = true;
  const Outcome got = run(options, {request(0, 0, 100, 5), request(1, 0.5, 20, 1)});
  // Request 0: step 1 to 1.1 s, then one a second; step 2, a decode, was launched at 0.
  EXPECT_DOUBLE_EQ(got.notes.times.at(0).first_token_s, 1.1);
  // Request 1 is seen at 1.1 s and goes into step 3, from 2.1 to 3.12 s.
  EXPECT_DOUBLE_EQ(got.notes.times.at(1).queued_s, 1.1);
  EXPECT_DOUBLE_EQ(got.notes.times.at(1).scheduled_s, 1.1);
  EXPECT_DOUBLE_EQ(got.notes.times.at(1).first_token_s, 3.12);
  EXPECT_DOUBLE_EQ(got.notes.times.at(0).last_token_s, 5.12);
}

TEST(Engine, WithAsynchronousSchedulingAPlaceIsFreeOneStepLate) {
  EngineOptions options = synchronous(100);
  options.async_scheduling = true;
  options.max_sequences = 1;
  const Outcome got = run(options, {request(0, 0, 10, 2), request(1, 0, 10, 1)});
  // Request 0 ends with step 2, at 2.01 s: only then request 1 is scheduled.
  EXPECT_DOUBLE_EQ(got.notes.times.at(0).last_token_s, 2.01);
  EXPECT_DOUBLE_EQ(got.notes.times.at(1).scheduled_s, 2.01);
  EXPECT_DOUBLE_EQ(got.notes.times.at(1).first_token_s, 3.02);
}

TEST(Engine, RunningRequestsComeBeforeWaitingOnes) {
  // At 1.1 s request 0 decodes, and 99 tokens are left for request 1's prompt of 150.
  const Outcome got = run(synchronous(100), {request(0, 0, 100, 4), request(1, 0.1, 150, 1)});
  ASSERT_GE(got.notes.steps.size(), 3u);
  EXPECT_EQ(got.notes.steps[1].decodes, 1u);
  EXPECT_EQ(got.notes.steps[1].prompt_tokens, 99u);
  EXPECT_EQ(got.notes.steps[2].prompt_tokens, 51u);
  EXPECT_DOUBLE_EQ(got.notes.times.at(1).first_token_s, 1.1 + 1.099 + 1.051);
}

TEST(Engine, RequestsBeyondTheSequencesWaitInOrder) {
  const Outcome got =
      run(synchronous(100), {request(0, 0, 5, 3), request(1, 0, 5, 3), request(2, 0, 5, 3),
                             request(3, 0, 5, 3), request(4, 0, 5, 1), request(5, 0, 5, 1)});
  EXPECT_EQ(got.notes.steps[0].running, 4u);
  EXPECT_EQ(got.notes.steps[0].waiting, 2u);
  EXPECT_DOUBLE_EQ(got.notes.times.at(4).scheduled_s, got.notes.times.at(0).last_token_s);
  EXPECT_DOUBLE_EQ(got.notes.times.at(5).scheduled_s, got.notes.times.at(4).scheduled_s);
}

TEST(Engine, APromptIsAdmittedWhenAllOfItFits) {
  // 12 blocks of 10. Request 0 holds 6; request 1 needs 7: not while the other runs, though its first chunk would fit.
  EngineOptions options = synchronous(12);
  options.step_tokens = 60;
  const std::vector<EngineRequest> requests = {request(0, 0, 55, 4), request(1, 0.1, 70, 1)};
  const Outcome whole = run(options, requests);
  EXPECT_DOUBLE_EQ(whole.notes.times.at(1).scheduled_s, whole.notes.times.at(0).last_token_s);
  options.whole_prompt_must_fit = false;
  const Outcome chunked = run(options, requests);
  EXPECT_LT(chunked.notes.times.at(1).scheduled_s, chunked.notes.times.at(0).last_token_s);
}

TEST(Engine, TheRequestAdmittedLastIsPreemptedAndComputesItsLostBlocksAgain) {
  // 4 blocks of 10, two requests of 19 tokens in and 10 out. Each needs its third block for token 21: the first one
  // takes a block of the second.
  const Outcome got = run(synchronous(4), {request(0, 0, 19, 10), request(1, 0, 19, 10)});
  EXPECT_EQ(got.preemptions, 1u);
  EXPECT_EQ(got.notes.times.at(0).preemptions, 0u);
  EXPECT_EQ(got.notes.times.at(1).preemptions, 1u);
  // The first: prefill to 1.038 s, then 9 steps.
  EXPECT_DOUBLE_EQ(got.notes.times.at(0).last_token_s, 10.038);
  // The second has two tokens at 2.038 s. At the end of the first its blocks are free again: its 21 tokens less the
  // block that nothing took, 10, are computed in one step, of 1.011 s; then 7 more.
  EXPECT_DOUBLE_EQ(got.notes.times.at(1).last_token_s, 10.038 + 1.011 + 7);
  EXPECT_DOUBLE_EQ(got.notes.times.at(1).first_token_s, 1.038);
}

TEST(Engine, APreemptedRequestGoesBeforeThoseThatWait) {
  // As above; request 2 would fit into the block that is left, but the preempted request is before it and does not.
  EngineOptions options = synchronous(4);
  options.max_sequences = 2;
  const Outcome got =
      run(options, {request(0, 0, 19, 10), request(1, 0, 19, 10), request(2, 1.5, 5, 1)});
  EXPECT_EQ(got.preemptions, 1u);
  EXPECT_DOUBLE_EQ(got.notes.times.at(2).scheduled_s, got.notes.times.at(0).last_token_s);
}

TEST(Engine, ASwappedRequestComesBackInsteadOfBeingComputedAgain) {
  // As above, with a byte a block and a byte a second to the host. The second request has 20 tokens in 2 blocks when the
  // first one takes its block: the step takes 2 s longer. It comes back after 12.038 s; one of its blocks is still there,
  // the other takes 1 s; then its 8 last tokens take 1 s each.
  EngineOptions options = synchronous(4);
  options.layerwise = {.kind = sched::LayerwiseKind::kSwap, .host_bytes_per_s = 1};
  options.kv_bytes_per_block = 1;
  const Outcome got = run(options, {request(0, 0, 19, 10), request(1, 0, 19, 10)});
  EXPECT_EQ(got.preemptions, 1u);
  EXPECT_DOUBLE_EQ(got.notes.times.at(0).last_token_s, 10.038 + 2);
  EXPECT_DOUBLE_EQ(got.notes.times.at(1).last_token_s, 12.038 + 1 + 8);
  EXPECT_EQ(got.used_host_blocks, 0u);
}

TEST(Engine, LayerByLayerAPromptBeginsWhereOnlySomeOfItsLayersFit) {
  // 10 blocks of 10; two prompts of 90 need 9 each. 2 of 10 layers of each need 2.
  EngineOptions options = synchronous(10);
  options.layerwise = {.layers = 10, .staging_layers = 2, .host_bytes_per_s = 1000};
  options.kv_bytes_per_block = 1;
  const std::vector<EngineRequest> requests = {request(0, 0, 90, 10), request(1, 0.1, 90, 5)};
  const Outcome off = run(options, requests);
  EXPECT_GT(off.notes.times.at(1).first_token_s, off.notes.times.at(0).last_token_s);
  for (const sched::LayerwiseKind kind : {sched::LayerwiseKind::kOn, sched::LayerwiseKind::kAuto}) {
    options.layerwise.kind = kind;
    const Outcome got = run(options, requests);
    EXPECT_LT(got.notes.times.at(1).first_token_s, got.notes.times.at(0).last_token_s);
    EXPECT_EQ(got.used_host_blocks, 0u);
    EXPECT_EQ(got.preemptions, 0u);
  }
}

TEST(Engine, AStepTakesAsLongAsItsCopies) {
  // 9 blocks of which 2 stay: 7 bytes go out beside the prompt's 1.09 s, at 1 byte a second: but no layer hides then.
  // At 10 bytes a second a layer, 0.9 bytes, takes 0.09 s, and all 8 hide. Then the 7 bytes come back for good beside
  // the second step, in 0.7 s of 1 s; free blocks less 2 for a running request: 6. So 7 bytes are loaded.
  EngineOptions options = synchronous(10);
  options.layerwise = {
      .kind = sched::LayerwiseKind::kOn, .layers = 10, .staging_layers = 2, .host_bytes_per_s = 10};
  options.kv_bytes_per_block = 1;
  const Outcome got = run(options, {request(0, 0, 90, 3)});
  ASSERT_EQ(got.notes.steps.size(), 3u);
  EXPECT_DOUBLE_EQ(got.notes.steps[0].out_bytes, 7);
  EXPECT_DOUBLE_EQ(got.notes.steps[1].in_bytes, 7);
  EXPECT_DOUBLE_EQ(got.notes.times.at(0).last_token_s, 1.09 + 1 + 1);
}

TEST(Engine, PromptsWithTheSameKeysShareTheirBlocks) {
  const std::uint64_t keys[] = {1, 2, 3};
  EngineRequest first = request(0, 0, 35, 2), second = request(1, 10, 35, 1);
  first.keys = second.keys = keys;
  const Outcome got = run(synchronous(20), {first, second});
  EXPECT_EQ(got.notes.times.at(0).hit_tokens, 0u);
  EXPECT_EQ(got.notes.times.at(1).hit_tokens, 30u);
  EXPECT_DOUBLE_EQ(got.notes.times.at(1).first_token_s, 10 + 1.005);
}

TEST(Engine, AWholePromptInTheCacheComputesItsLastBlockAgain) {
  const std::uint64_t keys[] = {1, 2, 3};
  EngineRequest first = request(0, 0, 30, 1), second = request(1, 10, 30, 1);
  first.keys = second.keys = keys;
  EXPECT_EQ(run(synchronous(20), {first, second}).notes.times.at(1).hit_tokens, 20u);
}

TEST(Engine, KvFromElsewhereIsNotComputed) {
  EngineRequest decode_only = request(0, 0, 90, 3);
  decode_only.ready_tokens = 90;
  const Outcome got = run(synchronous(20), {decode_only});
  EXPECT_EQ(got.notes.steps[0].prompt_tokens, 1u);
  EXPECT_DOUBLE_EQ(got.notes.times.at(0).first_token_s, 1.001);
}

TEST(Engine, WhatCannotBeIsRefused) {
  const PlainTiming timing;
  Notes notes;
  Result<Engine> engine = Engine::make(synchronous(4), timing, notes);
  ASSERT_TRUE(engine.ok());
  const Status too_long = engine->submit(request(3, 0, 39, 2));
  ASSERT_FALSE(too_long.ok());
  EXPECT_STREQ(too_long.error().message,
               "request 3: 39 input and 2 output tokens, but the KV blocks of an engine hold 40");
  EXPECT_FALSE(engine->submit(request(3, 0, 0, 2)).ok());
  EXPECT_FALSE(engine->submit(request(3, 0, 5, 0)).ok());
  EXPECT_FALSE(engine->submit(request(3, 0, 5, ~std::uint64_t{0})).ok());
  EXPECT_EQ(engine->next_event_s(), Engine::kNever);
  EXPECT_FALSE(Engine::make(synchronous(0), timing, notes).ok());
}

RC_GTEST_PROP(Engine, EveryRequestFinishesOnceAndTheSameWayEachTime, ()) {
  EngineOptions options = {.blocks = *rc::gen::inRange<std::uint64_t>(8, 40),
                           .block_tokens = *rc::gen::inRange<std::uint64_t>(1, 9),
                           .max_sequences = *rc::gen::inRange<std::uint64_t>(1, 9),
                           .step_tokens = *rc::gen::inRange<std::uint64_t>(1, 60),
                           .prefix_caching = *rc::gen::arbitrary<bool>(),
                           .async_scheduling = *rc::gen::arbitrary<bool>(),
                           .whole_prompt_must_fit = *rc::gen::arbitrary<bool>()};
  options.layerwise = {.kind = static_cast<sched::LayerwiseKind>(*rc::gen::inRange(0, 4)),
                       .layers = *rc::gen::inRange<std::uint64_t>(1, 12),
                       .staging_layers = *rc::gen::inRange<std::uint64_t>(0, 4),
                       .host_bytes_per_s = *rc::gen::element(0.5, 3.0, 100.0),
                       .tbt_slo_s = *rc::gen::element(0.5, 1.5, 3.0, Engine::kNever)};
  options.kv_bytes_per_block = 1;
  options.host_blocks = *rc::gen::element<std::uint64_t>(0, 5, 30, ~std::uint64_t{0});
  const std::vector<std::uint64_t> keys = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<EngineRequest> requests;
  double now = 0;
  const auto count = *rc::gen::inRange<std::uint64_t>(1, 30);
  for (std::uint64_t id = 0; id < count; ++id) {
    now += *rc::gen::inRange(0, 40) / 10.0;
    const auto most = options.capacity_tokens();
    const auto input = *rc::gen::inRange<std::uint64_t>(1, most);
    const auto output = *rc::gen::inRange<std::uint64_t>(1, most - input + 1);
    requests.push_back(request(id, now, input, output));
    const auto shared = *rc::gen::inRange<std::size_t>(0, 8);
    requests.back().keys =
        std::span(keys).first(std::min<std::size_t>(shared, input / options.block_tokens));
  }
  const Outcome first = run(options, requests), second = run(options, requests);
  RC_ASSERT(first.notes.finished.size() == requests.size());
  for (const auto& [id, times] : first.notes.finished) RC_ASSERT(times == 1);
  for (const auto& [id, times] : first.notes.times) {
    RC_ASSERT(times.arrival_s <= times.queued_s);
    RC_ASSERT(times.queued_s <= times.scheduled_s);
    RC_ASSERT(times.scheduled_s < times.first_token_s);
    RC_ASSERT(times.first_token_s <= times.last_token_s);
    RC_ASSERT(times.last_token_s == second.notes.times.at(id).last_token_s);
  }
  double last = 0;
  for (const StepRecord& step : first.notes.steps) {
    RC_ASSERT(step.used_blocks <= options.blocks);
    RC_ASSERT(step.running <= options.max_sequences);
    RC_ASSERT(step.prompt_tokens + step.decodes <= options.step_tokens);
    RC_ASSERT(step.start_s >= last);
    last = step.end_s;
  }
  RC_ASSERT(first.used_blocks == 0u);
  RC_ASSERT(first.used_host_blocks == 0u);
}

}  // namespace
}  // namespace cachalot::sim
