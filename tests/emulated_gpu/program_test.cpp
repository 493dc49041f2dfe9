// The program's parts that need a GPU, on the emulated one: that they run to their end, and what they
// find out for themselves, such as wrong bytes. Nothing is measured.
#include <cstdlib>

#include "program.h"

namespace cachalot::process_test {
namespace {

class OnEmulatedGpu : public ProcessTest {
 protected:
  OnEmulatedGpu() { setenv("LD_LIBRARY_PATH", CACHALOT_EMULATED_GPU, 1); }
  ~OnEmulatedGpu() override { unsetenv("LD_LIBRARY_PATH"); }
};

std::set<std::string> names_of(const nlohmann::json& json) {
  std::set<std::string> names;
  for (const auto& row : json["rows"]) names.insert(row["name"]);
  return names;
}

TEST_F(OnEmulatedGpu, AttentionOverRangesAndPagesComesOutTheSame) {
  const Outcome outcome = run({"bench", "attention", "--quick", "--repeats", "1", "--json", "-"});
  expect_done(outcome);
  EXPECT_EQ(
      names_of(outcome.json()),
      (std::set<std::string>{"2x150/contiguous/per_layer", "2x150/contiguous/folded",
                             "2x150/contiguous/plain", "2x150/paged", "2x150/gathered_pages"}));
}

// Blocks in memory that is stitched together, looked at by the GPU itself.
TEST_F(OnEmulatedGpu, AReplayFindsEveryByteOfItsBlocks) {
  struct Case {
    const char *trace, *allocators, *scale, *verify;
    std::uint64_t rows;
  };
  for (const Case& each : {Case{"128_training", "stitch", "512MiB", "sample", 1},
                           Case{"128_inference", "all", "4MiB", "full", 3}}) {
    const Outcome outcome =
        run({"alloc-replay", "--trace",
             std::string(CACHALOT_ALLOC_TRACES) + "/real_cs336_medium_" + each.trace + ".trace.gz",
             "--backend", "cuda", "--allocator", each.allocators, "--scale", each.scale, "--verify",
             each.verify, "--json", "-"});
    expect_done(outcome);
    const nlohmann::json json = outcome.json();
    const nlohmann::json rows = each.rows == 1 ? nlohmann::json::array({json}) : json["rows"];
    ASSERT_EQ(rows.size(), each.rows) << outcome.out;
    for (const auto& row : rows) {
      EXPECT_GT(row.value("verify_checked", std::uint64_t{0}), 1000u) << row.dump();
      EXPECT_EQ(row.value("verify_errors", ~std::uint64_t{0}), 0u) << row.dump();
    }
  }
}

}  // namespace
}  // namespace cachalot::process_test
