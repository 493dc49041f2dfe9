// `cachalot tiers` on a production trace: what both tiers keep, against one cache of both sizes.
#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

constexpr const char* kTrace = CACHALOT_TEST_ASSETS "/traces/conversation_trace.jsonl.gz";

class TiersCommand : public ProcessTest {};

TEST_F(TiersCommand, ExclusiveTiersKeepWhatOneCacheOfBothSizesKeeps) {
  const Outcome outcome = run({"tiers", "--trace", kTrace, "--device-blocks", "5000",
                               "--host-blocks", "2500", "--block-bytes", "64", "--json", "-"});
  expect_done(outcome);
  const nlohmann::json result = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(result["requests"], 12031);
  EXPECT_EQ(result["blocks"], 288500);
  const nlohmann::json &exclusive = result["rows"][0], &inclusive = result["rows"][1];
  EXPECT_EQ(exclusive["tiers"], "exclusive");
  EXPECT_EQ(inclusive["tiers"], "inclusive");
  EXPECT_EQ(exclusive["wrong_words"], 0);
  EXPECT_EQ(inclusive["wrong_words"], 0);
  const double one = result["one_cache"][0]["token_hit_rate"],
               both = result["one_cache"][1]["token_hit_rate"];
  EXPECT_EQ(result["one_cache"][1]["capacity_blocks"], 7500);
  EXPECT_NEAR(exclusive["token_hit_rate"].get<double>(), both, 0.005);
  EXPECT_NEAR(inclusive["token_hit_rate"].get<double>(), one, 0.005);
}

TEST_F(TiersCommand, BadValuesAreNamed) {
  const auto expect_refused = [&](std::vector<std::string> more, const char* named) {
    std::vector<std::string> arguments = {"tiers", "--trace",       kTrace, "--device-blocks",
                                          "100",   "--host-blocks", "100"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_NE(outcome.err.find(named), std::string::npos) << outcome.err;
  };
  expect_refused({"--block-bytes", "33"}, "33");
  expect_refused({"--order", "random"}, "random");
  expect_refused({"--inclusion", "some"}, "--inclusion");
  expect_refused({"--write-policy", "never"}, "--write-policy");
}

}  // namespace
}  // namespace cachalot::process_test
