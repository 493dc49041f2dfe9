// One request's KV, layer by layer: a vTensor for each layer, and the rows that host memory has of it.
//
//   rows        0 ............ host_rows ......... rows ...... target
//   device      |<---------- valid if is_loaded ------>|<- memory ->|
//   host        |<-- valid -->|
//
// 1. host_rows <= rows <= target. Rows from host_rows on exist on the device only, so is_loaded is true if there are any.
// 2. Host memory is there for `target` rows of each layer that may be offloaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "vtensor/vtensor.h"

namespace cachalot::tier::layerwise {

struct LayerRows {
  vtensor::VTensor* vtensor = nullptr;
  std::uint64_t rows = 0;
  std::uint64_t host_rows = 0;
  bool is_loaded = true;
  std::vector<std::vector<std::byte*>> host;  // chunks of each plane
};

class LayerwiseRequest {
 public:
  std::uint64_t max_tokens() const { return max_tokens_; }
  // Of the step in flight, or of the last one.
  std::uint64_t tokens() const { return target_; }
  // Where the layer's rows lie; constant.
  device_memory::Address base(std::uint64_t layer) const { return layers_[layer].vtensor->base(); }

 private:
  friend class LayerwiseKv;

  std::uint64_t max_tokens_ = 0;
  std::uint64_t target_ = 0;
  std::uint64_t before_ = 0;  // of the step
  std::vector<LayerRows> layers_;
};

}  // namespace cachalot::tier::layerwise
