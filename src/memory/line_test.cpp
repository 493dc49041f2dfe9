#include "memory/line.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <array>

namespace cachalot::memory {
namespace {

Line line_of(const std::array<std::uint64_t, 8>& words) {
  Line line;
  for (int i = 0; i < 8; ++i) line.words[i] = words[i];
  return line;
}

RC_GTEST_PROP(LineSeal, ChecksWhatItSealedAndKeepsTheFirstSixtyBytes,
              (const std::array<std::uint64_t, 8>& words, std::uint64_t low, std::uint64_t high,
               std::uint64_t address, std::uint64_t salt)) {
  const LineSeal seal = LineSeal(low, high).salted(salt);
  const Line before = line_of(words);
  Line line = before;
  seal.seal(line, address);
  RC_ASSERT(std::memcmp(&line, &before, 60) == 0);
  // A line whose 512 bits are all equal cannot come out of seal() but by a CRC that says so.
  RC_ASSERT(seal.checks(line, address));
}

RC_GTEST_PROP(LineSeal, NoticesEveryFlippedBit, (const std::array<std::uint64_t, 8>& words)) {
  const LineSeal seal(1, 2);
  Line line = line_of(words);
  seal.seal(line, 4096);
  for (int bit = 0; bit < 512; ++bit) {
    line.words[bit / 64] ^= std::uint64_t{1} << (bit % 64);
    RC_ASSERT(!seal.checks(line, 4096));
    line.words[bit / 64] ^= std::uint64_t{1} << (bit % 64);
  }
}

RC_GTEST_PROP(LineSeal, NoticesALineWhoseHalvesAreOfTwoWrites,
              (const std::array<std::uint64_t, 8>& first,
               const std::array<std::uint64_t, 8>& second)) {
  const LineSeal seal(1, 2);
  Line older = line_of(first), newer = line_of(second);
  seal.seal(older, 64);
  seal.seal(newer, 64);
  for (int torn_at = 1; torn_at < 8; ++torn_at) {
    Line torn = older;
    for (int i = 0; i < torn_at; ++i) torn.words[i] = newer.words[i];
    if (torn == older || torn == newer) continue;
    RC_ASSERT(!seal.checks(torn, 64));
  }
}

TEST(LineSeal, DoesNotCheckUnderAnotherAddressPoolOrSalt) {
  const LineSeal seal(11, 12);
  Line line = line_of({1, 2, 3, 4, 5, 6, 7, 8});
  seal.seal(line, 128);
  EXPECT_TRUE(seal.checks(line, 128));
  EXPECT_FALSE(seal.checks(line, 192));
  EXPECT_FALSE(LineSeal(11, 13).checks(line, 128));
  EXPECT_FALSE(LineSeal(10, 12).checks(line, 128));
  EXPECT_FALSE(LineSeal(12, 11).checks(line, 128));
  EXPECT_FALSE(seal.salted(7).checks(line, 128));

  seal.salted(7).seal(line, 128);
  EXPECT_TRUE(seal.salted(7).checks(line, 128));
  EXPECT_FALSE(seal.salted(8).checks(line, 128));
  EXPECT_FALSE(seal.checks(line, 128));
}

// The seed for which a blank line's CRC is right exists for every address, CRC-32C being linear in
// it: found by solving for it, such a seal has to refuse the line all the same.
LineSeal seal_whose_crc_says(std::uint32_t wanted, const Line& blank, std::uint64_t address) {
  const auto crc_from = [&](std::uint32_t seed) {
    std::uint32_t crc = base::crc32c_word(seed, address);
    for (int i = 0; i < 7; ++i) crc = base::crc32c_word(crc, blank.words[i]);
    return base::crc32c_word(crc, blank.words[7] & 0xffffffffu);
  };
  // crc_from(seed) = crc_from(0) ^ M * seed; Gauss over GF(2), columns are M's images of one bit.
  std::array<std::uint32_t, 32> image, source;
  for (int bit = 0; bit < 32; ++bit) {
    source[bit] = 1u << bit;
    image[bit] = crc_from(source[bit]) ^ crc_from(0);
  }
  std::uint32_t left = wanted ^ crc_from(0), seed = 0;
  for (int bit = 0; bit < 32; ++bit) {
    int pivot = bit;
    while (pivot < 31 && !(image[pivot] >> bit & 1)) ++pivot;
    std::swap(image[bit], image[pivot]);
    std::swap(source[bit], source[pivot]);
    for (int i = 0; i < 32; ++i) {
      if (i != bit && (image[i] >> bit & 1)) {
        image[i] ^= image[bit];
        source[i] ^= source[bit];
      }
    }
  }
  for (int bit = 0; bit < 32; ++bit) {
    if (left >> bit & 1) seed ^= source[bit];
  }
  EXPECT_EQ(crc_from(seed), wanted);
  LineSeal seal;
  static_assert(sizeof seal == sizeof seed);  // a seal is its seed
  std::memcpy(static_cast<void*>(&seal), &seed, sizeof seed);
  return seal;
}

TEST(LineSeal, NeverChecksABlankLineEvenWhereItsCrcWouldBeRight) {
  const Line zeros = line_of({});
  Line ones;
  std::memset(&ones, 0xff, sizeof ones);
  for (std::uint64_t address = 0; address < 64 * 64; address += 64) {
    const LineSeal knows_zeros = seal_whose_crc_says(0, zeros, address);
    EXPECT_FALSE(knows_zeros.checks(zeros, address));
    const LineSeal knows_ones = seal_whose_crc_says(0xffffffffu, ones, address);
    EXPECT_FALSE(knows_ones.checks(ones, address));
  }
}

struct Entry {
  std::uint64_t hash[2];
  std::uint32_t numbers[12];
};

TEST(Line, CarriesAStructThereAndBack) {
  Entry entry = {{1, 2}, {3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}};
  const Entry back = as<Entry>(to_line(entry));
  EXPECT_EQ(std::memcmp(&back, &entry, sizeof entry), 0);
}

}  // namespace
}  // namespace cachalot::memory
