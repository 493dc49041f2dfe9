#include "rpc/ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"

namespace cachalot::rpc {
namespace {

using memory::Line;

constexpr std::uint32_t kLines = 8;

class Ring : public testing::TestWithParam<memory::DomainKind> {
 protected:
  Ring()
      : domain_(GetParam() == memory::DomainKind::kCoherent ? memory::make_coherent_domain()
                                                            : memory::make_noncoherent_domain()),
        lines_(kLines),
        region_(*domain_, reinterpret_cast<std::byte*>(lines_.data()), memory::LineSeal(1, 2)) {}

  static Line line_of(std::uint64_t number) {
    Line line;
    for (std::uint64_t i = 0; i < 8; ++i) line.words[i] = base::mix64(number * 8 + i);
    return line;
  }

  // How many of the next `count` lines the reader would take now, and those lines.
  std::uint32_t look(const RingReader& reader, std::uint32_t count, Line* lines) {
    std::vector<const void*> addresses;
    for (std::uint32_t i = 0; i < count; ++i) addresses.push_back(reader.address(i));
    domain_->gather_lines(addresses.data(), count, lines);
    return reader.accept(lines, count);
  }

  std::unique_ptr<memory::Domain> domain_;
  std::vector<Line> lines_;
  memory::SealedRegion region_;
};

TEST_P(Ring, HandsOverEveryLineOnceAndInOrderThroughManyLaps) {
  RingWriter writer(region_, 0, kLines);
  RingReader reader(region_, 0, kLines);
  base::Rng rng(3);
  std::uint64_t written = 0, taken = 0;
  while (taken < 100 * kLines) {
    for (std::uint64_t n = rng.below(kLines - (written - taken) + 1); n > 0; --n) {
      EXPECT_EQ(writer.write(line_of(++written)), written);
    }
    Line lines[kLines];
    ASSERT_EQ(look(reader, kLines, lines), written - taken);
    const auto some = static_cast<std::uint32_t>(rng.below(written - taken + 1));
    for (std::uint32_t i = 0; i < some; ++i) {
      const Line expected = line_of(++taken);
      EXPECT_EQ(lines[i].words[0], taken);
      EXPECT_TRUE(std::equal(lines[i].words + 1, lines[i].words + 7, expected.words + 1));
      EXPECT_EQ(lines[i].words[7] & 0xffffffffu, expected.words[7] & 0xffffffffu);
    }
    reader.advance(some);
  }
}

TEST_P(Ring, NeverTakesALineOfAnotherLap) {
  RingWriter writer(region_, 0, kLines);
  for (std::uint64_t n = 1; n <= kLines; ++n) writer.write(line_of(n));
  RingReader ahead(region_, 0, kLines);
  Line lines[kLines];
  for (int lap = 1; lap < 5; ++lap) {
    ahead.advance(kLines);
    EXPECT_EQ(look(ahead, kLines, lines), 0u) << "lap " << lap;
  }
  for (std::uint64_t n = 1; n <= kLines; ++n) writer.write(line_of(n));
  const RingReader behind(region_, 0, kLines);
  EXPECT_EQ(look(behind, kLines, lines), 0u);
}

TEST_P(Ring, StopsAtTheFirstLineThatIsMissing) {
  RingWriter writer(region_, 0, kLines);
  for (std::uint64_t n = 1; n <= 5; ++n) writer.write(line_of(n));
  lines_[3] = Line{};  // line 3
  const RingReader reader(region_, 0, kLines);
  Line lines[kLines];
  EXPECT_EQ(look(reader, kLines, lines), 2u);
}

TEST_P(Ring, NeverTakesALineOfAnotherIncarnationPoolOrPlace) {
  const RingReader reader(region_.salted(5), 0, kLines);
  Line lines[kLines];
  for (std::uint64_t salt = 0; salt < 1000; ++salt) {
    RingWriter writer(region_.salted(salt), 0, kLines);
    writer.write(line_of(1));
    ASSERT_EQ(look(reader, 1, lines), salt == 5 ? 1u : 0u) << "incarnation " << salt;
  }
  const memory::SealedRegion other(*domain_, region_.at(0), memory::LineSeal(1, 3));
  RingWriter writer(other.salted(5), 0, kLines);
  writer.write(line_of(1));
  EXPECT_EQ(look(reader, 1, lines), 0u) << "another pool";

  Line moved = line_of(1);
  moved.words[0] = 1;
  region_.salted(5).seal(moved, 3 * memory::kLineBytes);
  lines_[1] = moved;
  EXPECT_EQ(look(reader, 1, lines), 0u) << "another place";
}

TEST_P(Ring, NeverTakesALineWithAFlippedBit) {
  RingWriter writer(region_, 0, kLines);
  writer.write(line_of(1));
  const RingReader reader(region_, 0, kLines);
  Line lines[kLines];
  const Line good = lines_[1];
  for (unsigned bit = 0; bit < 512; ++bit) {
    lines_[1] = good;
    lines_[1].words[bit / 64] ^= std::uint64_t{1} << (bit % 64);
    EXPECT_EQ(look(reader, 1, lines), 0u) << "bit " << bit;
  }
  lines_[1] = good;
  EXPECT_EQ(look(reader, 1, lines), 1u);
}

TEST_P(Ring, NeverTakesAMixOfTwoLines) {
  // Two lines with the same number, as a writer that starts again would leave them.
  RingWriter first(region_, 0, kLines), second(region_, 0, kLines);
  first.write(line_of(1));
  const Line old = lines_[1];
  second.write(line_of(2));
  const Line young = lines_[1];
  const RingReader reader(region_, 0, kLines);
  Line lines[kLines];
  for (unsigned mask = 0; mask < 256; ++mask) {
    for (unsigned word = 0; word < 8; ++word) {
      lines_[1].words[word] = (mask >> word & 1) != 0 ? young.words[word] : old.words[word];
    }
    const bool is_whole = lines_[1] == old || lines_[1] == young;
    EXPECT_EQ(look(reader, 1, lines), is_whole ? 1u : 0u) << "words " << mask;
  }
}

INSTANTIATE_TEST_SUITE_P(Domains, Ring,
                         testing::Values(memory::DomainKind::kCoherent,
                                         memory::DomainKind::kNoncoherent),
                         [](const auto& domain) { return memory::domain_name(domain.param); });

}  // namespace
}  // namespace cachalot::rpc
