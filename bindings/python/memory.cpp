#include "memory.h"

#include <bit>
#include <cstring>

#include "error.h"

namespace cachalot::python {
namespace {

constexpr int kCpu = 1, kPinnedCpu = 3;  // of DLPack

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
  const nb::object device = object.attr("__dlpack_device__")();
  const int device_type = nb::cast<int>(nb::int_(device[0]));
  if (device_type != kCpu && device_type != kPinnedCpu) {
    refuse("%.40s: lies on %.60s (DLPack device type %d), expected memory of the CPU", name.c_str(),
           nb::hasattr(object, "device") ? nb::str(object.attr("device")).c_str() : "a device",
           device_type);
  }
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
  } else if (PyErr_Clear();
             nb::hasattr(object, "__dlpack__") && nb::hasattr(object, "__dlpack_device__")) {
    memory.take_dlpack(object, name);
  } else {
    refuse("%.40s: %.60s has no memory to share, expected the buffer protocol or DLPack",
           name.c_str(), class_name(object).c_str());
  }
  memory.is_contiguous = is_dense(memory.shape, memory.strides, memory.item_bytes);
  return memory;
}

}  // namespace cachalot::python
