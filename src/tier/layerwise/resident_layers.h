// Which layers keep their KV in device memory, and how many of them it takes.
//
// @source  LayerKV (arXiv 2410.00428): interleaved layers; its equations 3 and 4 as reconstructed from notes on
//          the paper, so the symbols may differ
#pragma once

#include <cachalot/result.h>

#include <cstdint>

namespace cachalot::tier::layerwise {

// Places for offloaded layers: one is computed while the other one is offloaded or loaded.
inline constexpr std::uint64_t kStagingLayers = 2;

// Whether this layer is one of `resident` layers that are spread evenly over `layers`: of 8 layers and 4 resident ones
// 1, 3, 5 and 7. A model with no more than kStagingLayers other layers keeps all.
bool is_resident(std::uint64_t layer, std::uint64_t layers, std::uint64_t resident);

// The most layers that have device memory simultaneously: resident + kStagingLayers, at most all.
std::uint64_t most_on_device(std::uint64_t layers, std::uint64_t resident);

// What a computation was measured to take, and the copies that are to be hidden behind it.
struct CopyLoad {
  std::uint64_t layers = 0;
  // of one layer, of all requests of the step: offloaded by a prefill, loaded by a decode step
  std::uint64_t layer_bytes = 0;
  // of the step, without waits for copies
  std::uint64_t compute_ns = 0;
  // measured, in the direction of the copies; 0: copies are impossible
  double bytes_per_second = 0;
};

// The fewest resident layers with which the copies of the other layers take no longer than the computation:
// max(0, layers - floor(compute time * bandwidth / layer_bytes)). Of a prefill this is x_min of equation 4; of a decode
// step, the fewest layers whose load does not delay it.
// @errors kInvalidArgument: no layers, or a bandwidth that is negative or not a number
Result<std::uint64_t> fewest_resident(const CopyLoad& load);

}  // namespace cachalot::tier::layerwise
