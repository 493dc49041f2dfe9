// What a recorder has written of a trace's requests has the trace's own hit rates.
#include <cachalot/trace_recorder.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/rng.h"
#include "cache_sim/hit_rate.h"
#include "trace/request/request_trace.h"

namespace cachalot {
namespace {

constexpr const char* kConversation = CACHALOT_TEST_ASSETS "/traces/conversation_trace.jsonl.gz";

template <class Use>
void for_each_request(const std::string& file, Use use) {
  Result<trace::RequestTrace> reader = trace::RequestTrace::open(file, {.block_tokens = 512});
  ASSERT_TRUE(reader) << reader.error().message;
  trace::Request request;
  for (;;) {
    const Result<bool> more = reader->next(request);
    ASSERT_TRUE(more) << more.error().message;
    if (!*more) break;
    use(request);
  }
}

std::vector<cache_sim::HitRateRow> rows_of(const std::string& file) {
  std::vector<cache_sim::CacheSpec> specs;
  for (const std::uint64_t capacity :
       {std::uint64_t{1000}, std::uint64_t{30000}, cache_sim::kUnlimitedBlocks}) {
    specs.push_back({eviction::PolicyKind::kLru, eviction::CacheMode::kLeaf, capacity});
  }
  Result<cache_sim::HitRate> rate = cache_sim::HitRate::make(specs, {});
  EXPECT_TRUE(rate);
  for_each_request(file, [&](const trace::Request& request) {
    EXPECT_TRUE(rate->add(request.hash_ids, request.input_tokens));
  });
  EXPECT_EQ(rate->requests(), 12031u);
  return rate->rows();
}

TEST(RecordedTrace, HasTheHitRatesOfTheTraceThatWasServed) {
  const std::string file = std::filesystem::temp_directory_path() /
                           ("cachalot_recorded_" + std::to_string(getpid()) + ".jsonl");
  Result<TraceRecorder> recorder = TraceRecorder::open(file);
  ASSERT_TRUE(recorder);
  std::vector<BlockHash> hashes;
  for_each_request(kConversation, [&](const trace::Request& request) {
    hashes.clear();
    for (const std::uint64_t id : request.hash_ids) {
      hashes.push_back({base::mix64(id + 1), base::mix64(~id)});
    }
    recorder->record(hashes, request.input_tokens, request.output_tokens,
                     static_cast<std::uint64_t>(request.timestamp_ms));
  });
  EXPECT_TRUE(recorder->close());
  const std::vector<cache_sim::HitRateRow> served = rows_of(kConversation),
                                           recorded = rows_of(file);
  std::filesystem::remove(file);
  ASSERT_EQ(recorded.size(), served.size());
  for (std::size_t i = 0; i < served.size(); ++i) {
    EXPECT_EQ(recorded[i].hit_blocks, served[i].hit_blocks);
    EXPECT_EQ(recorded[i].prefix_blocks, served[i].prefix_blocks);
    EXPECT_EQ(recorded[i].token_hit_rate, served[i].token_hit_rate);
  }
  EXPECT_EQ(recorded[2].hit_blocks, 105710u);
}

}  // namespace
}  // namespace cachalot
