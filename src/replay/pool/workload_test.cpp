#include "replay/pool/workload.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

namespace cachalot::replay {
namespace {

class WorkloadTest : public testing::Test {
 protected:
  ReplayOptions of(const std::string& lines) {
    path_ = std::filesystem::temp_directory_path() /
            ("cachalot_workload_" + std::to_string(getpid()) + ".jsonl");
    std::ofstream(path_) << lines;
    ReplayOptions options;
    options.trace = path_.string();
    options.block_tokens = 10;
    return options;
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::filesystem::path path_;
};

constexpr const char* kThree =
    R"({"timestamp": 100, "input_length": 25, "output_length": 1, "hash_ids": [1, 2, 3]}
{"timestamp": 350, "input_length": 20, "output_length": 1, "hash_ids": [1, 2]}
{"timestamp": 300, "input_length": 20, "output_length": 1, "hash_ids": [4, 2]}
)";

TEST_F(WorkloadTest, HasEveryRequestWithItsBlocksTokensAndArrival) {
  const Result<Workload> load = Workload::load(of(kThree));
  ASSERT_TRUE(load) << load.error().message;
  EXPECT_EQ(load->requests(), 3u);
  EXPECT_EQ(load->blocks(), 7u);
  EXPECT_EQ(load->input_tokens(), 65u);
  EXPECT_EQ(load->input_tokens(1), 20u);
  EXPECT_EQ(load->arrival_ns(0), 0u);
  EXPECT_EQ(load->arrival_ns(1), 250'000'000u);
}

TEST_F(WorkloadTest, RefusesARequestThatIsDueInYearsUnlessTheSpeedBringsItNear) {
  ReplayOptions options =
      of(R"({"timestamp": 5, "input_length": 20, "output_length": 1, "hash_ids": [1, 2]}
{"timestamp": 9e15, "input_length": 20, "output_length": 1, "hash_ids": [1, 2]}
)");
  EXPECT_TRUE(Workload::load(options));
  options.speed = 1;
  const Result<Workload> late = Workload::load(options);
  ASSERT_FALSE(late);
  EXPECT_TRUE(std::string(late.error().message)
                  .ends_with("request 2 is due 1.04167e+08 days after the first at --speed 1, "
                             "expected at most 366"))
      << late.error().message;
  options.speed = 1e9;
  EXPECT_TRUE(Workload::load(options));
}

TEST_F(WorkloadTest, NamesABlockByItsIdAndAllBeforeIt) {
  const Result<Workload> load = Workload::load(of(kThree));
  ASSERT_TRUE(load);
  EXPECT_TRUE(std::ranges::equal(load->hashes(0).first(2), load->hashes(1)));
  EXPECT_FALSE(load->hashes(0)[1] == load->hashes(2)[1]) << "block 2 below block 1 and below 4";
}

TEST_F(WorkloadTest, HasOtherHashesForAnotherSeed) {
  ReplayOptions options = of(kThree);
  const Result<Workload> one = Workload::load(options);
  options.seed = 2;
  const Result<Workload> two = Workload::load(options);
  ASSERT_TRUE(one && two);
  EXPECT_FALSE(one->hashes(0)[0] == two->hashes(0)[0]);
}

TEST_F(WorkloadTest, EndsAtTheLimit) {
  ReplayOptions options = of(kThree);
  options.limit_requests = 2;
  const Result<Workload> load = Workload::load(options);
  ASSERT_TRUE(load);
  EXPECT_EQ(load->requests(), 2u);
}

TEST_F(WorkloadTest, RefusesABrokenLineOrSkipsAndCountsIt) {
  ReplayOptions options = of(std::string(kThree) + "{\"timestamp\": \n");
  const Result<Workload> refused = Workload::load(options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kBadInput);
  options.skip_bad_lines = true;
  const Result<Workload> skipped = Workload::load(options);
  ASSERT_TRUE(skipped) << skipped.error().message;
  EXPECT_EQ(skipped->requests(), 3u);
  EXPECT_EQ(skipped->skipped_lines(), 1u);
}

TEST_F(WorkloadTest, RefusesLengthsThatDoNotAddUp) {
  ReplayOptions options = of(
      R"({"timestamp": 1, "input_length": 9223372036854775807, "output_length": 1, "hash_ids": []}
{"timestamp": 1, "input_length": 9223372036854775807, "output_length": 1, "hash_ids": []}
{"timestamp": 1, "input_length": 9223372036854775807, "output_length": 1, "hash_ids": []}
)");
  options.block_tokens = ~std::uint64_t{0};
  const Result<Workload> load = Workload::load(options);
  ASSERT_FALSE(load);
  EXPECT_EQ(load.error().code, Code::kBadInput) << load.error().message;
}

}  // namespace
}  // namespace cachalot::replay
