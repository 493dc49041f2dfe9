#include <cachalot/result.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>

#include "base/byte_size.h"
#include "base/crc32c.h"
#include "base/rare_line.h"
#include "base/rng.h"
#include "base/uri.h"

namespace cachalot::base {
namespace {

Result<std::unique_ptr<int>> half_of(int value) {
  if (value % 2 != 0) return Error::make(Code::kInvalidArgument, "value: %d is odd", value);
  return std::make_unique<int>(value / 2);
}

Result<int> quarter_of(int value) {
  CACHALOT_TRY_ASSIGN(auto half, half_of(value));
  CACHALOT_TRY_ASSIGN(auto quarter, half_of(*half));
  return *quarter;
}

TEST(Result, CarriesMoveOnlyValuesAndPassesTheFirstErrorOn) {
  EXPECT_EQ(*quarter_of(12), 3);
  const Result<int> odd = quarter_of(6);
  ASSERT_FALSE(odd);
  EXPECT_EQ(odd.error().code, Code::kInvalidArgument);
  EXPECT_STREQ(odd.error().message, "value: 3 is odd");
}

TEST(Error, MarksAMessageThatWasCut) {
  const std::string long_name(400, 'x');
  const Error error = Error::make(Code::kIo, "%s", long_name.c_str());
  const std::string message = error.message;
  EXPECT_EQ(message.size(), Error::kMessageBytes - 1u);
  EXPECT_EQ(message.substr(message.size() - 3), "...");
}

TEST(Error, AMessageIsOneLineWhateverItQuotes) {
  const Error error = Error::make(Code::kNotFound, "pool: \"%s\"", "a\nb\r\x1b[31m\x7f\xc3\xa9");
  EXPECT_STREQ(error.message, "pool: \"a b  [31m \xc3\xa9\"");
  EXPECT_STREQ(Error::from_errno(ENOENT, "a\nb").message, "a b: No such file or directory");
}

TEST(Error, FromErrnoSaysWhatTheCallerCanDo) {
  EXPECT_EQ(Error::from_errno(ENOSPC, "x").code, Code::kNoSpace);
  EXPECT_EQ(Error::from_errno(EACCES, "x").code, Code::kPermission);
  EXPECT_EQ(Error::from_errno(ENOENT, "x").code, Code::kNotFound);
  EXPECT_NE(std::string(Error::from_errno(ENOENT, "a.txt").message).find("a.txt: No such"),
            std::string::npos);
}

TEST(Crc32c, MatchesThePublishedCheckValueOfThirtyTwoZeroBytes) {
  std::uint32_t crc = kCrc32cInit;
  for (int i = 0; i < 4; ++i) crc = crc32c_word(crc, 0);
  EXPECT_EQ(~crc, 0x8a9136aau);  // RFC 3720, B.4
}

TEST(ByteSize, IsReadWithAndWithoutAUnit) {
  EXPECT_EQ(*parse_byte_size("x", "65536"), 65536u);
  EXPECT_EQ(*parse_byte_size("x", "64KiB"), 65536u);
  EXPECT_EQ(*parse_byte_size("x", "1.5GB"), 1'500'000'000u);
  EXPECT_EQ(*parse_byte_size("x", "0"), 0u);
  EXPECT_EQ(*parse_byte_size("x", "3PiB"), std::uint64_t{3} << 50);
  EXPECT_EQ(*parse_byte_size("x", "7.5EiB"), std::uint64_t{15} << 59);
  EXPECT_EQ(*parse_byte_size("x", "2PB"), 2'000'000'000'000'000u);
  EXPECT_EQ(*parse_byte_size("x", "9.2EB"), 9'200'000'000'000'000'000u);
  EXPECT_EQ(*parse_byte_size("x", "1.00000000000000000000000001GiB"), std::uint64_t{1} << 30);
  EXPECT_EQ(*parse_byte_size("x", "7." + std::string(40, '9') + "EiB"),
            (std::uint64_t{1} << 63) - 2);
  for (const char* const text : {"", "B", "1.5", "1e3", "-1", "1 GiB", "64kib", "9EiB",
                                 "8388608TiB", "99999999999999999999"}) {
    const auto refused = parse_byte_size("CACHALOT_X", text);
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
    EXPECT_NE(std::string(refused.error().message).find("CACHALOT_X: "), std::string::npos);
  }
}

TEST(ByteSize, FromTwoToThe63OnIsTooLargeInEveryUnit) {
  for (const char* const text : {"9223372036854775808", "8388608TiB", "8192PiB", "8EiB", "9.3EB",
                                 "18446744073709551615EiB", "99999999999999999999EB"}) {
    const auto refused = parse_byte_size("x", text);
    ASSERT_FALSE(refused) << text;
    EXPECT_NE(std::string(refused.error().message).find("too large"), std::string::npos)
        << refused.error().message;
  }
}

TEST(Uri, ShowsNoPartOfAPassword) {
  for (const char* const text : {"redis://user:s3cr3t@host:1?wrong", "redis://:s3cr3t@host:1?wrong",
                                 "redis://user:s3?cr3t@host", "redis://user:?s3cr3t@host:1/kv",
                                 "s3://key:1s?cr3t@host?region=a"}) {
    const auto refused = Uri::parse("storage", text);
    ASSERT_FALSE(refused) << text;
    const std::string message = refused.error().message;
    EXPECT_EQ(message.find("s3cr3t"), std::string::npos) << message;
    EXPECT_EQ(message.find("cr3t"), std::string::npos) << message;
    EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  }
  EXPECT_NE(std::string(Uri::parse("storage", "redis://u:a?b@h").error().message).find("%3F"),
            std::string::npos);
  for (const char* const text :
       {"redis://host:6379/kv?prefix=a@b", "redis://host:6379?prefix=a@b",
        "redis://host?prefix=a@b", "redis://[::1]:6379?prefix=a@b",
        "etcd://a:2379,b:2379/kv?prefix=a@b", "redis://user:a%3Fb@host:1/kv?prefix=a@b"}) {
    const auto uri = Uri::parse("storage", text);
    ASSERT_TRUE(uri) << uri.error().message;
    EXPECT_EQ(*uri->find("prefix"), "a@b");
  }
}

TEST(RareLine, LetsThroughWhatAMinuteMayHave) {
  RareLine one, ten(10);
  int of_one = 0, of_ten = 0;
  for (int i = 0; i < 10'000; ++i) {
    of_one += one.is_due();
    of_ten += ten.is_due();
  }
  EXPECT_EQ(of_one, 1);
  EXPECT_EQ(of_ten, 10);
}

TEST(Rng, RepeatsForTheSameSeedAndStaysBelowItsBound) {
  Rng a(7), b(7);
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t value = a.below(10);
    EXPECT_EQ(value, b.below(10));
    EXPECT_LT(value, 10u);
  }
}

}  // namespace
}  // namespace cachalot::base
