#include "trace/request/trace_generator.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "trace/request/trace_summary.h"

namespace cachalot::trace {
namespace {

std::vector<Request> generate(const GeneratorOptions& options, std::size_t requests) {
  Result<TraceGenerator> generator = TraceGenerator::make(options);
  EXPECT_TRUE(generator) << generator.error().message;
  std::vector<Request> made(requests);
  for (Request& request : made) generator->next(request);
  return made;
}

// Whatever the seed: sorted, an id for each begun block, each id with one parent, and the same again.
RC_GTEST_PROP(TraceGenerator, MakesASoundTraceDeterministically, (std::uint64_t seed)) {
  GeneratorOptions options =
      GeneratorOptions::of(*rc::gen::element(LoadKind::kChat, LoadKind::kAgentic));
  options.seed = seed;
  options.block_tokens = *rc::gen::element<std::uint64_t>(64, 512);
  options.subagent_probability = 0.2;
  const std::vector<Request> requests = generate(options, 300), again = generate(options, 300);
  TraceSummary summary(options.block_tokens);
  double last_ms = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Request& request = requests[i];
    RC_ASSERT(request.hash_ids == again[i].hash_ids);
    RC_ASSERT(request.timestamp_ms == again[i].timestamp_ms);
    RC_ASSERT(request.timestamp_ms >= last_ms);
    last_ms = request.timestamp_ms;
    RC_ASSERT(request.hash_ids.size() ==
              (request.input_tokens + options.block_tokens - 1) / options.block_tokens);
    RC_ASSERT(summary.add(request).ok());
  }
  RC_ASSERT(summary.inconsistent_ids() == 0u);
}

TEST(TraceGenerator, OtherSeedsGiveOtherTraces) {
  GeneratorOptions options;
  const auto one = generate(options, 100);
  options.seed = 2;
  EXPECT_NE(one[99].input_tokens, generate(options, 100)[99].input_tokens);
}

// With exponent 1 prompts 1 to 4 have shares of 12, 6, 4 and 3 in 25: 48, 24, 16 and 12 % of the sessions.
TEST(TraceGenerator, ZipfGivesEachPromptItsShare) {
  GeneratorOptions options = GeneratorOptions::of(LoadKind::kChat);
  options.system_prompts = 4;
  options.system_tokens = 512;
  options.turns = 1;  // a request a session
  options.zipf = 1;
  std::map<std::uint64_t, double> shares;
  for (const Request& request : generate(options, 20000)) shares[request.hash_ids[0]] += 1. / 20000;
  ASSERT_EQ(shares.size(), 4u);
  std::vector<double> sorted;
  for (const auto& [id, share] : shares) sorted.push_back(share);
  std::sort(sorted.rbegin(), sorted.rend());
  const double expected[] = {0.48, 0.24, 0.16, 0.12};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(sorted[i], expected[i], 0.015) << i;
}

TEST(TraceGenerator, RefusesAnExponentBelowZero) {
  GeneratorOptions options;
  options.zipf = -0.5;
  EXPECT_STREQ(options.check().error().message, "zipf: -0.5, expected 0 to 10");
}

TEST(TraceGenerator, AgentsReuseMoreThanChats) {
  double rates[2];
  for (const LoadKind kind : {LoadKind::kChat, LoadKind::kAgentic}) {
    TraceSummary summary(512);
    for (const Request& request : generate(GeneratorOptions::of(kind), 5000)) {
      EXPECT_TRUE(summary.add(request));
    }
    rates[static_cast<int>(kind)] = summary.ideal().token;
  }
  EXPECT_GT(rates[0], 0.3);
  EXPECT_LT(rates[0], 0.9);
  EXPECT_GT(rates[1], 0.9);
}

TEST(TraceGenerator, RefusesNumbersOutOfTheirRange) {
  const auto complaint = [](auto change) {
    GeneratorOptions options;
    change(options);
    const auto made = TraceGenerator::make(options);
    return made ? std::string() : std::string(made.error().message);
  };
  EXPECT_EQ(complaint([](auto& o) { o.sessions_per_s = 0; }),
            "sessions_per_s: 0, expected 1e-06 to 1e+06");
  EXPECT_EQ(complaint([](auto& o) { o.subagent_probability = 2; }),
            "subagent_probability: 2, expected 0 to 1");
  EXPECT_EQ(complaint([](auto& o) { o.turns = 0.5; }), "turns: 0.5, expected 1 to 1e+06");
  EXPECT_NE(complaint([](auto& o) { o.block_tokens = 0; }), "");
  EXPECT_NE(complaint([](auto& o) { o.system_prompts = 0; }), "");
  EXPECT_FALSE(parse_load_kind("batch"));
}

}  // namespace
}  // namespace cachalot::trace
