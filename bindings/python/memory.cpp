#include "memory.h"

#include <bit>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "error.h"
#include "numbers.h"

namespace cachalot::python {
namespace {

constexpr int kCpu = 1, kCuda = 2, kPinnedCpu = 3, kManagedCuda = 13;  // of DLPack

constexpr bool kIsLittleEndian = std::endian::native == std::endian::little;

// By the mark before struct's format characters.
bool is_other_order(const char* format) {
  if (format == nullptr) return false;
  return kIsLittleEndian ? *format == '>' || *format == '!' : *format == '<';
}

// Of struct's format characters, whatever the byte order.
char kind_of(const char* format) {
  if (format == nullptr) return 'u';
  if (*format != '\0' && std::strchr("@=<>!", *format) != nullptr) ++format;
  if (*format == '\0' || format[1] != '\0') return '?';
  if (std::strchr("BHILQN", *format) != nullptr) return 'u';
  if (std::strchr("bhilqn", *format) != nullptr) return 'i';
  if (std::strchr("efd", *format) != nullptr) return 'f';
  return '?';
}

bool is_dense(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides,
              std::uint64_t item_bytes) {
  std::int64_t dense = static_cast<std::int64_t>(item_bytes);
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 0) return true;
    if (shape[i] != 1 && strides[i] != dense) return false;
    dense *= shape[i];
  }
  return true;
}

std::vector<std::int64_t> dense_strides(const std::vector<std::int64_t>& shape,
                                        std::uint64_t item_bytes) {
  std::vector<std::int64_t> strides(shape.size());
  auto step = static_cast<std::int64_t>(item_bytes);
  for (std::size_t i = shape.size(); i-- > 0; step *= shape[i]) strides[i] = step;
  return strides;
}

bool has_dlpack(nb::handle object) {
  return nb::hasattr(object, "__dlpack__") && nb::hasattr(object, "__dlpack_device__");
}
// Type and number.
std::pair<int, int> dlpack_device(nb::handle object) {
  const nb::object device = object.attr("__dlpack_device__")();
  return {nb::cast<int>(nb::int_(device[0])), nb::cast<int>(nb::int_(device[1]))};
}
std::uintptr_t address_of(nb::handle number, const std::string& name) {
  return whole_number(number, (name + ": its address").c_str(), UINTPTR_MAX);
}

// In the object's own word.
std::string place_of(nb::handle object) {
  return nb::hasattr(object, "device") ? nb::str(object.attr("device")).c_str() : "a device";
}

std::string class_name(nb::handle object) {
  return nb::type_name(object.type()).c_str();
}

}  // namespace

std::uint64_t Memory::items() const {
  std::uint64_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::uint64_t>(size);
  return count;
}

std::string Memory::dtype() const {
  if (kind == '?') return "another type";
  const std::string order = !is_swapped ? "" : kIsLittleEndian ? "big-endian " : "little-endian ";
  const char* const word = kind == 'u' ? "uint" : kind == 'i' ? "int" : "float";
  return order + word + std::to_string(item_bytes * 8);
}

std::string Memory::text() const {
  std::string sizes;
  for (const std::int64_t size : shape) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  return "an array (" + sizes + (shape.size() == 1 ? ",) of " : ") of ") + dtype() +
         (is_contiguous ? "" : ", not contiguous");
}

void Memory::take_buffer(std::unique_ptr<Py_buffer, ReleaseBuffer> view) {
  data = view->buf;
  item_bytes = static_cast<std::uint64_t>(view->itemsize);
  kind = kind_of(view->format);
  is_swapped = item_bytes > 1 && is_other_order(view->format);
  is_record = view->format != nullptr && std::strchr(view->format, '{') != nullptr;
  is_writable = !view->readonly;
  shape.assign(view->shape, view->shape + view->ndim);
  strides.assign(view->strides, view->strides + view->ndim);
  buffer_ = std::move(view);
}

void Memory::take_dlpack(nb::handle object, const std::string& name) {
  nb::ndarray<nb::ro> array;
  if (!nb::try_cast(object, array)) {
    refuse("%.40s: %.60s does not hand out its memory by DLPack", name.c_str(),
           class_name(object).c_str());
  }
  data = const_cast<void*>(static_cast<const void*>(array.data()));
  item_bytes = array.itemsize();
  switch (static_cast<nb::dlpack::dtype_code>(array.dtype().code)) {
    case nb::dlpack::dtype_code::UInt:
      kind = 'u';
      break;
    case nb::dlpack::dtype_code::Int:
      kind = 'i';
      break;
    case nb::dlpack::dtype_code::Float:
    case nb::dlpack::dtype_code::Bfloat:
      kind = 'f';
      break;
    default:
      break;
  }
  nb::ndarray<> writable;
  is_writable = nb::try_cast(object, writable);
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    shape.push_back(array.shape_ptr()[i]);
    strides.push_back(array.stride_ptr()[i] * static_cast<std::int64_t>(item_bytes));
  }
  array_ = std::move(array);
}

