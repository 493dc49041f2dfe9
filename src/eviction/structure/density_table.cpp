#include "eviction/structure/density_table.h"

#include <algorithm>

namespace cachalot::eviction {

double DensityTable::bin_start(std::uint32_t bin) {
  if (bin < 2) return bin;
  return static_cast<double>(std::uint64_t{2 + (bin & 1)} << (bin / 2 - 1));
}

void DensityTable::learn(const Counts& waiting, std::uint64_t oldest) {
  const std::uint32_t bins = std::min(bin(oldest) + 1, kBins - 1);
  float counts = 0;
  for (std::uint32_t c = 0; c < kClasses; ++c) {
    double at_risk = 0;
    for (std::uint32_t b = 0; b < bins; ++b) {
      counts += used_[c][b] + lost_[c][b];
      at_risk += used_[c][b] + lost_[c][b] + waiting[c][b];
    }
    std::array<double, kBins> chance{};  // of a use at this age, if there was none before
    for (std::uint32_t b = 0; b < bins; ++b) {
      const double unseen = lost_[c][b] + waiting[c][b];
      const double risk = at_risk - unseen / 2;
      if (risk > 0) chance[b] = std::min(1.0, used_[c][b] / risk);
      at_risk -= used_[c][b] + unseen;
    }
    for (std::uint32_t b = 0; b < kBins; ++b) {
      double best = 0, alive = 1, uses = 0, time = 0;
      for (std::uint32_t k = b; k < bins && alive > 0; ++k) {
        time += alive * (1 - chance[k] / 2) * (bin_start(k + 1) - bin_start(k));
        uses += alive * chance[k];
        alive *= 1 - chance[k];
        best = std::max(best, uses / time);
      }
      density_[c][b] = static_cast<float>(best);
    }
  }
  for (std::uint32_t b = 0; b < kBins; ++b) {
    lowest_[b] = density_[0][b];
    for (const auto& row : density_) lowest_[b] = std::min(lowest_[b], row[b]);
  }
  if (counts <= kMaxCounts) return;
  for (Counts* const table : {&used_, &lost_}) {
    for (auto& row : *table) {
      for (float& count : row) count /= 2;
    }
  }
}

}  // namespace cachalot::eviction
