#include "paged_cache.h"

#include <cachalot/tensor_shape.h>

#include <optional>
#include <string>

#include "client_object.h"
#include "collected.h"
#include "error.h"
#include "module.h"
#include "numbers.h"
#include "strides.h"

namespace cachalot::python {
namespace {

// Whether numbers of the dtype may be called this. Integers stand for the bytes of any number: NumPy has no bfloat16,
// and engines keep 8-bit floats as uint8.
bool may_hold(const Memory& memory, DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return memory.kind != 'f';
    case DType::kI8:
      return memory.kind != 'f' && memory.kind != 'b';
    case DType::kF8:
      return memory.kind != 'i' && memory.kind != 'b';
    default:
      return memory.kind != 'b';
  }
}

// One tensor that is given, and what the cache needs there.
class GivenTensor {
 public:
  // @param wanted  null: the caller gives strides, or the layout has no such tensor: only the extent counts
  GivenTensor(std::size_t index, DType dtype, const TensorShape* wanted, bool is_strided)
      : name_("tensor " + std::to_string(index)),
        dtype_(dtype),
        wanted_(wanted),
        is_strided_(is_strided) {}

  Memory take(nb::handle object, std::optional<int> device) const {
    Memory memory = device ? Memory::on_gpu(object, name_, *device) : Memory::of(object, name_);
    if (memory.is_bare) return memory;
    const std::string is = memory.dtype();
    if (memory.is_record) {
      unfit(memory, std::string("has records of several fields, expected numbers (") +
                        dtype_name(dtype_) + ")");
    }
    if (memory.item_bytes != dtype_bytes(dtype_)) {
      unfit(memory, "has numbers of " + std::to_string(memory.item_bytes) + " bytes (" + is +
                        "), expected " + std::to_string(dtype_bytes(dtype_)) + " (" +
                        dtype_name(dtype_) + ")");
    }
    if (memory.is_swapped)
      unfit(memory, "has numbers of " + is + ", expected them in this machine's byte order");
    if (!may_hold(memory, dtype_)) {
      unfit(memory, "has numbers of " + is + ", expected " + dtype_name(dtype_) + ", or uint" +
                        std::to_string(8 * dtype_bytes(dtype_)) + " for its bytes");
    }
    if (!memory.is_contiguous && !is_strided_)
      unfit(memory, "is not contiguous, expected C order without gaps");
    if (!memory.extent_bytes()) {
      unfit(memory,
            "has negative strides, or ends after the last address; expected elements that follow "
            "the first");
    }
    if (!memory.is_writable)
      unfit(memory, "is read-only, expected memory that blocks can be loaded into");
    // That it is empty, the library says.
    if (wanted_ != nullptr && memory.items() != 0 && !wanted_->accepts(memory.shape))
      unfit(memory, "does not have the axes of its layout");
    return memory;
  }

 private:
  [[noreturn]] void unfit(const Memory& memory, const std::string& why) const {
    std::string message = name_ + ": " + why + ": is " + memory.text();
    if (wanted_ != nullptr) {
      message += ", expected for " + wanted_->holds + " " + wanted_->text();
    }
    refuse("%s", message.c_str());
  }

  const std::string name_;
  const DType dtype_;
  const TensorShape* const wanted_;
  const bool is_strided_;
};

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
  const std::vector<TensorShape> shapes = value_of(tensor_shapes(cache, geometry));
  const auto take = [&](nb::handle tensor) {
    const TensorShape* const wanted = held.size() < shapes.size() ? &shapes[held.size()] : nullptr;
    const GivenTensor given_tensor(held.size(), geometry.dtype, wanted, cache.strides.has_value());
    held.push_back(given_tensor.take(tensor, cache.cuda_device));
  };
  // An array is one tensor, not a sequence of its rows.
  if (PyObject_CheckBuffer(given.tensors.ptr()) || nb::hasattr(given.tensors, "__dlpack__") ||
      nb::hasattr(given.tensors, "__cuda_array_interface__")) {
    take(given.tensors);
  } else {
    for (const nb::handle tensor : given.tensors) take(tensor);
  }
  for (const Memory& tensor : held) cache.tensors.push_back({tensor.data, *tensor.extent_bytes()});
  return cache;
}

namespace {

// The memory of a cache for a caller that gives its addresses to libcachalot.so itself: cachalot.tier.
class CacheMemory {
 public:
  CacheMemory(nb::handle layout, const nb::object& tensors, nb::handle pages,
              nb::handle page_tokens, nb::handle geometry, nb::handle device) {
    const nb::none none;
    cache_ = paged_cache_of({layout, tensors, pages, page_tokens, nb::int_(0), none, device, none},
                            instance_of<KvGeometry>(geometry, "geometry"), held_);
  }
  CacheMemory(const CacheMemory&) = delete;
  CacheMemory& operator=(const CacheMemory&) = delete;
  nb::list buffers() const {
    nb::list all;
    for (const Buffer& tensor : cache_.tensors)
      all.append(nb::make_tuple(reinterpret_cast<std::uintptr_t>(tensor.data), tensor.bytes));
    return all;
  }
  int traverse(visitproc visit, void* arg) const {
    for (const Memory& tensor : held_) {
      if (const int stop = tensor.traverse(visit, arg); stop != 0) return stop;
    }
    return 0;
  }

 private:
  std::vector<Memory> held_;
  PagedCache cache_;
};

}  // namespace

void add_cache_memory(nb::module_& module) {
  nb::class_<CacheMemory>(module, "_CacheMemory", nb::type_slots(kTraverse<CacheMemory>),
                          "The tensors of a cache, checked as by Client.register_cache() and kept.")
      .def(
          nb::init<nb::handle, const nb::object&, nb::handle, nb::handle, nb::handle, nb::handle>(),
          nb::arg("layout"), nb::arg("tensors"), nb::arg("pages"), nb::arg("page_tokens"),
          nb::arg("geometry"), nb::arg("device").none())
      .def("buffers", &CacheMemory::buffers, nb::sig("def buffers(self) -> list[tuple[int, int]]"),
           "Returns the address and the bytes of each tensor.");
}

}  // namespace cachalot::python
