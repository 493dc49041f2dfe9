// The shapes that an engine's tensors have in a named layout: to allocate them, or to check those that an engine has.
//
// PagedCache has addresses and bytes only. A tensor whose axes are in another order than the layout's has as many bytes,
// and its blocks would be wrong for all other engines: an engine that knows its shapes checks them first.
//
//   for (const TensorShape& tensor : *tensor_shapes(cache, geometry))
//     if (!tensor.accepts(shape)) std::puts(tensor.text().c_str());  // "(2, 4096, 16, 8, 128): keys/values, …"
#pragma once

#include <cachalot/client.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot {

struct TensorAxis {
  std::string_view name;
  std::uint64_t size = 0;
};

// One tensor of a cache, as a dense array in C order of numbers of the dtype.
struct TensorShape {
  std::string holds;             // "layer 3", "values of layer 3", "all layers"
  std::vector<TensorAxis> axes;  // slowest first

  // Whether an array of this shape can be the tensor. Neighbouring axes may be one: [slots, …] for [pages, tokens, …].
  // Axes of size 1 do not count. A shape of one dimension has no order: only its size counts. Axes of equal size cannot
  // be told apart.
  bool accepts(std::span<const std::int64_t> shape) const;
  // "(2, 16, 4): keys/values, pages, tokens"
  std::string text() const;
};

// The tensors of a cache in a named layout, in the layout's order. Only the sizes of `cache` count, not its tensors.
// None if it has strides, or a page stride that leaves gaps: then no shape is known.
// @errors kInvalidArgument, kUnsupported: as Client::register_cache, of the layout and the sizes
Result<std::vector<TensorShape>> tensor_shapes(const PagedCache& cache, const KvGeometry& geometry);

// What the names of layouts mean: one line for each, after a line that explains the letters of the axes.
std::string layout_legend();

}  // namespace cachalot