Memory Memory::of(nb::handle object, const std::string& name) {
  Memory memory;
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_CheckBuffer(object.ptr()) &&
      PyObject_GetBuffer(object.ptr(), view.get(), PyBUF_RECORDS_RO) == 0) {
    memory.take_buffer(std::unique_ptr<Py_buffer, ReleaseBuffer>(view.release()));
  } else if (PyErr_Clear(); has_dlpack(object)) {
    const auto [type, device] = dlpack_device(object);
    if (type != kCpu && type != kPinnedCpu) {
      refuse("%.40s: lies on %.60s (DLPack device type %d), expected memory of the CPU",
             name.c_str(), place_of(object).c_str(), type);
    }
    memory.take_dlpack(object, name);
  } else {
    refuse("%.40s: %.60s has no memory to share, expected the buffer protocol or DLPack",
           name.c_str(), class_name(object).c_str());
  }
  memory.is_contiguous = is_dense(memory.shape, memory.strides, memory.item_bytes);
  return memory;
}

// What torch, CuPy and Numba show of a GPU's memory: its address, shape, strides in bytes or None, and
// NumPy's word for its numbers.
void Memory::take_cuda_array(nb::handle object, const std::string& name) {
  const nb::object array = object.attr("__cuda_array_interface__");
  const nb::object at = array["data"];
  const std::string type = python::text(array["typestr"], (name + ": its typestr").c_str());
  if (type.size() < 3) {
    refuse("%.40s: its numbers are '%.20s', expected a type as NumPy writes it", name.c_str(),
           type.c_str());
  }
  data = reinterpret_cast<void*>(address_of(at[0], name));
  is_writable = PyObject_IsTrue(nb::object(at[1]).ptr()) == 0;
  kind = std::strchr("uif", type[1]) != nullptr ? type[1] : '?';
  item_bytes = std::strtoull(type.c_str() + 2, nullptr, 10);
  is_swapped = item_bytes > 1 && is_other_order(type.c_str());
  is_record = type[1] == 'V';
  const auto sizes_of = [&](nb::handle sizes, const char* what) {
    std::vector<std::int64_t> all;
    for (const nb::handle size : sizes) {
      all.push_back(
          static_cast<std::int64_t>(whole_number(size, (name + what).c_str(), INT64_MAX)));
    }
    return all;
  };
  shape = sizes_of(array["shape"], ": its shape");
  const nb::object steps = array.attr("get")("strides");
  strides = steps.is_none() ? dense_strides(shape, item_bytes) : sizes_of(steps, ": its strides");
  if (strides.size() != shape.size()) {
    refuse("%.40s: has %zu strides, expected as many as the %zu dimensions", name.c_str(),
           strides.size(), shape.size());
  }
  owner_ = nb::borrow(object);
}

Memory Memory::on_gpu(nb::handle object, const std::string& name, int device) {
  Memory memory;
  if (PyTuple_Check(object.ptr()) && PyTuple_GET_SIZE(object.ptr()) == 2) {
    memory.data = reinterpret_cast<void*>(address_of(object[0], name));
    memory.shape = {static_cast<std::int64_t>(
        whole_number(object[1], (name + ": its bytes").c_str(), INT64_MAX))};
    memory.item_bytes = 1;
    memory.is_bare = memory.is_writable = memory.is_contiguous = true;
    return memory;
  }
  if (has_dlpack(object)) {
    const auto [type, number] = dlpack_device(object);
    if ((type != kCuda && type != kManagedCuda) || number != device) {
      refuse("%.40s: lies on %.60s (DLPack device type %d, number %d), expected CUDA device %d",
             name.c_str(), place_of(object).c_str(), type, number, device);
    }
    memory.take_dlpack(object, name);
  } else if (nb::hasattr(object, "__cuda_array_interface__")) {
    memory.take_cuda_array(object, name);
  } else {
    refuse(
        "%.40s: %.60s has no memory of a GPU, expected DLPack, __cuda_array_interface__ or a "
        "pair (address, bytes)",
        name.c_str(), class_name(object).c_str());
  }
  memory.is_contiguous = is_dense(memory.shape, memory.strides, memory.item_bytes);
  return memory;
}

}  // namespace cachalot::python
