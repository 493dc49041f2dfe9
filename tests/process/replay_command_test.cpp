// What `cachalot replay` says to people: the table ends with a sentence.
#include <string>

#include "program.h"

namespace cachalot::process_test {
namespace {

class ReplayCommandTest : public ProcessTest {
 protected:
  // Two requests with the same two blocks: half of all blocks are hits.
  Outcome replay(const std::string& verify) const {
    const std::string line =
        "{\"timestamp\": 1, \"input_length\": 1024, \"output_length\": 1, "
        "\"hash_ids\": [1, 2]}\n";
    return run({"replay", "--trace", write("trace.jsonl", line + line), "--engines", "1",
                "--block-bytes", "4096", "--capacity-blocks", "8", "--verify", verify});
  }
  static std::string last_line(const std::string& text) {
    return text.substr(text.rfind('\n', text.size() - 2) + 1);
  }
};

TEST_F(ReplayCommandTest, TheTableEndsWithWhatItShowed) {
  const std::string start =
      "Result: 1 engine process found 50.0 % of the requests' blocks in the pool instead of "
      "computing them again, and ";
  for (const auto& [verify, end] : std::vector<std::pair<std::string, std::string>>{
           {"full", "every byte that an engine read from the pool was right.\n"},
           {"sample", "every line of the sample that was checked was right.\n"},
           {"off", "the bytes of the blocks were not checked (--verify off).\n"}}) {
    const Outcome outcome = replay(verify);
    expect_done(outcome);
    EXPECT_EQ(last_line(outcome.out), start + end);
  }
}

// Percentages of times name the whole.
TEST_F(ReplayCommandTest, SharesOfTimeNameTheTimeTheyAreSharesOf) {
  const Outcome outcome = replay("full");
  expect_done(outcome);
  const std::size_t at = outcome.out.find("\n  time ");
  ASSERT_NE(at, std::string::npos) << outcome.out;
  const std::string row = outcome.out.substr(at, outcome.out.find('\n', at + 1) - at);
  EXPECT_NE(row.find("of 1 engine x "), std::string::npos) << row;
  for (const std::string part : {"lookup", "read", "check bytes", "make bytes", "write", "other"}) {
    EXPECT_NE(row.find(" " + part + " "), std::string::npos) << part << " in " << row;
  }
}

}  // namespace
}  // namespace cachalot::process_test
