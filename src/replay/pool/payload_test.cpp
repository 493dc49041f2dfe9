#include "replay/pool/payload.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace cachalot::replay {
namespace {

constexpr BlockHash kHash{0x0123456789abcdef, 0xfedcba9876543210};
constexpr std::uint64_t kEngines = 4;

std::vector<std::byte> payload(const BlockHash& hash, std::size_t bytes,
                               const PayloadStamp& stamp = {1, 2}) {
  std::vector<std::byte> out(bytes);
  fill_payload(hash, stamp, out);
  return out;
}

TEST(Payload, ThatWasJustWrittenChecksAndSaysWhoWroteIt) {
  for (const std::size_t lines : {1, 2, 3, 16, 17, 33, 1024}) {
    const std::vector<std::byte> bytes = payload(kHash, lines * 64, {3, 77});
    for (const VerifyMode mode : {VerifyMode::kFull, VerifyMode::kSample, VerifyMode::kOff}) {
      const PayloadCheck check = check_payload(kHash, kEngines, mode, bytes);
      EXPECT_TRUE(check.ok()) << lines << " lines, byte " << check.first_bad_byte;
      EXPECT_EQ(check.stamp, (PayloadStamp{3, 77}));
    }
  }
}

TEST(Payload, IsCheckedByteForByteInFullMode) {
  std::vector<std::byte> bytes = payload(kHash, 20 * 64);
  EXPECT_EQ(check_payload(kHash, kEngines, VerifyMode::kFull, bytes).checked_bytes, bytes.size());
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const std::byte flip : {std::byte{1}, std::byte{0x80}}) {
      bytes[at] ^= flip;
      const PayloadCheck check = check_payload(kHash, kEngines, VerifyMode::kFull, bytes);
      ASSERT_FALSE(check.ok()) << "byte " << at;
      // Line 0 names the word; a stamp is doubted where its check word does not fit.
      if (at >= 64) {
        EXPECT_EQ(check.first_bad_byte, at);
      }
      bytes[at] ^= flip;
    }
  }
}

TEST(Payload, IsCheckedEverySixteenthLineAndAtTheEndInSampleMode) {
  constexpr std::size_t kLines = 40;
  std::vector<std::byte> bytes = payload(kHash, kLines * 64);
  EXPECT_EQ(check_payload(kHash, kEngines, VerifyMode::kSample, bytes).checked_bytes, 4u * 64);
  for (std::size_t line = 0; line < kLines; ++line) {
    bytes[line * 64 + 63] ^= std::byte{4};
    const bool is_seen = line % 16 == 0 || line == kLines - 1;
    EXPECT_EQ(check_payload(kHash, kEngines, VerifyMode::kSample, bytes).ok(), !is_seen) << line;
    bytes[line * 64 + 63] ^= std::byte{4};
  }
}

TEST(Payload, OfAnEngineThatDoesNotExistIsWrong) {
  const std::vector<std::byte> bytes = payload(kHash, 128, {kEngines, 0});
  EXPECT_EQ(check_payload(kHash, kEngines, VerifyMode::kFull, bytes).first_bad_byte, 16u);
  EXPECT_TRUE(check_payload(kHash, kEngines + 1, VerifyMode::kFull, bytes).ok());
}

RC_GTEST_PROP(Payload, WithTwoLinesSwappedOrOneRepeatedIsNoticed, ()) {
  const BlockHash hash{*rc::gen::arbitrary<std::uint64_t>(), *rc::gen::arbitrary<std::uint64_t>()};
  const std::size_t lines = *rc::gen::inRange<std::size_t>(2, 70);
  const std::size_t a = *rc::gen::inRange<std::size_t>(0, lines);
  const std::size_t b = *rc::gen::inRange<std::size_t>(0, lines);
  RC_PRE(a != b);
  std::vector<std::byte> bytes = payload(hash, lines * 64);
  const bool swap = *rc::gen::arbitrary<bool>();
  std::array<std::byte, 64> line;
  std::memcpy(line.data(), &bytes[a * 64], 64);
  if (swap) std::memcpy(&bytes[a * 64], &bytes[b * 64], 64);
  std::memcpy(&bytes[b * 64], line.data(), 64);
  RC_ASSERT(!check_payload(hash, kEngines, VerifyMode::kFull, bytes).ok());
}

RC_GTEST_PROP(Payload, WithALineOfAnotherBlockIsNoticed, ()) {
  const BlockHash hash{*rc::gen::arbitrary<std::uint64_t>(), *rc::gen::arbitrary<std::uint64_t>()};
  BlockHash other = hash;
  (*rc::gen::arbitrary<bool>() ? other.low : other.high) ^= 1ull << *rc::gen::inRange(0, 64);
  const std::size_t lines = *rc::gen::inRange<std::size_t>(1, 70);
  const std::size_t at = *rc::gen::inRange<std::size_t>(0, lines);
  std::vector<std::byte> bytes = payload(hash, lines * 64);
  const std::vector<std::byte> foreign = payload(other, lines * 64);
  std::memcpy(&bytes[at * 64], &foreign[at * 64], 64);
  RC_ASSERT(!check_payload(hash, kEngines, VerifyMode::kFull, bytes).ok());
}

TEST(Payload, ShiftedByAWordOrALineIsNoticed) {
  for (const std::size_t shift : {1, 8, 64, 128}) {
    std::vector<std::byte> bytes = payload(kHash, 64 * 64);
    // All behind the stamp, so that only the pattern can tell.
    std::memmove(&bytes[64 + shift], &bytes[64], bytes.size() - 64 - shift);
    EXPECT_FALSE(check_payload(kHash, kEngines, VerifyMode::kFull, bytes).ok()) << shift;
  }
}

}  // namespace
}  // namespace cachalot::replay
