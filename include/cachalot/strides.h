// Strides in bytes, for a paged cache that no named layout describes.
#pragma once

#include <cstdint>

namespace cachalot {

// Where one part of a cache lies: the keys or the values, or a latent or its rope part.
// What one head keeps of one token in this part begins at
//   tensors[tensor + l * layer_tensors] + offset + l * layer + p * page + h * head + t * token
// for layer l, page p, head h (0 in a latent) and token t of its page, and is contiguous.
// If each layer has a tensor, `layer` is 0; if all layers lie in one tensor, layer_tensors is 0.
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
