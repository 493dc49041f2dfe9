#include "memory.h"

#include <bit>
#include <charconv>
#include <cinttypes>
#include <cstring>
#include <string_view>
#include <utility>

#include "error.h"
#include "numbers.h"
#include "sequence.h"

namespace cachalot::python {
namespace {

constexpr int kCpu = 1, kCuda = 2, kPinnedCpu = 3, kManagedCuda = 13;  // DLPack's device types
constexpr int kFirstFloat8 = 7, kLastFloat8 = 14;                      // DLPack's numbers of 8 bits

constexpr bool kIsLittleEndian = std::endian::native == std::endian::little;

// The byte order, by the prefix of struct's format.
bool is_other_order(const char* format) {
  if (format == nullptr) return false;
  return kIsLittleEndian ? *format == '>' || *format == '!' : *format == '<';
}

// The type, by struct's format characters without the prefix.
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

// The shape; one dimension if the exporter gives none.
std::vector<std::int64_t> shape_of(const Py_buffer& view) {
  if (view.ndim == 0) return {};
  if (view.shape != nullptr) return {view.shape, view.shape + view.ndim};
  return {view.itemsize > 0 ? view.len / view.itemsize : 0};
}

// Parses NumPy's typestr of numbers: "<f2". @return false: not a number type
struct NumberType {
  char order = '|', kind = '?';
  std::uint64_t bytes = 0;
};
bool parse_type(const std::string& type, NumberType& parsed) {
  constexpr std::uint64_t kMostBytes = 1 << 16;
  if (type.size() < 3) return false;
  parsed.order = type[0];
  parsed.kind = type[1];
  const char* const end = type.data() + type.size();
  const auto [last, error] = std::from_chars(type.data() + 2, end, parsed.bytes);
  return error == std::errc() && last == end && parsed.bytes >= 1 && parsed.bytes <= kMostBytes;
}

// Reads an entry of a dictionary made by another library.
nb::object entry_of(nb::handle array, const char* key, const std::string& name) {
  PyObject* const found = PyDict_GetItemString(array.ptr(), key);
  if (found == nullptr)
    refuse("%.40s: its __cuda_array_interface__ has no '%s'", name.c_str(), key);
  return nb::borrow(found);
}

bool is_pair(nb::handle object) {
  return PyTuple_Check(object.ptr()) && PyTuple_Size(object.ptr()) == 2;
}

// An int, also negative. Raises InvalidArgumentError: more than 63 bits; TypeError: no int.
std::int64_t signed_number(nb::handle object, const std::string& name) {
  int overflow = 0;
  const nb::object number = nb::steal(PyNumber_Index(object.ptr()));
  if (!number.is_valid()) {
    clear_type_error();
    refuse_type(object, name + ": ", "an int");
  }
  const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow == 0) return value;
  refuse("%.60s: %.40s is beyond 64 bits", name.c_str(), nb::str(number).c_str());
}

std::vector<std::int64_t> numbers_of(nb::handle tuple, const std::string& name) {
  const nb::object items = nb::steal(PySequence_Fast(tuple.ptr(), ""));
  if (!items.is_valid()) {
    clear_type_error();
    refuse_type(tuple, name + ": ", "a tuple of ints");
  }
  std::vector<std::int64_t> all;
  for (Py_ssize_t i = 0; i < fast_size(items); ++i) {
    const nb::object item = nb::borrow(fast_item(items, i));  // __index__ may do anything
    all.push_back(signed_number(item, name));
  }
  return all;
}

bool has_dlpack(nb::handle object) {
  return nb::hasattr(object, "__dlpack__") && nb::hasattr(object, "__dlpack_device__");
}
// Device type and number.
std::pair<std::int64_t, std::int64_t> dlpack_device(nb::handle object, const std::string& name) {
  const nb::object device = object.attr("__dlpack_device__")();
  if (!is_pair(device)) refuse_type(device, name + ": its DLPack device: ", "a pair of ints");
  const std::string what = name + ": its DLPack device";
  return {signed_number(device[0], what), signed_number(device[1], what)};
}
std::uintptr_t address_of(nb::handle number, const std::string& name) {
  return whole_number(number, (name + ": its address").c_str(), UINTPTR_MAX);
}

// As the object itself names it.
std::string place_of(nb::handle object) {
  return nb::hasattr(object, "device") ? nb::str(object.attr("device")).c_str() : "a device";
}

std::string class_name(nb::handle object) {
  return nb::type_name(object.type()).c_str();
}

// Why an object with the buffer protocol refused access, for example a released memoryview.
std::string buffer_error() {
  const nb::python_error error;
  if (!error.matches(PyExc_BufferError) && !error.matches(PyExc_ValueError) &&
      !error.matches(PyExc_TypeError)) {
    throw error;
  }
  return nb::str(error.value()).c_str();
}

}  // namespace

