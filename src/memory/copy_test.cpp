#include "memory/copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/rng.h"
#include "memory/fused_hash.h"
#include "testing/memory/isa_name.h"

namespace cachalot::memory {
namespace {

class CopyKernelsOfIsa : public testing::TestWithParam<Isa> {};

constexpr std::size_t kGuardBytes = 128;

struct Buffer {
  explicit Buffer(std::size_t bytes, unsigned char fill)
      : lines((bytes + 2 * kGuardBytes) / 64 + 2), fill_(fill) {
    std::memset(lines.data(), fill, lines.size() * 64);
  }
  unsigned char* at(std::size_t shift) {
    return reinterpret_cast<unsigned char*>(lines.data()) + kGuardBytes + shift;
  }
  // Nothing outside [shift, shift + bytes) was touched.
  bool is_clean_around(std::size_t shift, std::size_t bytes) {
    const auto* begin = reinterpret_cast<unsigned char*>(lines.data());
    const auto* end = begin + lines.size() * 64;
    for (const unsigned char* p = begin; p != end; ++p) {
      if (p >= at(shift) && p < at(shift) + bytes) continue;
      if (*p != fill_) return false;
    }
    return true;
  }
  std::vector<Line> lines;
  unsigned char fill_;
};

void fill(unsigned char* at, std::size_t bytes, base::Rng& rng) {
  for (std::size_t i = 0; i < bytes; ++i) at[i] = static_cast<unsigned char>(rng.below(256));
}

TEST_P(CopyKernelsOfIsa, MoveExactlyTheBytesAskedForAtEveryAlignment) {
  const CopyKernels& kernels = copy_kernels(GetParam());
  base::Rng rng(3);
  for (const std::size_t lines : {1, 2, 3, 4, 15, 16, 17, 31, 47, 48, 64, 65, 100}) {
    const std::size_t bytes = lines * 64;
    for (std::size_t shift = 0; shift < 64; ++shift) {
      Buffer from(bytes, 0), stored(bytes, 0x5a), streamed(bytes, 0x5a);
      fill(from.at(shift), bytes, rng);
      FusedHash hash(bytes);
      kernels.store(stored.at(shift), from.at(shift), bytes, shift % 2 == 0 ? &hash : nullptr);
      EXPECT_EQ(std::memcmp(stored.at(shift), from.at(shift), bytes), 0);
      EXPECT_TRUE(stored.is_clean_around(shift, bytes));
      FusedHash other(bytes);
      kernels.stream(streamed.at(0), from.at(shift), bytes, shift % 2 == 1 ? &other : nullptr);
      EXPECT_EQ(std::memcmp(streamed.at(0), from.at(shift), bytes), 0);
      EXPECT_TRUE(streamed.is_clean_around(0, bytes));
      if (shift % 16 != 0) continue;
      Buffer narrow(bytes, 0x5a);
      FusedHash third(bytes);
      kernels.stream_narrow(narrow.at(shift), from.at(shift), bytes, &third);
      EXPECT_EQ(std::memcmp(narrow.at(shift), from.at(shift), bytes), 0);
      EXPECT_TRUE(narrow.is_clean_around(shift, bytes));
      EXPECT_EQ(third.finish(), hash.finish());
    }
  }
}

TEST_P(CopyKernelsOfIsa, LinesGoInRunsAndComeBackFromAnywhere) {
  const CopyKernels& kernels = copy_kernels(GetParam());
  base::Rng rng(4);
  std::vector<Line> source(300), pool(300), run(300), gathered(300);
  fill(reinterpret_cast<unsigned char*>(source.data()), 300 * 64, rng);
  kernels.store_lines(pool.data(), source.data(), 150);
  kernels.stream_lines(pool.data() + 150, source.data() + 150, 150);
  kernels.load_lines(pool.data(), 300, run.data());
  EXPECT_EQ(run, source);

  std::vector<const void*> from;
  std::vector<Line> expected;
  for (int i = 0; i < 300; ++i) {
    const std::size_t pick = rng.below(300);
    from.push_back(&pool[pick]);
    expected.push_back(source[pick]);
  }
  for (const std::size_t piece : {300, 100, 16, 1}) {
    std::fill(gathered.begin(), gathered.end(), Line{});
    for (std::size_t first = 0; first < 300; first += piece) {
      kernels.gather_lines(from.data(), first, std::min<std::size_t>(first + piece, 300), 300,
                           gathered.data());
    }
    EXPECT_EQ(gathered, expected);
  }
}

TEST_P(CopyKernelsOfIsa, AreThoseAskedForOrTheWidestBelow) {
  const CopyKernels& kernels = copy_kernels(GetParam());
  EXPECT_EQ(kernels.isa, usable_isa(GetParam()));
  EXPECT_EQ(kernels.whole_lines, kernels.isa == Isa::kAvx512);
  if (isa_available(GetParam()) && GetParam() != Isa::kAuto) {
    EXPECT_EQ(kernels.isa, GetParam());
  }
  EXPECT_TRUE(isa_available(kernels.isa));
}

INSTANTIATE_TEST_SUITE_P(Every, CopyKernelsOfIsa,
                         testing::Values(Isa::kAuto, Isa::kSse2, Isa::kAvx2, Isa::kAvx512),
                         [](const auto& of) { return std::string(isa_name(of.param)); });

}  // namespace
}  // namespace cachalot::memory
