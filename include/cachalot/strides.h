// Strides in bytes: describe a paged cache that no named layout fits.
#pragma once

#include <cstdint>

namespace cachalot {

// Where one part of a cache lies: keys or values, or a latent or its rope part.
// What one head keeps of one token is contiguous. For layer l, page p, head h (0 in a latent) and token t of the
// page it starts at
//   tensors[tensor + l * layer_tensors] + offset + l * layer + p * page + h * head + t * token
// If each layer has its own tensor, `layer` is 0. If all layers lie in one tensor, layer_tensors is 0.
struct PartStrides {
  std::uint32_t tensor = 0;         // of layer 0
  std::uint32_t layer_tensors = 0;  // tensors from one layer to the next
  std::uint64_t offset = 0;         // of layer 0, page 0, head 0, token 0 in its tensor
  std::uint64_t layer = 0;
  std::uint64_t page = 0;
  std::uint64_t head = 0;
  std::uint64_t token = 0;

  bool operator==(const PartStrides&) const = default;
};

}  // namespace cachalot
