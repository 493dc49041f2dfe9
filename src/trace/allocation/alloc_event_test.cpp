#include "trace/allocation/alloc_event.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>

namespace cachalot::trace {
namespace {

AllocEvent parsed(std::string_view line) {
  AllocEvent event;
  const Result<bool> is_event = parse_alloc_line(line, event);
  EXPECT_TRUE(is_event) << is_event.error().message;
  EXPECT_TRUE(is_event && *is_event);
  return event;
}

std::string complaint(std::string_view line) {
  AllocEvent event;
  const Result<bool> is_event = parse_alloc_line(line, event);
  return is_event ? "none" : is_event.error().message;
}

TEST(AllocEvent, ReadsAllocationsFreesAndMarks) {
  const AllocEvent plain = parsed("a 18446744073709551615 9223372036854775808");
  EXPECT_EQ(plain.kind, AllocKind::kAllocate);
  EXPECT_EQ(plain.id, ~std::uint64_t{0});
  EXPECT_EQ(plain.bytes, kMaxAllocBytes);
  EXPECT_EQ(plain.stream, 0u);
  EXPECT_EQ(parsed("a 1 2 65535").stream, 65535u);
  EXPECT_EQ(parsed("a\t1  2 \r").bytes, 2u);
  EXPECT_EQ(parsed("f 7").kind, AllocKind::kFree);
  EXPECT_EQ(parsed("f 7").id, 7u);
  EXPECT_EQ(parsed("m  iteration 3 ").text, "iteration 3");
  EXPECT_EQ(parsed("m").text, "");
}

TEST(AllocEvent, PassesOverBlankLinesAndComments) {
  AllocEvent event;
  for (const char* line : {"", " \t\r", "# a 1 2", "#"}) {
    const Result<bool> is_event = parse_alloc_line(line, event);
    ASSERT_TRUE(is_event) << line;
    EXPECT_FALSE(*is_event) << line;
  }
}

TEST(AllocEvent, SaysWhatIsWrong) {
  EXPECT_EQ(complaint("x 1 2"), R"("x" is no event, expected "a ID BYTES", "f ID" or "m TEXT")");
  EXPECT_EQ(complaint("a 1"), R"(BYTES: missing, expected "a ID BYTES", "f ID" or "m TEXT")");
  EXPECT_EQ(complaint("f"), R"(ID: missing, expected "a ID BYTES", "f ID" or "m TEXT")");
  EXPECT_EQ(complaint("a 1 0"), R"(BYTES: "0", expected 1 to 9223372036854775808)");
  EXPECT_EQ(complaint("a 1 9223372036854775809"),
            R"(BYTES: "9223372036854775809", expected 1 to 9223372036854775808)");
  EXPECT_EQ(complaint("a 0x1 5"), R"(ID: "0x1", expected 0 to 18446744073709551615)");
  EXPECT_EQ(complaint("f -1"), R"(ID: "-1", expected 0 to 18446744073709551615)");
  EXPECT_EQ(complaint("f 18446744073709551616"),
            R"(ID: "18446744073709551616", expected 0 to 18446744073709551615)");
  EXPECT_EQ(complaint("a 1 5 65536"), R"(STREAM: "65536", expected 0 to 65535)");
  EXPECT_EQ(complaint("a 1 5 0 9"),
            R"("9" stands after the last field, expected "a ID BYTES", "f ID" or "m TEXT")");
  EXPECT_EQ(complaint("f 1 5"),
            R"("5" stands after the last field, expected "a ID BYTES", "f ID" or "m TEXT")");
  EXPECT_EQ(complaint("\x1b[31m"),
            R"("?[31m" is no event, expected "a ID BYTES", "f ID" or "m TEXT")");
  EXPECT_EQ(complaint(std::string(4097, ' ')), "the line has 4097 bytes, expected at most 4096");
}

RC_GTEST_PROP(AllocEvent, WhatIsWrittenIsReadAgain,
              (std::uint64_t id, std::uint64_t bytes, std::uint16_t stream, std::uint8_t kind)) {
  AllocEvent event;
  event.kind = static_cast<AllocKind>(kind % 3);
  event.id = id;
  event.bytes = bytes % kMaxAllocBytes + 1;
  event.stream = stream;
  event.text = "iteration 1";
  std::string line;
  append_alloc_line(event, line);
  RC_ASSERT(line.back() == '\n');
  line.pop_back();
  const AllocEvent again = parsed(line);
  RC_ASSERT(again.kind == event.kind);
  const bool is_mark = again.kind == AllocKind::kMark;
  RC_ASSERT((is_mark ? again.text == event.text : again.id == event.id));
  if (again.kind != AllocKind::kAllocate) return;
  RC_ASSERT(again.bytes == event.bytes);
  RC_ASSERT(again.stream == event.stream);
}

RC_GTEST_PROP(AllocEvent, NoLineIsMoreThanAnError, (const std::string& line)) {
  AllocEvent event;
  const Result<bool> is_event = parse_alloc_line("a " + line, event);
  RC_ASSERT(is_event.ok() || is_event.error().code == Code::kBadInput);
}

TEST(AllocEvent, AMarkIsWrittenAsOneLine) {
  AllocEvent event;
  event.text = "one\ntwo";
  std::string text;
  append_alloc_line(event, text);
  EXPECT_EQ(text, "m one\n");
  const std::string longest(5000, 'x');
  event.text = longest;
  text.clear();
  append_alloc_line(event, text);
  EXPECT_EQ(text.size(), kMaxAllocLineBytes + 1);
}

}  // namespace
}  // namespace cachalot::trace
