#include "tier/layerwise/resident_layers.h"

#include <algorithm>
#include <cmath>

namespace cachalot::tier::layerwise {

std::uint64_t most_on_device(std::uint64_t layers, std::uint64_t resident) {
  return resident >= layers ? layers : std::min(layers, resident + kStagingLayers);
}

bool is_resident(std::uint64_t layer, std::uint64_t layers, std::uint64_t resident) {
  if (most_on_device(layers, resident) == layers) return true;
  return (layer + 1) * resident / layers > layer * resident / layers;
}

Result<std::uint64_t> fewest_resident(const CopyLoad& load) {
  if (load.layers == 0) {
    return Error::make(Code::kInvalidArgument, "layers: 0, expected at least 1");
  }
  if (!(load.bytes_per_second >= 0) || std::isinf(load.bytes_per_second)) {
    return Error::make(Code::kInvalidArgument,
                       "bytes_per_second: %g, expected a finite number of at least 0",
                       load.bytes_per_second);
  }
  if (load.layer_bytes == 0) return std::uint64_t{0};
  const double hidden = std::floor(static_cast<double>(load.compute_ns) * 1e-9 *
                                   load.bytes_per_second / static_cast<double>(load.layer_bytes));
  if (hidden >= static_cast<double>(load.layers)) return std::uint64_t{0};
  return load.layers - static_cast<std::uint64_t>(hidden);
}

}  // namespace cachalot::tier::layerwise
