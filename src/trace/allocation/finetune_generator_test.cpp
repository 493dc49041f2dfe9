#include "trace/allocation/finetune_generator.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "trace/allocation/alloc_trace.h"
#include "trace/allocation/alloc_trace_summary.h"

namespace cachalot::trace {
namespace {

std::vector<AllocEvent> events_of(const FinetuneOptions& options) {
  Result<FinetuneGenerator> generator = FinetuneGenerator::make(options);
  EXPECT_TRUE(generator) << generator.error().message;
  std::vector<AllocEvent> events;
  AllocEvent event;
  while (generator->next(event)) {
    event.text = {};  // valid until the next call only
    events.push_back(event);
  }
  return events;
}

AllocTraceSummary summary_of(const std::vector<AllocEvent>& events) {
  AllocTraceSummary summary;
  for (const AllocEvent& event : events) EXPECT_TRUE(summary.add(event));
  return summary;
}

FinetuneOptions small() {
  return {.model = {"small", 3, 64, 4, 256, 1000, false, true, true, true},
          .batch = 2,
          .sequence = 32,
          .iterations = 3};
}

// As ids, sizes and kinds follow each other.
bool is_same(const AllocEvent& a, const AllocEvent& b) {
  return a.kind == b.kind && a.id == b.id && a.bytes == b.bytes && a.stream == b.stream;
}

// The sample never frees the last layer's output, one block an iteration; all else is the same.
TEST(FinetuneGenerator, MakesTheSampleButForABlockThatItForgets) {
  const std::vector<AllocEvent> events = events_of({.model = *find_finetune_model("OPT-1.3B"),
                                                    .batch = 112,
                                                    .lora_rank = 128,
                                                    .recompute = true});
  AllocTrace sample = *AllocTrace::open(CACHALOT_TEST_ASSETS "/alloc/gen_opt1.3b_LR_b112.trace.gz");
  AllocEvent expected;
  std::set<std::uint64_t> forgotten_bytes;
  std::uint64_t forgotten = 0;
  ASSERT_TRUE(*sample.next(expected));
  for (const AllocEvent& event : events) {
    if (event.kind == AllocKind::kMark) continue;
    if (is_same(event, expected)) {
      if (!*sample.next(expected)) expected = {};
      continue;
    }
    ASSERT_EQ(event.kind, AllocKind::kFree) << "event " << event.id;
    forgotten_bytes.insert(event.bytes);
    ++forgotten;
  }
  EXPECT_FALSE(*sample.next(expected));
  EXPECT_EQ(forgotten, 6u);
  EXPECT_EQ(forgotten_bytes, std::set<std::uint64_t>{2u * 112 * 512 * 2048});
}

TEST(FinetuneGenerator, AnIterationLeavesWhatItFound) {
  for (const bool recompute : {false, true}) {
    FinetuneOptions options = small();
    options.recompute = recompute;
    std::uint64_t live = 0;
    std::set<std::uint64_t> live_at_marks;
    for (const AllocEvent& event : events_of(options)) {
      if (event.kind == AllocKind::kAllocate) live += event.bytes;
      if (event.kind == AllocKind::kFree) live -= event.bytes;
      if (event.kind == AllocKind::kMark) live_at_marks.insert(live);
    }
    EXPECT_EQ(live_at_marks, std::set<std::uint64_t>{live});
  }
}

TEST(FinetuneGenerator, EqualOptionsGiveEqualTraces) {
  FinetuneOptions options = small();
  options.dynamic_padding = 0.5;
  const std::vector<AllocEvent> once = events_of(options), again = events_of(options);
  EXPECT_TRUE(std::equal(once.begin(), once.end(), again.begin(), again.end(), is_same));
  options.seed = 2;
  const std::vector<AllocEvent> other = events_of(options);
  EXPECT_FALSE(std::equal(once.begin(), once.end(), other.begin(), other.end(), is_same));
}

// The first block of an iteration has eight bytes a token.
TEST(FinetuneGenerator, DynamicPaddingDrawsSequencesWithinItsRange) {
  FinetuneOptions options = small();
  options.dynamic_padding = 0.5;
  options.iterations = 200;
  std::set<std::uint64_t> sequences;
  bool is_first = false;
  for (const AllocEvent& event : events_of(options)) {
    if (is_first) sequences.insert(event.bytes / 8 / options.batch);
    is_first = event.kind == AllocKind::kMark;
  }
  EXPECT_EQ(*sequences.begin(), 16u);
  EXPECT_EQ(*sequences.rbegin(), 32u);
  EXPECT_EQ(sequences.size(), 17u);
}

TEST(FinetuneGenerator, EachWayToSaveMemorySavesSome) {
  const auto peak = [](const FinetuneOptions& options) {
    return summary_of(events_of(options)).peak_live_bytes();
  };
  FinetuneOptions options = {.model = *find_finetune_model("OPT-13B"), .iterations = 1};
  const std::uint64_t plain = peak(options);
  options.recompute = true;
  const std::uint64_t recomputed = peak(options);
  EXPECT_LT(recomputed, plain);
  options.gpus = 8;
  EXPECT_LT(peak(options), recomputed);
  options.gpus = 4;
  options.lora_rank = 128;
  const std::uint64_t with_lora = peak(options);
  EXPECT_LT(with_lora, recomputed);
  options.offload = true;
  EXPECT_LT(peak(options), with_lora);
}

TEST(FinetuneGenerator, GatheredWeightsHaveAStreamOfTheirOwnWhereAsked) {
  FinetuneOptions options = small();
  EXPECT_EQ(summary_of(events_of(options)).streams(), 1u);
  options.gather_stream = true;
  std::set<std::uint64_t> sizes;
  for (const AllocEvent& event : events_of(options)) {
    if (event.stream == 1) sizes.insert(event.bytes);
  }
  EXPECT_EQ(sizes, (std::set<std::uint64_t>{2 * 64 * 64, 2 * 64 * 256, 2 * 64 * 1000}));
}

TEST(FinetuneGenerator, RefusesNumbersOutOfRange) {
  const auto complaint = [](FinetuneOptions options) {
    const auto generator = FinetuneGenerator::make(options);
    return std::string(generator ? "none" : generator.error().message);
  };
  EXPECT_EQ(complaint({.gpus = 0}), "gpus: 0, expected 1 to 65536");
  EXPECT_EQ(complaint({.batch = 1025}), "batch: 1025, expected 1 to 1024");
  EXPECT_EQ(complaint({.sequence = 1}), "sequence: 1, expected 2 to 65536");
  EXPECT_EQ(complaint({.lora_rank = 2049}), "lora rank: 2049, expected 0 to 2048");
  EXPECT_EQ(complaint({.dynamic_padding = 1}), "dynamic padding: 1, expected 0 to below 1");
  EXPECT_EQ(complaint({.iterations = 0}), "iterations: 0, expected 1 to 1000000");
  EXPECT_STREQ(find_finetune_model("GPT-2").error().message,
               "model: \"GPT-2\" is none, expected one of OPT-1.3B, OPT-13B, Llama-7B, Llama-13B, "
               "Vicuna-13B, GPT-NeoX-20B");
}

// What AllocTrace checks holds here as well, and slots are reused.
RC_GTEST_PROP(FinetuneGenerator, EveryChoiceGivesAConsistentTrace,
              (bool has_lora, bool recompute, bool offload, bool gather_stream, bool has_gate,
               std::uint8_t gpus, std::uint8_t padding)) {
  FinetuneOptions options = small();
  options.model.has_gate = has_gate;
  options.model.has_dropout = options.model.has_positions = !has_gate;
  options.lora_rank = has_lora ? 8 : 0;
  options.recompute = recompute;
  options.offload = offload;
  options.gather_stream = gather_stream;
  options.gpus = gpus % 16 + 1u;
  options.dynamic_padding = padding / 256.0;
  std::set<std::uint64_t> live, slots;
  for (const AllocEvent& event : events_of(options)) {
    if (event.kind == AllocKind::kAllocate) {
      RC_ASSERT(event.bytes > 0u);
      RC_ASSERT(live.insert(event.id).second);
      RC_ASSERT(slots.insert(event.slot).second);
    } else if (event.kind == AllocKind::kFree) {
      RC_ASSERT(live.erase(event.id) == 1u);
      RC_ASSERT(slots.erase(event.slot) == 1u);
    }
  }
}

}  // namespace
}  // namespace cachalot::trace
