#include "trace/allocation/pickle_reader.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "testing/trace/test_files.h"
#include "trace/allocation/snapshot_converter.h"

namespace cachalot::trace {
namespace {

using namespace std::string_view_literals;

Result<PickleDocument> parse(std::string_view bytes) {
  return parse_pickle(std::vector<char>(bytes.begin(), bytes.end()));
}

std::string complaint(std::string_view bytes) {
  const Result<PickleDocument> document = parse(bytes);
  return document ? "none" : document.error().message;
}

// A value as Python shows it.
std::string shown(const PickleDocument& document, const PickleValue& value, int depth = 8) {
  if (depth == 0) return "...";
  switch (value.kind) {
    case PickleKind::kNone:
      return "None";
    case PickleKind::kBool:
      return value.integer != 0 ? "True" : "False";
    case PickleKind::kInteger:
      return std::to_string(value.integer);
    case PickleKind::kLargeInteger:
      return std::to_string(value.large);
    case PickleKind::kLongInteger:
      return "long";
    case PickleKind::kFloat:
      return std::to_string(value.real);
    case PickleKind::kText:
      return "'" + std::string(value.text, value.text_bytes) + "'";
    case PickleKind::kBytes:
      return "b'" + std::string(value.text, value.text_bytes) + "'";
    default:
      break;
  }
  std::string result = pickle_kind_name(value.kind);
  result += "(";
  for (const PickleValue& item : document.items(value)) {
    result += (result.back() == '(' ? "" : " ") + shown(document, item, depth - 1);
  }
  return result + ")";
}

std::string shown(std::string_view bytes) {
  const Result<PickleDocument> document = parse(bytes);
  return document ? shown(*document, document->root()) : document.error().message;
}

TEST(PickleReader, ReadsNumbersAsPythonWritesThem) {
  EXPECT_EQ(shown("N."), "None");
  EXPECT_EQ(shown("\x80\x02\x88."), "True");
  EXPECT_EQ(shown("I00\n."), "False");
  EXPECT_EQ(shown("I-12\n."), "-12");
  EXPECT_EQ(shown("L9223372036854775807L\n."), "9223372036854775807");
  EXPECT_EQ(shown("L9223372036854775808L\n."), "9223372036854775808");
  EXPECT_EQ(shown("I18446744073709551615\n."), "18446744073709551615");
  EXPECT_EQ(shown("L18446744073709551616L\n."), "long");
  EXPECT_EQ(shown("L-9223372036854775809L\n."), "long");
  using namespace std::string_view_literals;
  EXPECT_EQ(shown("\x8a\x09\x01\0\0\0\0\0\0\x80\0."sv), "9223372036854775809");
  EXPECT_EQ(shown("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0."sv), "18446744073709551615");
  EXPECT_EQ(shown("\x8a\x09\x01\0\0\0\0\0\0\x80\x01."sv), "long");
  EXPECT_EQ(shown("\x80\x02K\xff."), "255");
  EXPECT_EQ(shown("\x80\x02M\xff\xff."), "65535");
  EXPECT_EQ(shown("\x80\x02J\xff\xff\xff\xff."), "-1");
  EXPECT_EQ(shown("\x80\x02\x8a\x00."sv), "0");
  EXPECT_EQ(shown("\x80\x02\x8a\x01\xff."), "-1");
  EXPECT_EQ(shown("\x80\x02\x8a\x06\x00\x00\x00\x40\x3a\x7f."sv), std::to_string(0x7f3a40000000));
  EXPECT_EQ(shown("\x80\x02\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00."sv),
            "9223372036854775808");
  EXPECT_EQ(shown("\x80\x02\x8b\x01\x00\x00\x00\x05."sv), "5");
  EXPECT_EQ(shown("F1.5\n."), "1.500000");
  EXPECT_EQ(shown("\x80\x02G\x3f\xf8\x00\x00\x00\x00\x00\x00."sv), "1.500000");
}

TEST(PickleReader, ReadsTextAndContainers) {
  EXPECT_EQ(shown("V\\u00e4\n."), "'\\u00e4'");
  EXPECT_EQ(shown("S'abc'\n."), "'abc'");
  EXPECT_EQ(shown("X\x03\x00\x00\x00"
                  "abc."sv),
            "'abc'");
  EXPECT_EQ(shown("\x80\x04\x8c\x02hi."), "'hi'");
  EXPECT_EQ(shown("\x80\x04\x8d\x02\x00\x00\x00\x00\x00\x00\x00hi."sv), "'hi'");
  EXPECT_EQ(shown("\x80\x03"
                  "C\x02hi."),
            "b'hi'");
  EXPECT_EQ(shown("](K\x01K\x02"
                  "eK\x03"
                  "a."),
            "list(1 2 3)");
  EXPECT_EQ(shown("(K\x01K\x02l."), "list(1 2)");
  EXPECT_EQ(shown("(K\x01t."), "tuple(1)");
  EXPECT_EQ(shown("K\x01K\x02K\x03\x87."), "tuple(1 2 3)");
  EXPECT_EQ(shown("}(K\x01K\x02uK\x03K\x04s."), "dict(1 2 3 4)");
  EXPECT_EQ(shown("(K\x01K\x02"
                  "d."),
            "dict(1 2)");
  EXPECT_EQ(shown("\x80\x04\x8f(K\x01\x90."), "set(1)");
  EXPECT_EQ(shown("\x80\x04(K\x01\x91."), "set(1)");
}

// A list that contains itself, and one list twice in another.
TEST(PickleReader, TheMemoSharesWhatItHolds) {
  const Result<PickleDocument> itself = parse(
      "]q\x00h\x00"
      "a."sv);
  ASSERT_TRUE(itself) << itself.error().message;
  EXPECT_EQ(shown(*itself, itself->root(), 3), "list(list(list(...)))");
  EXPECT_EQ(shown("](]p2\ng2\nK\x01"
                  "ag2\ne."),
            "list(list(1) list(1) list(1))");
  EXPECT_EQ(shown("\x80\x04]\x94(K\x01K\x02\x94h\x01"
                  "e."),
            "list(1 2 2)");
}

TEST(PickleReader, RefusesWhatWouldRunCode) {
  const Result<PickleDocument> command = read_pickle(CACHALOT_TEST_ASSETS "/alloc/command.pickle");
  ASSERT_FALSE(command);
  EXPECT_EQ(command.error().code, Code::kBadInput);
  EXPECT_NE(std::string(command.error().message)
                .find("/command.pickle: byte 64: STACK_GLOBAL would run code, expected plain data"),
            std::string::npos)
      << command.error().message;
  EXPECT_EQ(complaint("cos\nsystem\n(S'true'\ntR."),
            "byte 0: GLOBAL would run code, expected plain data: dicts, lists, numbers, text");
  for (const char opcode : "Rbio\x81\x92\x82\x83\x84PQ\x97\x98") {
    if (opcode == '\0') break;
    EXPECT_NE(complaint(std::string("N") + opcode + "\x01.").find("byte 1: "), std::string::npos);
    EXPECT_NE(complaint(std::string("N") + opcode).find("would run code"), std::string::npos);
  }
}

TEST(PickleReader, SaysWhereAFileIsBroken) {
  EXPECT_EQ(complaint(""), "byte 0: 0 bytes are left, expected 1: the file is cut or damaged");
  EXPECT_EQ(complaint("K"), "byte 0: 0 bytes are left, expected 1: the file is cut or damaged");
  EXPECT_EQ(complaint("NX\xff\xff\xff\xff"
                      "abc."),
            "byte 1: 4 bytes are left, expected 4294967295: the file is cut or damaged");
  EXPECT_EQ(complaint("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff."),
            "byte 2: 1 bytes are left, expected 18446744073709551615: the file is cut or damaged");
  EXPECT_EQ(complaint("I12"), "byte 0: a line has no end: the file is cut or damaged");
  EXPECT_EQ(complaint("I1x\n."), "byte 0: a line that is no number, expected a decimal one");
  EXPECT_EQ(complaint("\x80\x06."), "byte 0: protocol 6, expected 0 to 5");
  EXPECT_EQ(complaint("\xff."), "byte 0: 0xff, expected an instruction of a pickle");
  EXPECT_EQ(complaint("."), "byte 0: 0 values and 0 marks at the end, expected one value");
  EXPECT_EQ(complaint("NN."), "byte 2: 2 values and 0 marks at the end, expected one value");
  EXPECT_EQ(complaint("N.N"), "byte 2: 1 bytes after the end, expected none");
  EXPECT_EQ(complaint("a."), "byte 0: 0 values on the stack, expected 2");
  EXPECT_EQ(complaint("](K\x01"
                      "a."),
            "byte 4: 1 values on the stack, expected 2");
  EXPECT_EQ(complaint("t."), "byte 0: no mark on the stack, expected one");
  EXPECT_EQ(complaint("(N0t."), "none");  // the value is popped, and here the mark:
  EXPECT_EQ(complaint("(0t."), "byte 2: no mark on the stack, expected one");
  EXPECT_EQ(complaint("NNa."), "byte 2: items for a None, expected a list");
  EXPECT_EQ(complaint("}(Nu."), "byte 3: 1 items for a dict, expected pairs");
  EXPECT_EQ(complaint("(Nd."), "byte 2: a dict of 1 items, expected pairs");
  EXPECT_EQ(complaint("g0\n."), "byte 0: place 0 of the memo, expected one below 0");
  EXPECT_EQ(complaint("Nr\xff\xff\xff\xff."),
            "byte 1: place 4294967295 of the memo, expected at most 1");
  EXPECT_EQ(complaint(std::string(2000, '(')), "byte 1024: nested deeper than 1024 marks");
}

// What nests deeply is flat in memory: neither reading nor forgetting it recurses.
TEST(PickleReader, DepthCostsNothing) {
  std::string deep = "]";
  for (int i = 0; i < 1'000'000; ++i) deep += ']';
  for (int i = 0; i < 1'000'000; ++i) deep += 'a';
  EXPECT_EQ(complaint(deep + "."), "none");
}

class PickleFiles : public TestFiles {};

TEST_F(PickleFiles, AreReadPlainOrGzipAndNamedInErrors) {
  EXPECT_TRUE(read_pickle(write("a", "N.")));
  EXPECT_TRUE(read_pickle(write("a.gz", gzip("N."))));
  const Result<PickleDocument> cut = read_pickle(write("b", "K"));
  ASSERT_FALSE(cut);
  EXPECT_NE(std::string(cut.error().message).find("/b: byte 0: "), std::string::npos);
  EXPECT_EQ(read_pickle(path("none")).error().code, Code::kInvalidArgument);
}

std::string snapshot(int protocol) {
  std::ifstream file(
      CACHALOT_TEST_ASSETS "/alloc/snapshot_p" + std::to_string(protocol) + ".pickle",
      std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Whatever stands in a file, the answer is a document that can be walked over, or an error.
void expect_survival(const std::string& bytes) {
  const Result<PickleDocument> document = parse(bytes);
  if (!document) {
    RC_ASSERT(document.error().code == Code::kBadInput);
    return;
  }
  RC_ASSERT(!shown(*document, document->root(), 4).empty());
  for (const SnapshotFree free : {SnapshotFree::kCompleted, SnapshotFree::kRequested}) {
    (void)convert_snapshot(*document, {.device = 0, .free = free});
  }
}

RC_GTEST_PROP(PickleReader, SurvivesDamagedSnapshots, (std::uint64_t seed, std::uint8_t changes)) {
  base::Rng rng(seed);
  for (int protocol = 0; protocol < 6; ++protocol) {
    std::string bytes = snapshot(protocol);
    for (int i = 0; i < changes % 8 + 1; ++i) {
      const std::size_t at = rng.below(bytes.size());
      switch (rng.below(4)) {
        case 0:
          bytes[at] = static_cast<char>(rng.below(256));
          break;
        case 1:
          bytes.erase(at, rng.below(20));
          break;
        case 2:
          bytes.insert(at, 1, static_cast<char>(rng.below(256)));
          break;
        default:
          bytes.insert(at, bytes.substr(rng.below(bytes.size()), rng.below(40)));
      }
    }
    expect_survival(bytes);
    expect_survival(bytes.substr(0, rng.below(bytes.size() + 1)));
  }
}

RC_GTEST_PROP(PickleReader, SurvivesArbitraryInstructions, (std::uint64_t seed)) {
  constexpr std::string_view kOften =
      "]}()NK\x01"
      "aseu\x90\x94h0"
      "012q\x00t\x85ld\x8fV\n."sv;
  base::Rng rng(seed);
  std::string bytes;
  const std::size_t count = rng.below(400);
  for (std::size_t i = 0; i < count; ++i) {
    bytes += rng.chance(0.9) ? kOften[rng.below(kOften.size())] : static_cast<char>(rng.below(256));
  }
  expect_survival(bytes);
}

}  // namespace
}  // namespace cachalot::trace
