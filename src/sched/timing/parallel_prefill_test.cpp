#include "sched/timing/parallel_prefill.h"

#include <gtest/gtest.h>

#include "sched/timing/small_profile.h"
#include "sched/timing/timing_preset.h"

namespace cachalot::sched {
namespace {

// 1 ms a token, whatever its context.
class OneMillisecond final : public TimingModel {
 public:
  double step_seconds(std::span<const PrefillPart> prefill, const DecodePart&) const override {
    double seconds = 0;
    for (const PrefillPart& part : prefill) seconds += 0.001 * static_cast<double>(part.new_tokens);
    return seconds;
  }
  double prefill_seconds(std::uint64_t input, std::uint64_t hit) const override {
    return 0.001 * static_cast<double>(input - hit);
  }
};

// small_model(): 10 layers, width 1,000, KV of 10 * 2 * 2 * 128 numbers.
constexpr GroupLink kLink = {.bytes_per_second = 1e6, .latency_s = 0.01};

TEST(ChunkedPipeline, FillsOnceAndThenTakesAStageAChunk) {
  const OneMillisecond timing;
  // 4 stages of 25 ms a chunk of 100. At 2e7 bytes/s a chunk of 100 * 1,000 * 2 bytes is sent in 10 ms, while the next
  // one computes. The last of 10 chunks leaves stage 1 at 250 ms, then three hops and stages.
  EXPECT_DOUBLE_EQ(chunked_pipeline_seconds(timing, small_model(), 1000, 4, 100, {2e7, 0.01}),
                   0.25 + 3 * (0.01 + 0.01 + 0.025));
  EXPECT_DOUBLE_EQ(chunked_pipeline_seconds(timing, small_model(), 1000, 1, 100, kLink), 1);
  // One chunk: no parallelism.
  EXPECT_NEAR(chunked_pipeline_seconds(timing, small_model(), 1000, 4, 1000, {1e18, 0}), 1, 1e-9);
}

TEST(ChunkedPipeline, ALinkSendsOneChunkAfterTheOther) {
  const OneMillisecond timing;
  // 2 stages of 50 ms a chunk. At 1e6 bytes/s a chunk is sent in 200 ms: the first leaves at 50 ms, all ten are sent at
  // 2.05 s. Then the latency and the stage of the last one.
  EXPECT_DOUBLE_EQ(chunked_pipeline_seconds(timing, small_model(), 1000, 2, 100, kLink),
                   2.05 + 0.01 + 0.05);
}

TEST(SequenceParallelism, IsBoundByComputingOrByTheRing) {
  const OneMillisecond timing;
  // A layer's share of KV: 500 tokens * 512 numbers * 2 bytes = 512,000 bytes.
  EXPECT_DOUBLE_EQ(sequence_parallel_seconds(timing, small_model(), 1000, 2, {1e9, 0}), 0.5);
  EXPECT_DOUBLE_EQ(sequence_parallel_seconds(timing, small_model(), 1000, 2, kLink),
                   10 * (0.01 + 0.512));
  EXPECT_DOUBLE_EQ(sequence_parallel_seconds(timing, small_model(), 1000, 1, kLink), 1);
}

TEST(TensorParallelism, AddsTwoAllReducesALayer) {
  const OneMillisecond timing;
  // 1,000 tokens * 1,000 * 2 bytes, once for two instances: 2.01 s each, 20 of them.
  EXPECT_DOUBLE_EQ(tensor_parallel_seconds(timing, small_model(), 1000, 2, kLink), 0.5 + 20 * 2.01);
  EXPECT_DOUBLE_EQ(tensor_parallel_seconds(timing, small_model(), 1000, 1, kLink), 1);
}

TEST(ParallelPrefill, BytesAreThoseOfAllInstances) {
  // 100 tokens on 3 instances. Pipeline: 2 hops * 100 * 1,000 * 2 bytes.
  EXPECT_DOUBLE_EQ(chunked_pipeline_bytes(small_model(), 100, 3), 400'000);
  // Ring: each token's KV of 10 * 512 numbers * 2 bytes visits 2 instances.
  EXPECT_DOUBLE_EQ(sequence_parallel_bytes(small_model(), 100, 3), 2'048'000);
  // All-reduce: 3 instances * 2 * 2 / 3 * 200,000 bytes, 20 times.
  EXPECT_DOUBLE_EQ(tensor_parallel_bytes(small_model(), 100, 3), 16'000'000);
  EXPECT_DOUBLE_EQ(tensor_parallel_bytes(small_model(), 100, 1), 0);
}

TEST(ParallelPrefill, TheBestChunkIsShortUntilHopsTakeLonger) {
  const OneMillisecond timing;
  // Without hops the fill is all that is lost: the shortest chunk.
  EXPECT_EQ(best_chunk_tokens(timing, small_model(), 65536, 4, {1e18, 0}), 1024);
  // With 2 stages and a hop of 1,000 s, only the number of hops that the last chunk waits for counts, which is one.
  EXPECT_EQ(best_chunk_tokens(timing, small_model(), 65536, 2, {1e18, 1000}), 1024);
  // One instance: all chunks are equal.
  EXPECT_EQ(best_chunk_tokens(timing, small_model(), 65536, 1, {1e18, 0}), 65536);
}

TEST(OffloadRatio, IsTheCopysTimeOverThePrefills) {
  const OneMillisecond timing;
  // 100 tokens of 1,000 bytes at 1e6 bytes/s take as long as computing them.
  EXPECT_DOUBLE_EQ(offload_ratio(timing, 1000, 100, 1e6), 1);
}

TEST(TimingPreset, MooncakesIsThePapersFormula) {
  const Result<TimingPreset> preset = find_timing_preset("LLaMA3-70B", "8xA800_SXM");
  ASSERT_TRUE(preset.ok()) << preset.error().message;
  EXPECT_FALSE(preset->is_estimate);
  EXPECT_DOUBLE_EQ(preset->formula.peak_flops, 8 * 312e12);
  EXPECT_DOUBLE_EQ(preset->formula.kv_bytes_per_token, 327680);
  EXPECT_DOUBLE_EQ(preset->formula.a, 4);
  EXPECT_DOUBLE_EQ(preset->formula.correction, 1.67);
}

TEST(TimingPreset, BelugasTakesWhatTheTableSaysForAPrompt) {
  const Result<TimingPreset> preset = find_timing_preset("Qwen3-32B", "h20");
  ASSERT_TRUE(preset.ok()) << preset.error().message;
  EXPECT_FALSE(preset->is_estimate);
  const Result<FormulaModel> model = FormulaModel::make(preset->formula);
  ASSERT_TRUE(model.ok());
  EXPECT_NEAR(model->prefill_seconds(15000, 0), 16.7 - 1.4, 0.3);
  // 28.3 GB of KV, as the paper has it: 262,144 bytes a token.
  EXPECT_NEAR(static_cast<double>(preset->kv_capacity_tokens) * 262144, 28.3e9, 6e9);
}

TEST(TimingPreset, OthersSayThatTheyAreEstimates) {
  const Result<TimingPreset> preset = find_timing_preset("Qwen3-8B", "2xH100_SXM");
  ASSERT_TRUE(preset.ok()) << preset.error().message;
  EXPECT_TRUE(preset->is_estimate);
  EXPECT_DOUBLE_EQ(preset->gpus, 2);
  // By its own operations: the formula is the model's.
  const Result<FormulaModel> model = FormulaModel::make(preset->formula);
  ASSERT_TRUE(model.ok());
  EXPECT_NEAR(model->flops(1000) /
                  (1000 * preset->model.flops_per_token() + preset->model.attention_flops(1000, 0)),
              1, 1e-9);
}

TEST(TimingPreset, WhatIsNotKnownOrDoesNotFitIsAnError) {
  EXPECT_FALSE(find_timing_preset("gpt-9", "H20").ok());
  EXPECT_FALSE(find_timing_preset("Qwen3-8B", "8xH21").ok());
  EXPECT_FALSE(find_timing_preset("Qwen3-8B", "0xH20").ok());
  EXPECT_FALSE(find_timing_preset("Llama-3.1-70B", "RTX4090").ok());
}

}  // namespace
}  // namespace cachalot::sched
