#include "paged_cache.h"

#include <cinttypes>
#include <optional>
#include <string>

#include "client_object.h"
#include "error.h"
#include "numbers.h"
#include "strides.h"

namespace cachalot::python {
namespace {

// Checks that a cache of this geometry can be in the tensor.
// @param is_strided  the caller gives strides: of the tensor's own only the extent counts
Memory tensor_of(nb::handle object, std::size_t index, const KvGeometry& geometry,
                 std::optional<int> device, bool is_strided) {
  const std::string name = "tensor " + std::to_string(index);
  Memory memory = device ? Memory::on_gpu(object, name, *device) : Memory::of(object, name);
  if (memory.is_bare) return memory;
  if (memory.item_bytes != dtype_bytes(geometry.dtype)) {
    refuse("%s: has numbers of %" PRIu64 " bytes (%s), expected %" PRIu64 " (%s)", name.c_str(),
           memory.item_bytes, memory.dtype().c_str(), dtype_bytes(geometry.dtype),
           dtype_name(geometry.dtype));
  }
  if (memory.is_record) {
    refuse("%s: has records of several fields, expected numbers (%s)", name.c_str(),
           dtype_name(geometry.dtype));
  }
  if (memory.is_swapped) {
    refuse("%s: has numbers of %s, expected them in this machine's byte order", name.c_str(),
           memory.dtype().c_str());
  }
  if (!memory.is_contiguous && !is_strided)
    refuse("%s: is not contiguous, expected C order without gaps", name.c_str());
  if (!memory.extent_bytes()) {
    refuse(
        "%s: has negative strides, or ends after the last address; expected elements that follow "
        "the first",
        name.c_str());
  }
  if (!memory.is_writable)
    refuse("%s: is read-only, expected memory that blocks can be loaded into", name.c_str());
  return memory;
}

}  // namespace

PagedCache paged_cache_of(const GivenCache& given, const KvGeometry& geometry,
                          std::vector<Memory>& held) {
  PagedCache cache;
  if (!given.strides.is_none()) cache.strides = strides_of(given.strides);
  if (!cache.strides || !given.layout.is_none()) cache.layout = text(given.layout, "layout");
  cache.pages = number(given.pages, "pages");
  cache.page_tokens = number(given.page_tokens, "page_tokens");
  cache.page_stride_bytes =
      whole_number(given.page_stride_bytes, "page_stride_bytes", ~std::uint64_t{0});
  if (!given.device.is_none()) {
    cache.cuda_device = static_cast<int>(whole_number(given.device, "device", INT32_MAX));
  }
  cache.cuda_stream = stream_of(given.stream).value_or(nullptr);
  if (given.tensors.is_none()) refuse_type(given.tensors, "tensors: ", "an array, or several");
  // An array is one tensor, not a sequence of its rows.
  if (PyObject_CheckBuffer(given.tensors.ptr()) || nb::hasattr(given.tensors, "__dlpack__") ||
      nb::hasattr(given.tensors, "__cuda_array_interface__")) {
    held.push_back(
        tensor_of(given.tensors, 0, geometry, cache.cuda_device, cache.strides.has_value()));
  } else {
    for (const nb::handle tensor : given.tensors) {
      held.push_back(
          tensor_of(tensor, held.size(), geometry, cache.cuda_device, cache.strides.has_value()));
    }
  }
  for (const Memory& tensor : held) cache.tensors.push_back({tensor.data, *tensor.extent_bytes()});
  return cache;
}

}  // namespace cachalot::python
