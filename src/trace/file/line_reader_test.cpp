#include "trace/file/line_reader.h"

#include <gtest/gtest.h>

#include <string_view>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "testing/trace/test_files.h"

namespace cachalot::trace {
namespace {

using Found = LineReader::Found;

class LineReaderTest : public TestFiles {
 protected:
  static LineReader open(const std::string& path) {
    Result<LineReader> reader = LineReader::open(path);
    EXPECT_TRUE(reader) << reader.error().message;
    return *std::move(reader);
  }

  static std::vector<std::string> lines(const std::string& path) {
    LineReader reader = open(path);
    std::vector<std::string> all;
    for (;;) {
      const Result<Found> found = reader.next();
      EXPECT_TRUE(found);
      if (!found || *found == Found::kEnd) return all;
      EXPECT_EQ(*found, Found::kLine);
      all.emplace_back(reader.line());
      EXPECT_EQ(reader.line_number(), all.size());
    }
  }
};

TEST_F(LineReaderTest, GivesTheLinesWithOrWithoutALastLineFeed) {
  const std::vector<std::string> expected = {"a", "", "bc"};
  EXPECT_EQ(lines(write("a", "a\n\nbc\n")), expected);
  EXPECT_EQ(lines(write("b", "a\n\nbc")), expected);
  EXPECT_EQ(lines(write("c", gzip("a\n\nbc"))), expected);
  EXPECT_TRUE(lines(write("d", "")).empty());
}

TEST_F(LineReaderTest, LinesOfEveryLengthSurviveTheBufferBorders) {
  base::Rng rng(9);
  std::vector<std::string> expected;
  std::string text;
  for (int i = 0; i < 60; ++i) {
    expected.emplace_back(rng.below(i % 10 == 0 ? 700000 : 30000), static_cast<char>('a' + i % 26));
    text += expected.back() + "\n";
  }
  EXPECT_EQ(lines(write("a", text)), expected);
  EXPECT_EQ(lines(write("a.gz", gzip(text))), expected);
}

TEST_F(LineReaderTest, PassesOverALineThatIsTooLongAndGoesOn) {
  const std::string most(LineReader::kMaxLineBytes, 'x');
  const std::string more(400000, 'y');  // does not fit into the buffer with the rest
  LineReader reader = open(
      write("a.gz", gzip(most + "\n" + most + "x\nb\n" + most + more + "\nc\n" + most + more)));
  const std::pair<Found, std::string_view> expected[] = {
      {Found::kLine, most}, {Found::kTooLong, ""}, {Found::kLine, "b"}, {Found::kTooLong, ""},
      {Found::kLine, "c"},  {Found::kTooLong, ""}, {Found::kEnd, ""}};
  for (const auto& [found, line] : expected) {
    const Result<Found> next = reader.next();
    ASSERT_TRUE(next);
    ASSERT_EQ(*next, found) << "line " << reader.line_number();
    if (found == Found::kLine) {
      EXPECT_TRUE(reader.line() == line) << "line " << reader.line_number();
    }
  }
}

TEST_F(LineReaderTest, AnErrorOfTheFileIsPassedOn) {
  const std::string packed = gzip("a\nb\n");
  LineReader reader = open(write("a.gz", packed.substr(0, packed.size() - 2)));
  Result<Found> found = reader.next();
  while (found && *found == Found::kLine) found = reader.next();
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::kBadInput);
}

}  // namespace
}  // namespace cachalot::trace
