#include "tier/layerwise/resident_layers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace cachalot::tier::layerwise {
namespace {

std::vector<std::uint64_t> resident_of(std::uint64_t layers, std::uint64_t resident) {
  std::vector<std::uint64_t> out;
  for (std::uint64_t i = 0; i < layers; ++i) {
    if (is_resident(i, layers, resident)) out.push_back(i);
  }
  return out;
}

TEST(ResidentLayers, AreSpreadEvenly) {
  EXPECT_EQ(resident_of(8, 4), (std::vector<std::uint64_t>{1, 3, 5, 7}));
  EXPECT_EQ(resident_of(12, 3), (std::vector<std::uint64_t>{3, 7, 11}));
  EXPECT_EQ(resident_of(8, 0), (std::vector<std::uint64_t>{}));
  for (std::uint64_t layers = 1; layers <= 80; ++layers) {
    for (std::uint64_t resident = 0; resident <= layers + 1; ++resident) {
      const std::uint64_t stay = resident_of(layers, resident).size();
      EXPECT_EQ(stay, resident + kStagingLayers >= layers ? layers : resident);
    }
  }
}

TEST(ResidentLayers, NeedTwoMoreLayersOnTheDevice) {
  EXPECT_EQ(most_on_device(12, 0), 2u);
  EXPECT_EQ(most_on_device(12, 9), 11u);
  EXPECT_EQ(most_on_device(12, 10), 12u);
  EXPECT_EQ(most_on_device(12, ~std::uint64_t{0}), 12u);
  EXPECT_EQ(most_on_device(1, 0), 1u);
}

// Equation 4 for Llama-2-7B (32 layers, 16,384 bytes a token and layer) on a GPU with half of 989 TFLOP/s whose copies
// share a bus: 12.5 GB/s. A token takes 27 us to compute and 42 us to offload.
TEST(ResidentLayers, AreAsManyAsThePrefillCannotHide) {
  constexpr std::uint64_t kTokens = 4096;
  CopyLoad load{.layers = 32,
                .layer_bytes = kTokens * 16384,
                .compute_ns = kTokens * 27250,
                .bytes_per_second = 12.5e9};
  EXPECT_EQ(*fewest_resident(load), 12u);
  load.bytes_per_second = 50e9;
  EXPECT_EQ(*fewest_resident(load), 0u);
  load.bytes_per_second = 0;
  EXPECT_EQ(*fewest_resident(load), 32u);
}

TEST(ResidentLayers, AreTheFewestWhoseCopiesAreHidden) {
  for (std::uint64_t layers = 1; layers <= 20; ++layers) {
    for (std::uint64_t ms = 0; ms <= 30; ++ms) {
      // A layer takes 1 ms.
      const CopyLoad load{.layers = layers,
                          .layer_bytes = 1000,
                          .compute_ns = ms * 1000000,
                          .bytes_per_second = 1e6};
      const std::uint64_t resident = *fewest_resident(load);
      EXPECT_LE(layers - resident, ms);
      if (resident != 0) {
        EXPECT_GT(layers - (resident - 1), ms);
      }
    }
  }
}

TEST(ResidentLayers, RefuseABandwidthThatIsNone) {
  for (const double bandwidth : {-1.0, std::nan(""), HUGE_VAL}) {
    const auto got = fewest_resident(
        {.layers = 2, .layer_bytes = 1, .compute_ns = 1, .bytes_per_second = bandwidth});
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().code, Code::kInvalidArgument);
    EXPECT_NE(std::string(got.error().message).find("bytes_per_second"), std::string::npos);
  }
  EXPECT_FALSE(fewest_resident({}));
}

}  // namespace
}  // namespace cachalot::tier::layerwise
