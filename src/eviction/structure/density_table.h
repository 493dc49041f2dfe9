// What a leaf promises, learned from the past of its class: the best rate of uses per time waited.
//
// Samples are counted by class and by age, the time since their last use, whenever one is used
// again or lost from sight; those still waiting are told when the table is learned anew. From these
// counts comes the chance of a use at each age, given none before; what was lost or waits has left
// the risk half way through its bin (Kaplan and Meier, 1958, with the actuaries' half). From the
// chances comes the density of (class, age): over all times one might go on waiting, the highest
// ratio of expected uses to expected time waited. That is the index by which one arm of many is
// chosen (Gittins, 1979).
//
// Ages are binned two to an octave. Counts are halved as they grow, so that what is older fades.
//
// @source the rate of hits per room and time as the rank: Beckmann, Chen, Cidon, LHD, NSDI 2018;
//         differs: exact over all horizons, classes from the tree of prefixes
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace cachalot::eviction {

// @threads one at a time
// @cost    count: O(1); learn: 16 classes x 96 bins x 96 horizons at most, about 50 us
class DensityTable {
 public:
  static constexpr std::uint32_t kClasses = 16;
  static constexpr std::uint32_t kBins = 96;  // ages below 2^48

  using Counts = std::array<std::array<float, kBins>, kClasses>;

  // Ages 0 and 1 have their own bins, then two to an octave.
  static std::uint32_t bin(std::uint64_t age) {
    const auto width = static_cast<std::uint32_t>(std::bit_width(age));
    if (width < 2) return width;
    const std::uint32_t bin = 2 * width - 2 + static_cast<std::uint32_t>(age >> (width - 2) & 1);
    return bin < kBins ? bin : kBins - 1;
  }
  // The least age in it.
  static double bin_start(std::uint32_t bin);

  void count_use(std::uint32_t cls, std::uint64_t age) { used_[cls][bin(age)] += 1; }
  void count_loss(std::uint32_t cls, std::uint64_t age) { lost_[cls][bin(age)] += 1; }

  // `waiting`: the samples in sight by class and present age; no age is above `oldest`.
  void learn(const Counts& waiting, std::uint64_t oldest);

  // The least of all classes.
  float lowest(std::uint32_t bin) const { return lowest_[bin]; }
  // Of a leaf whose age is in `bin`; 0 before learn().
  float density(std::uint32_t cls, std::uint32_t bin) const { return density_[cls][bin]; }

 private:
  // Halved at this many: 1,024 a class, each rate then good to a few percent.
  static constexpr float kMaxCounts = 16384;

  Counts used_{};
  Counts lost_{};
  Counts density_{};
  std::array<float, kBins> lowest_{};
};

}  // namespace cachalot::eviction
