// `cachalot bench transfer`: which rows it gives, with and without UCX's program beside it.
#include <cstdlib>
#include <map>
#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

class BenchTransferTest : public ProcessTest {
 protected:
  // All rows by their names, "transfer-sizes tcp/4Ki".
  static std::map<std::string, nlohmann::json> rows_of(const std::string& benchmark) {
    const Outcome outcome = run({"bench", benchmark, "--quick", "--repeats", "1", "--json", "-"});
    expect_done(outcome);
    std::map<std::string, nlohmann::json> rows;
    const nlohmann::json report = outcome.json();
    for (const nlohmann::json& row : report["rows"]) {
      rows[row.at("benchmark").get<std::string>() + " " + row.at("name").get<std::string>()] = row;
    }
    return rows;
  }
};

// The PATH of this process and of those that it starts.
class OtherPath {
 public:
  explicit OtherPath(const char* path) : before_(std::getenv("PATH")) { setenv("PATH", path, 1); }
  OtherPath(const OtherPath&) = delete;
  OtherPath& operator=(const OtherPath&) = delete;
  ~OtherPath() { setenv("PATH", before_.c_str(), 1); }

 private:
  const std::string before_;
};

TEST_F(BenchTransferTest, BlocksOfAnotherHostHaveTheirRows) {
  const auto rows = rows_of("peers");
  for (const char* name : {"peers 16Ki", "peers 256Kix128", "peers 2Mix128", "peers lookup x128",
                           "peers owner's loads x128"}) {
    ASSERT_TRUE(rows.contains(name)) << name;
    EXPECT_GT(rows.at(name).at("value"), 0) << name;
    EXPECT_GT(rows.at(name).at("baseline_value"), 0) << name;
  }
  EXPECT_GT(rows.at("peers owner's loads x128").at("pulled_gb_s"), 0);
}

TEST_F(BenchTransferTest, EveryQuestionHasItsRows) {
  const auto rows = rows_of("transfer");
  for (const char* name :
       {"transfer-sizes tcp/4Ki", "transfer-sizes tcp/64Mi", "transfer-sizes shm/1Mi",
        "transfer-fragments tcp/20Ki/together", "transfer-fragments tcp/20Ki/each_64",
        "transfer-fragments shm/20Ki/each_1", "transfer-memory shared/1Mi",
        "transfer-memory process_vm_readv/1Mi", "transfer-memory two_step/1Mi",
        "transfer-layers shm/time/0.25", "transfer-layers tcp/time/4",
        "transfer-convert shm/before", "transfer-convert tcp/while", "transfer-convert tcp/after",
        "transfer-convert shm/exchange", "transfer-checksums tcp/1Mi",
        "transfer-checksums shm/16Mi", "transfer-formula tcp/DeepSeek-V3/256",
        "transfer-formula shm/Qwen3-32B/256"}) {
    ASSERT_TRUE(rows.contains(name)) << name;
    EXPECT_GT(rows.at(name).at("value"), 0) << rows.at(name);
  }
  // A share of a transfer; on a busy machine it may be below 0.
  ASSERT_TRUE(rows.contains("transfer-layers shm/hidden/1"));
  EXPECT_EQ(rows.at("transfer-layers shm/hidden/1").at("target"), ">= 80");
  EXPECT_EQ(rows.at("transfer-fragments tcp/20Ki/together").at("target"), ">= 0.8x");
  EXPECT_EQ(rows.at("transfer-memory shared/1Mi").at("target"), ">= 0.9x");
}

TEST_F(BenchTransferTest, WithoutUcxPerftestTheSizesHaveNoLimitAndTheTableSaysWhy) {
  const OtherPath nowhere("/nowhere");
  const auto rows = rows_of("transfer-sizes");
  ASSERT_TRUE(rows.contains("transfer-sizes tcp/1Mi"));
  EXPECT_TRUE(rows.at("transfer-sizes tcp/1Mi").at("ratio").is_null());
  const Outcome outcome = run({"bench", "transfer-sizes", "--quick", "--repeats", "1"});
  expect_done(outcome);
  EXPECT_NE(outcome.out.find("ucx_perftest (package ucx-utils) is not installed"),
            std::string::npos)
      << outcome.out;
}

}  // namespace
}  // namespace cachalot::process_test
