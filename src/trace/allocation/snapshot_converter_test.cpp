#include "trace/allocation/snapshot_converter.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "trace/allocation/pickle_reader.h"

namespace cachalot::trace {
namespace {

std::string asset(int protocol) {
  return CACHALOT_TEST_ASSETS "/alloc/snapshot_p" + std::to_string(protocol) + ".pickle";
}

std::string lines(ConvertedSnapshot& converted) {
  std::string text;
  while (const AllocEvent* event = converted.script.take()) append_alloc_line(*event, text);
  return text;
}

Result<ConvertedSnapshot> convert(int protocol, const SnapshotOptions& options) {
  const Result<PickleDocument> document = read_pickle(asset(protocol));
  EXPECT_TRUE(document) << document.error().message;
  return convert_snapshot(*document, options);
}

// As make_snapshots.py makes it: two blocks from before, of which one is freed.
const std::string kBeforeTheFrees =
    "a 1 300\n"
    "a 2 400\n"
    "a 3 5000000\n"
    "f 2\n"
    "a 4 77\n"
    "a 5 3145728 1\n";
const std::string kCompleted = kBeforeTheFrees + "a 6 6000000\nf 3\n";
const std::string kRequested = kBeforeTheFrees + "f 3\na 6 6000000\nf 6\n";

TEST(SnapshotConverter, GivesTheSameTraceOfEveryProtocol) {
  for (int protocol = 0; protocol < 6; ++protocol) {
    Result<ConvertedSnapshot> converted = convert(protocol, {});
    ASSERT_TRUE(converted) << "protocol " << protocol << ": " << converted.error().message;
    EXPECT_EQ(lines(*converted), kCompleted) << "protocol " << protocol;
    EXPECT_EQ(converted->counts.events, 14u);
    EXPECT_EQ(converted->counts.passed_over, 8u);
    EXPECT_EQ(converted->counts.blocks_before, 2u);
    EXPECT_EQ(converted->counts.streams, 2u);
    EXPECT_EQ(converted->counts.contradictions, 0u);
  }
}

TEST(SnapshotConverter, TakesTheRequestedFreesWhereAsked) {
  Result<ConvertedSnapshot> converted = convert(4, {.free = SnapshotFree::kRequested});
  ASSERT_TRUE(converted) << converted.error().message;
  EXPECT_EQ(lines(*converted), kRequested);
  EXPECT_EQ(converted->counts.contradictions, 0u);
}

// It is freed, and its segment shows another block in use at the same place.
TEST(SnapshotConverter, CountsWhatTheSegmentsSayAgainstTheRecording) {
  Result<ConvertedSnapshot> converted = convert(4, {.device = 1});
  ASSERT_TRUE(converted) << converted.error().message;
  EXPECT_EQ(lines(*converted), "a 1 1024\nf 1\n");
  EXPECT_EQ(converted->counts.contradictions, 1u);
}

TEST(SnapshotConverter, NamesTheDevicesThatHaveEvents) {
  for (const std::uint64_t device : {2, 3, 77}) {
    const Result<ConvertedSnapshot> converted = convert(4, {.device = device});
    ASSERT_FALSE(converted);
    EXPECT_EQ(converted.error().code, Code::kInvalidArgument);
    EXPECT_EQ(std::string(converted.error().message),
              "device: " + std::to_string(device) + " has no events, expected one that has: 0 1");
  }
}

std::string complaint(const std::string& pickle) {
  const Result<PickleDocument> document = parse_pickle({pickle.begin(), pickle.end()});
  EXPECT_TRUE(document) << document.error().message;
  const Result<ConvertedSnapshot> converted = convert_snapshot(*document, {});
  return converted ? "none" : converted.error().message;
}

std::string text(const std::string& text) {
  return "V" + text + "\n";
}
std::string event(const std::string& action, const std::string& address, const std::string& size) {
  return "}(" + text("action") + text(action) + text("addr") + address + text("size") + size +
         text("stream") + "I0\nu";
}
std::string snapshot(const std::string& events, const std::string& segments = "]") {
  return "}(" + text("device_traces") + "](](" + events + "ee" + text("segments") + segments + "u.";
}

TEST(SnapshotConverter, SaysWhatIsNoSnapshot) {
  EXPECT_EQ(complaint("N."), "None, expected a dict");
  EXPECT_EQ(complaint("}."), "device_traces: missing, expected list");
  EXPECT_EQ(complaint("}" + text("device_traces") + "Ns."), "device_traces: None, expected list");
  EXPECT_EQ(complaint("}" + text("device_traces") + "](](NNees."),
            "device_traces[0][0]: None, expected a dict");
  EXPECT_EQ(complaint("}" + text("device_traces") + "](]es."),
            "device: 0 has no events, expected one that has: none: history was not recorded");
}

TEST(SnapshotConverter, AddressesHave64BitsWithoutASign) {
  const std::string address = "L18446744071562067968L\n";  // 2^64 - 2^31
  const std::string pickle =
      snapshot(event("alloc", address, "I10\n") + event("free_completed", address, "I10\n"));
  const Result<PickleDocument> document = parse_pickle({pickle.begin(), pickle.end()});
  ASSERT_TRUE(document) << document.error().message;
  Result<ConvertedSnapshot> converted = convert_snapshot(*document, {});
  ASSERT_TRUE(converted) << converted.error().message;
  EXPECT_EQ(lines(*converted), "a 1 10\nf 1\n");
}

TEST(SnapshotConverter, SaysWhichEventCannotBe) {
  const std::string good = event("alloc", "I4096\n", "I10\n");
  EXPECT_EQ(complaint(snapshot(good)), "none");
  EXPECT_EQ(complaint(snapshot(good + good)),
            "device_traces[0][1]: addr: 0x1000 is allocated twice, expected a free between");
  const std::string free = event("free_completed", "I4096\n", "I10\n");
  EXPECT_EQ(complaint(snapshot(good + free + free)),
            "device_traces[0][2]: addr: 0x1000 is freed twice, expected an alloc between");
  EXPECT_EQ(complaint(snapshot(event("alloc", "Vx\n", "I10\n"))),
            "device_traces[0][0]: addr: str, expected an int below 2^64");
  EXPECT_EQ(complaint(snapshot(event("alloc", "L18446744073709551616L\n", "I10\n"))),
            "device_traces[0][0]: addr: int beyond 64 bits, expected an int below 2^64");
  EXPECT_EQ(complaint(snapshot(event("alloc", "I1\n", "I0\n"))),
            "device_traces[0][0]: size: 0, expected at least 1");
  EXPECT_EQ(complaint(snapshot(event("alloc", "I-1\n", "I5\n"))),
            "device_traces[0][0]: addr: -1, expected at least 0");
  const std::string most = "I9223372036854775807\n";
  EXPECT_EQ(complaint(snapshot(event("alloc", "I1\n", most) + event("alloc", "I2\n", most) +
                               event("alloc", "I3\n", most))),
            "size: 9223372036854775807 more live bytes, expected a sum below 2^64");
  EXPECT_EQ(complaint(snapshot(good, "](}e")), "segments[0]: device: missing, expected int");
}

}  // namespace
}  // namespace cachalot::trace
