#include "base/words.h"

#include <gtest/gtest.h>

namespace cachalot::base {
namespace {

TEST(Words, OneThingIsNoPlural) {
  EXPECT_EQ(counted(0, "block"), "0 blocks");
  EXPECT_EQ(counted(1, "block"), "1 block");
  EXPECT_EQ(counted(1, "engine process", "engine processes"), "1 engine process");
  EXPECT_EQ(counted(2, "engine process", "engine processes"), "2 engine processes");
  EXPECT_EQ(counted(1'234'567, "block"), "1,234,567 blocks");
}

TEST(Words, NumbersAreGroupedByThousands) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(~std::uint64_t{0}), "18,446,744,073,709,551,615");
}

TEST(Words, NothingOfAStrangersTextMovesACursorOrIsNoText) {
  EXPECT_EQ(printable("a\x1b[31mb\n\r\x7f\t"), "a?[31mb????");
  EXPECT_EQ(printable("\xc3\xa4 \xe2\x80\xa6 \xf0\x9f\x90\xb3"),
            "\xc3\xa4 \xe2\x80\xa6 \xf0\x9f\x90\xb3");
  EXPECT_EQ(printable("\xff\xc3"), "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "?31m");  // CSI in one character
  EXPECT_EQ(printable(std::string_view("\0x", 2)), "?x");
}

}  // namespace
}  // namespace cachalot::base
