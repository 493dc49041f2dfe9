// The memory of a Python object, kept while this exists: by the buffer protocol, or by DLPack if the object has
// no buffer protocol (torch).
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cachalot::python {

namespace nb = nanobind;

// Shapes are limited: items(), bytes() and the address after the last byte do not overflow.
//
// @threads  created and destroyed with the GIL; its fields may be read by any thread
class Memory {
 public:
  // @param name  for messages: "tensor 3"
  // Raises InvalidArgumentError: not CPU memory, or the object refuses access; TypeError: no memory.
  static Memory of(nb::handle object, const std::string& name);
  // GPU memory, which the host cannot read: by DLPack, __cuda_array_interface__, or a pair (address, bytes)
  // without a type (item_bytes is 1). Raises InvalidArgumentError: not on this device; TypeError: no memory.
  static Memory on_gpu(nb::handle object, const std::string& name, int device);

  void* data = nullptr;
  std::uint64_t item_bytes = 0;
  char kind = '?';  // u, i, f; b for bfloat16; ? for other types
  bool is_writable = false;
  bool is_contiguous = false;  // in C order
  bool is_swapped = false;     // the numbers have the other byte order
  bool is_record = false;      // items have fields
  bool is_bare = false;        // a pair (address, bytes)
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // in bytes

  std::uint64_t items() const;
  std::uint64_t bytes() const { return items() * item_bytes; }
  // From the first element to the end of the last one: bytes() if it is contiguous.
  // None: an element lies before the first one, or beyond all addresses.
  std::optional<std::uint64_t> extent_bytes() const;
  std::string dtype() const;  // as NumPy writes it: "float16", "big-endian uint32"
  std::string text() const;   // for messages: "an array (3, 2) of int64, not contiguous"

  // Shows its references to Python's collector; references held by DLPack cannot be shown.
  int traverse(visitproc visit, void* arg) const;

 private:
  struct ReleaseBuffer {
    void operator()(Py_buffer* view) const {
      PyBuffer_Release(view);
      delete view;
    }
  };
  void take_buffer(std::unique_ptr<Py_buffer, ReleaseBuffer> view);
  void take_dlpack(nb::handle object, const std::string& name);
  void take_cuda_array(nb::handle object, const std::string& name);
  // Called before sizes are multiplied. Raises InvalidArgumentError: more bytes than a process can address.
  void check_sizes(const std::string& name) const;

  std::unique_ptr<Py_buffer, ReleaseBuffer> buffer_;
  std::optional<nb::ndarray<nb::ro>> array_;
  nb::object owner_;
};

}  // namespace cachalot::python