std::uint64_t Memory::items() const {
  std::uint64_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::uint64_t>(size);
  return count;
}

std::optional<std::uint64_t> Memory::extent_bytes() const {
  if (is_contiguous) return bytes();
  const auto first = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data));
  auto end = static_cast<std::int64_t>(item_bytes);
  for (std::size_t i = 0; i < shape.size(); ++i) {
    std::int64_t reach = 0;
    if (shape[i] > 1 &&
        (strides[i] < 0 || __builtin_mul_overflow(strides[i], shape[i] - 1, &reach) ||
         __builtin_add_overflow(end, reach, &end))) {
      return std::nullopt;
    }
  }
  std::int64_t last = 0;
  if (__builtin_add_overflow(first, end, &last)) return std::nullopt;
  return static_cast<std::uint64_t>(end);
}

// Skips sizes of 0, so that the other sizes of an empty array are also checked.
void Memory::check_sizes(const std::string& name) const {
  auto bytes = static_cast<std::int64_t>(item_bytes);
  bool is_empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0)
      refuse("%.40s: its shape has a size of %" PRId64 ", expected 0 or more", name.c_str(), size);
    is_empty = is_empty || size == 0;
    if (size != 0 && __builtin_mul_overflow(bytes, size, &bytes)) {
      refuse("%.40s: %.200s has more bytes than there are addresses", name.c_str(), text().c_str());
    }
  }
  const auto first = reinterpret_cast<std::uintptr_t>(data);
  if (!is_empty && first + static_cast<std::uint64_t>(bytes) < first) {
    refuse("%.40s: %" PRId64 " bytes at 0x%" PRIxPTR " end after the last address", name.c_str(),
           bytes, first);
  }
}

std::string Memory::dtype() const {
  if (kind == '?') return "another type";
  const std::string order = !is_swapped ? "" : kIsLittleEndian ? "big-endian " : "little-endian ";
  const char* const word = kind == 'u'   ? "uint"
                           : kind == 'i' ? "int"
                           : kind == 'b' ? "bfloat"
                                         : "float";
  return order + word + std::to_string(item_bytes * 8);
}

std::string Memory::text() const {
  std::string sizes;
  for (const std::int64_t size : shape) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  return "an array (" + sizes + (shape.size() == 1 ? ",) of " : ") of ") + dtype() +
         (is_contiguous ? "" : ", not contiguous");
}

int Memory::traverse(visitproc visit, void* arg) const {
  if (buffer_ != nullptr) Py_VISIT(buffer_->obj);
  Py_VISIT(owner_.ptr());
  return 0;
}

void Memory::take_buffer(std::unique_ptr<Py_buffer, ReleaseBuffer> view) {
  data = view->buf;
  item_bytes = static_cast<std::uint64_t>(view->itemsize);
  kind = kind_of(view->format);
  is_swapped = item_bytes > 1 && is_other_order(view->format);
  is_record = view->format != nullptr && std::strchr(view->format, '{') != nullptr;
  is_writable = !view->readonly;
  shape = shape_of(*view);
  // ctypes omits them even if they are requested.
  strides = view->strides == nullptr
                ? dense_strides(shape, item_bytes)
                : std::vector<std::int64_t>(view->strides, view->strides + view->ndim);
  buffer_ = std::move(view);
}

void Memory::take_dlpack(nb::handle object, const std::string& name) {
  nb::ndarray<nb::ro> array;
  if (!nb::try_cast(object, array)) {
    refuse("%.40s: %.60s does not export its memory by DLPack", name.c_str(),
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
      kind = 'f';
      break;
    case nb::dlpack::dtype_code::Bfloat:
      kind = 'b';
      break;
    default:
      if (array.dtype().code >= kFirstFloat8 && array.dtype().code <= kLastFloat8) kind = 'f';
      break;
  }
  nb::ndarray<> writable;
  is_writable = nb::try_cast(object, writable);
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    shape.push_back(array.shape_ptr()[i]);
    // A stride beyond all bytes is not that of contiguous memory; nothing else is checked.
    std::int64_t stride = 0;
    if (__builtin_mul_overflow(array.stride_ptr()[i], static_cast<std::int64_t>(item_bytes),
                               &stride))
      stride = INT64_MAX;
    strides.push_back(stride);
  }
  array_ = std::move(array);
}

