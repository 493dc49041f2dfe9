#include "transfer/registry/peer_record.h"

#include <gtest/gtest.h>

#include <string>

#include "base/rng.h"
#include "testing/transfer/registries.h"

namespace cachalot::transfer {
namespace {

const std::string kGood =
    R"({"version": 1, "name": "a", "incarnation": "00000000000000ff", "addresses": ["tcp:h:1"],
        "machine": "m", "facts": {"role": "decode"}, "later": [1]})";

std::string with(const std::string& from, const std::string& to) {
  std::string text = kGood;
  const std::size_t at = text.find(from);
  if (at == std::string::npos) std::abort();
  return text.replace(at, from.size(), to);
}

TEST(PeerRecordTest, ARecordIsReadAsItWasWritten) {
  const Result<PeerRecord> read = decode(kGood, "a", "test");
  ASSERT_TRUE(read) << text_of(read);
  EXPECT_EQ(*read, (PeerRecord{"a", 255, {"tcp:h:1"}, "m", {{"role", "decode"}}}));
  EXPECT_EQ(*decode(encode(*read), "a", "test"), *read);
  PeerRecord odd{"ä\"\\/", ~std::uint64_t{0}, {"unix:/tmp/ä b"}, "m", {}};
  EXPECT_EQ(*decode(encode(odd), odd.name, "test"), odd);
}

TEST(PeerRecordTest, EachWrongMemberIsOneErrorThatNamesIt) {
  const auto message = [](const std::string& text, Code code = Code::kCorrupt) {
    const Result<PeerRecord> read = decode(text, "a", "test");
    EXPECT_TRUE(failed_with(read, code)) << text << ": " << text_of(read);
    return text_of(read);
  };
  const auto names = [&](const std::string& text, const char* part) {
    const std::string said = message(text);
    return said.find(part) != std::string::npos && said.find('\n') == std::string::npos;
  };
  EXPECT_TRUE(names("", "no JSON object"));
  EXPECT_TRUE(names("[]", "no JSON object"));
  EXPECT_TRUE(names(std::string(8192, '[') + std::string(8192, ']'), "no JSON object"));
  EXPECT_TRUE(names(std::string(100'000, '['), "100000 bytes, expected at most 16384"));
  EXPECT_TRUE(names("{}", "\"version\""));
  EXPECT_TRUE(names(with(": 1,", ": \"1\","), "\"version\""));
  EXPECT_TRUE(names(with(": 1,", ": 1.5,"), "\"version\""));
  message(with(": 1,", ": 2,"), Code::kVersionMismatch);
  message(with(": 1,", ": 18446744073709551615,"), Code::kVersionMismatch);
  EXPECT_TRUE(names(with("\"a\"", "7"), "\"name\""));
  EXPECT_TRUE(names(with("\"a\"", "\"b\""), "that of \"b\""));
  EXPECT_TRUE(names(with("\"00000000000000ff\"", "255"), "\"incarnation\""));
  EXPECT_TRUE(names(with("00ff", "00fg"), "\"incarnation\""));
  EXPECT_TRUE(names(with("00ff", "00f"), "\"incarnation\""));
  EXPECT_TRUE(names(with("00ff", "0000"), "incarnation is 0"));
  EXPECT_TRUE(names(with("[\"tcp:h:1\"]", "\"tcp:h:1\""), "\"addresses\""));
  EXPECT_TRUE(names(with("[\"tcp:h:1\"]", "[[1]]"), "\"addresses\""));
  EXPECT_TRUE(names(with("[\"tcp:h:1\"]", "[]"), "0 addresses"));
  EXPECT_TRUE(names(with("tcp:h:1", "tcp"), "address \"tcp\""));
  EXPECT_TRUE(names(with("tcp:h:1", "tcp:\\u0000"), "address"));
  EXPECT_TRUE(names(with("\"m\"", "null"), "\"machine\""));
  EXPECT_TRUE(names(with("\"m\"", "\"\""), "machine"));
  EXPECT_TRUE(names(with("\"decode\"", "{}"), "\"facts\""));
  EXPECT_TRUE(names(with("{\"role\": \"decode\"}", "[]"), "\"facts\""));
  EXPECT_TRUE(names(with("\"role\"", "\"\""), "a fact is empty"));
  EXPECT_TRUE(names(kGood + std::string(kMostRecordBytes, ' '), "expected at most 16384"));
  EXPECT_TRUE(names(std::string(kMostRecordBytes, '['), "no JSON object"));
}

TEST(PeerRecordTest, DamagedTextsAreErrorsOrValidRecords) {
  base::Rng random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string text = kGood;
    for (std::uint64_t i = 0; i <= random.below(3); ++i) {
      const std::size_t at = random.below(text.size());
      if (random.chance(0.5)) text[at] = static_cast<char>(random.below(256));
      if (random.chance(0.2)) text.erase(at, random.below(20));
      if (random.chance(0.1)) text.insert(at, text.substr(random.below(text.size())));
    }
    const Result<PeerRecord> read = decode(text, "a", "test");
    if (read) {
      EXPECT_TRUE(read->check()) << text;
    } else {
      EXPECT_NE(read.error().message[0], '\0');
    }
  }
}

TEST(PeerRecordTest, ARecordOfThisProcessHasItsMachineAndANewIncarnation) {
  const auto one = PeerRecord::make("a", {"tcp:h:1"}), other = PeerRecord::make("a", {"tcp:h:1"});
  ASSERT_TRUE(one && other);
  EXPECT_TRUE(one->check());
  EXPECT_NE(one->incarnation, other->incarnation);
  EXPECT_EQ(one->machine, other->machine);
  EXPECT_EQ(one->machine.size(), 32u);
}

}  // namespace
}  // namespace cachalot::transfer
