#include "trace/allocation/alloc_trace.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "testing/trace/test_files.h"
#include "trace/allocation/alloc_trace_writer.h"

namespace cachalot::trace {
namespace {

class AllocTraceTest : public TestFiles {
 protected:
  AllocTrace open(const std::string& content) const {
    Result<AllocTrace> trace = AllocTrace::open(write("t", content));
    EXPECT_TRUE(trace) << trace.error().message;
    return *std::move(trace);
  }
  // The error at which the file ends, without its folder.
  std::string complaint(const std::string& content) const {
    AllocTrace trace = open(content);
    AllocEvent event;
    for (;;) {
      const Result<bool> more = trace.next(event);
      if (more && *more) continue;
      if (more) return "none";
      const std::string message = more.error().message;
      return message.substr(message.find("t:"));
    }
  }
};

TEST_F(AllocTraceTest, AByteOrderMarkInFrontIsPassedOver) {
  const std::string mark = "\xef\xbb\xbf";
  EXPECT_EQ(complaint(mark + "a 1 100\nf 1\n"), "none");
  EXPECT_TRUE(complaint(mark + "b 1\n").starts_with("t:1: \"b\" is no event"));
}

TEST_F(AllocTraceTest, AFreeKnowsWhatItFrees) {
  AllocTrace trace = open("# two\na 5 100 3\n\nm one\na 9 7\nf 5\n");
  AllocEvent event;
  ASSERT_TRUE(*trace.next(event));
  const std::uint64_t slot = event.slot;
  EXPECT_EQ(event.line, 2u);
  ASSERT_TRUE(*trace.next(event));
  EXPECT_EQ(event.text, "one");
  ASSERT_TRUE(*trace.next(event));
  EXPECT_NE(event.slot, slot);
  EXPECT_EQ(trace.live_bytes(), 107u);
  ASSERT_TRUE(*trace.next(event));
  EXPECT_EQ(event.kind, AllocKind::kFree);
  EXPECT_EQ(event.bytes, 100u);
  EXPECT_EQ(event.stream, 3u);
  EXPECT_EQ(event.slot, slot);
  EXPECT_EQ(trace.live_bytes(), 7u);
  EXPECT_EQ(trace.live_blocks(), 1u);
  EXPECT_FALSE(*trace.next(event));
  EXPECT_FALSE(*trace.next(event));
}

TEST_F(AllocTraceTest, NamesTheLineOfWhatCannotBe) {
  EXPECT_EQ(complaint("a 1 5\na 2 5\na 1 6\n"),
            "t:3: ID: 1 lives since line 1, expected one that is new or was freed");
  EXPECT_EQ(complaint("a 1 5\nf 2\n"),
            "t:2: ID: 2 does not live, expected one that was allocated and not freed");
  EXPECT_EQ(complaint("a 1 5\nf 1\n\nf 1\n"),
            "t:4: ID: 1 does not live, expected one that was allocated and not freed");
  EXPECT_EQ(complaint("a 1 9223372036854775808\na 2 9223372036854775807\na 3 1\n"),
            "t:3: BYTES: 1 beside 18446744073709551615 live ones, expected a sum below 2^64");
  EXPECT_EQ(complaint("a 1 5\nb 2\n"),
            R"(t:2: "b" is no event, expected "a ID BYTES", "f ID" or "m TEXT")");
  EXPECT_EQ(complaint("m x\n" + std::string(5000, 'x')),
            "t:2: the line has 5000 bytes, expected at most 4096");
  EXPECT_EQ(complaint("# nothing\n"), "t: no event in it, expected lines like \"a 1 4096\"");
  EXPECT_EQ(complaint(""), "t: no event in it, expected lines like \"a 1 4096\"");
}

TEST_F(AllocTraceTest, EndsAtTheFirstBrokenLine) {
  AllocTrace trace = open("f 1\na 1 5\n");
  AllocEvent event;
  const Result<bool> first = trace.next(event);
  ASSERT_FALSE(first);
  EXPECT_EQ(first.error().code, Code::kBadInput);
  EXPECT_EQ(first.error().detail, 1u);
  EXPECT_STREQ(trace.next(event).error().message, first.error().message);
}

TEST_F(AllocTraceTest, CutGzipIsAnErrorThatStays) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "a " + std::to_string(i * 977) + " 4096\n";
  const std::string packed = gzip(text);
  AllocTrace trace = open(packed.substr(0, packed.size() / 2));
  AllocEvent event;
  Result<bool> more = trace.next(event);
  while (more && *more) more = trace.next(event);
  ASSERT_FALSE(more);
  EXPECT_FALSE(trace.next(event));
}

TEST_F(AllocTraceTest, RefusesWhatIsNoFile) {
  EXPECT_EQ(AllocTrace::open(path("none")).error().code, Code::kInvalidArgument);
  EXPECT_EQ(AllocTrace::open(folder_.path()).error().code, Code::kInvalidArgument);
}

TEST_F(AllocTraceTest, WhatIsWrittenIsReadAgainAlsoAsGzip) {
  for (const char* name : {"w", "w.gz"}) {
    AllocTraceWriter writer = *AllocTraceWriter::open(path(name));
    ASSERT_TRUE(writer.write({.kind = AllocKind::kMark, .text = "iteration 1"}));
    ASSERT_TRUE(writer.write({.kind = AllocKind::kAllocate, .stream = 2, .id = 8, .bytes = 512}));
    ASSERT_TRUE(writer.write({.kind = AllocKind::kFree, .id = 8}));
    EXPECT_EQ(writer.events(), 3u);
    ASSERT_TRUE(writer.finish());
    AllocTrace trace = *AllocTrace::open(path(name));
    AllocEvent event;
    ASSERT_TRUE(*trace.next(event));
    EXPECT_EQ(event.text, "iteration 1");
    ASSERT_TRUE(*trace.next(event));
    EXPECT_EQ(event.stream, 2u);
    ASSERT_TRUE(*trace.next(event));
    EXPECT_EQ(event.bytes, 512u);
    EXPECT_FALSE(*trace.next(event));
  }
}

// Few ids, so that they come again, close together in the table or far apart.
RC_GTEST_PROP(LiveBlocks, AgreesWithAMap, (std::uint64_t seed, bool is_dense)) {
  base::Rng rng(seed);
  LiveBlocks live;
  std::map<std::uint64_t, std::uint64_t> slots;
  std::set<std::uint64_t> used;
  std::size_t most = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::uint64_t id = rng.below(3000) * (is_dense ? 1 : 0x9e3779b97f4a7c15u);
    if (rng.below(100) < (i < 10000 ? 60u : 30u)) {
      const std::uint64_t slot = live.add({.id = id, .bytes = id + 1});
      RC_ASSERT((slot == LiveBlocks::kNoSlot) == slots.contains(id));
      if (slot == LiveBlocks::kNoSlot) continue;
      RC_ASSERT(used.insert(slot).second);
      slots[id] = slot;
      most = std::max(most, slots.size());
      RC_ASSERT(slot < most);
    } else {
      const std::uint64_t slot = live.remove(id);
      RC_ASSERT(slot == (slots.contains(id) ? slots[id] : LiveBlocks::kNoSlot));
      if (slots.erase(id) != 0) used.erase(slot);
    }
    RC_ASSERT(live.size() == slots.size());
  }
  for (const auto& [id, slot] : slots) {
    RC_ASSERT(live.find(id) == slot);
    RC_ASSERT(live.at(slot).bytes == id + 1);
  }
}

}  // namespace
}  // namespace cachalot::trace
