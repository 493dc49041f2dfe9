// The kernels that were compiled into the library: for which GPUs. Their container is NVIDIA's fat
// binary: a header, then an entry for each piece of code.
#include "kv/cuda/kernel_image.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <set>

namespace cachalot::kv {
namespace {

constexpr std::uint32_t kMagic = 0xba55ed50;
constexpr std::uint16_t kPtx = 1, kMachineCode = 2;

template <class T>
T at(std::span<const unsigned char> bytes, std::size_t offset) {
  T value{};
  if (offset + sizeof value <= bytes.size())
    std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

struct Contents {
  std::set<std::uint32_t> machine_code, ptx;  // 90: sm_90
};

// @shape  header: magic (4), version (2), header's bytes (2), bytes behind it (8)
//         entry: kind (2), version (2), header's bytes (4), bytes behind it (8), …, at 28 the GPU (4)
Contents contents_of(std::span<const unsigned char> image) {
  Contents out;
  EXPECT_EQ(at<std::uint32_t>(image, 0), kMagic);
  std::uint64_t offset = at<std::uint16_t>(image, 6);
  while (offset + 32 <= image.size()) {
    const auto kind = at<std::uint16_t>(image, offset);
    const auto gpu = at<std::uint32_t>(image, offset + 28);
    if (kind == kPtx) out.ptx.insert(gpu);
    if (kind == kMachineCode) out.machine_code.insert(gpu);
    offset += at<std::uint32_t>(image, offset + 4) + at<std::uint64_t>(image, offset + 8);
  }
  EXPECT_EQ(offset, image.size());
  return out;
}

TEST(KernelImage, HoldsCodeForAmpereHopperAndBlackwell) {
  if (kernel_image().empty()) GTEST_SKIP() << "built without nvcc: there are no kernels in here";
  const Contents contents = contents_of(kernel_image());
  EXPECT_EQ(contents.machine_code, (std::set<std::uint32_t>{80, 90, 100}));
  EXPECT_EQ(contents.ptx, (std::set<std::uint32_t>{100}));
}

}  // namespace
}  // namespace cachalot::kv