Memory Memory::of(nb::handle object, const std::string& name) {
  Memory memory;
  std::optional<std::string> why_not;
  if (PyObject_CheckBuffer(object.ptr())) {
    auto view = std::make_unique<Py_buffer>();
    if (PyObject_GetBuffer(object.ptr(), view.get(), PyBUF_RECORDS_RO) == 0) {
      memory.take_buffer(std::unique_ptr<Py_buffer, ReleaseBuffer>(view.release()));
    } else {
      why_not = buffer_error();
    }
  }
  if (memory.buffer_ != nullptr) {
    // The object provides everything needed.
  } else if (has_dlpack(object)) {
    const std::int64_t type = dlpack_device(object, name).first;
    if (type != kCpu && type != kPinnedCpu) {
      refuse("%.40s: lies on %.60s (DLPack device type %" PRId64 "), expected memory of the CPU",
             name.c_str(), place_of(object).c_str(), type);
    }
    memory.take_dlpack(object, name);
  } else if (why_not) {
    refuse("%.40s: %.60s does not export its memory: %.200s", name.c_str(),
           class_name(object).c_str(), why_not->c_str());
  } else {
    refuse_type(object, name + ": ", "memory: the buffer protocol or DLPack");
  }
  memory.check_sizes(name);
  memory.is_contiguous = is_dense(memory.shape, memory.strides, memory.item_bytes);
  return memory;
}

// The interface of torch, CuPy and Numba for GPU memory: address, shape, strides in bytes or None, and
// NumPy's typestr.
void Memory::take_cuda_array(nb::handle object, const std::string& name) {
  const nb::object array = object.attr("__cuda_array_interface__");
  if (!PyDict_Check(array.ptr()))
    refuse_type(array, name + ": its __cuda_array_interface__: ", "a dict");
  const nb::object at = entry_of(array, "data", name);
  if (!is_pair(at))
    refuse_type(at, name + ": its data: ", "a pair (address, whether it is read-only)");
  const std::string type =
      python::text(entry_of(array, "typestr", name), (name + ": its typestr").c_str());
  NumberType numbers;
  if (!parse_type(type, numbers)) {
    refuse("%.40s: its numbers are '%.20s', expected a type as NumPy writes it", name.c_str(),
           type.c_str());
  }
  data = reinterpret_cast<void*>(address_of(at[0], name));
  const int read_only = PyObject_IsTrue(nb::object(at[1]).ptr());
  if (read_only < 0) throw nb::python_error();
  is_writable = read_only == 0;
  kind = std::string_view("uif").find(numbers.kind) != std::string_view::npos ? numbers.kind : '?';
  item_bytes = numbers.bytes;
  is_swapped = item_bytes > 1 && is_other_order(type.c_str());
  is_record = numbers.kind == 'V';
  shape = numbers_of(entry_of(array, "shape", name), name + ": its shape");
  check_sizes(name);
  PyObject* const steps = PyDict_GetItemString(array.ptr(), "strides");
  strides = steps == nullptr || steps == Py_None ? dense_strides(shape, item_bytes)
                                                 : numbers_of(steps, name + ": its strides");
  if (strides.size() != shape.size()) {
    refuse("%.40s: has %zu strides, expected as many as the %zu dimensions", name.c_str(),
           strides.size(), shape.size());
  }
  owner_ = nb::borrow(object);
}

Memory Memory::on_gpu(nb::handle object, const std::string& name, int device) {
  Memory memory;
  if (is_pair(object)) {
    memory.data = reinterpret_cast<void*>(address_of(object[0], name));
    memory.shape = {static_cast<std::int64_t>(
        whole_number(object[1], (name + ": its bytes").c_str(), INT64_MAX))};
    memory.item_bytes = 1;
    memory.is_bare = memory.is_writable = memory.is_contiguous = true;
    memory.check_sizes(name);
    return memory;
  }
  if (has_dlpack(object)) {
    const auto [type, number] = dlpack_device(object, name);
    if ((type != kCuda && type != kManagedCuda) || number != device) {
      refuse("%.40s: lies on %.60s (DLPack device type %" PRId64 ", number %" PRId64
             "), expected CUDA device %d",
             name.c_str(), place_of(object).c_str(), type, number, device);
    }
    memory.take_dlpack(object, name);
  } else if (nb::hasattr(object, "__cuda_array_interface__")) {
    memory.take_cuda_array(object, name);
  } else {
    refuse_type(object, name + ": ",
                "memory of a GPU: DLPack, __cuda_array_interface__ or a pair (address, bytes)");
  }
  memory.check_sizes(name);
  memory.is_contiguous = is_dense(memory.shape, memory.strides, memory.item_bytes);
  return memory;
}

}  // namespace cachalot::python
