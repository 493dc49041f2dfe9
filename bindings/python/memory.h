// Memory that a Python object has, and keeps for as long as this is alive: by the buffer protocol,
// or by DLPack where the object has none (torch).
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

// What a shape says is bounded: items(), bytes() and the address behind the last byte do not overflow.
//
// @threads  made and destroyed by who holds the GIL; its numbers may be read by anybody
class Memory {
 public:
  // @param name  what it is, for messages: "tensor 3"
  // Raises InvalidArgumentError: not the CPU's, or it is not handed out; TypeError: no memory.
  static Memory of(nb::handle object, const std::string& name);
  // A GPU's, that the host cannot look at: by DLPack, by __cuda_array_interface__, or a pair (address, bytes),
  // which says nothing of what is in it (item_bytes is 1). Raises InvalidArgumentError: not on this device; TypeError: no memory.
  static Memory on_gpu(nb::handle object, const std::string& name, int device);

  void* data = nullptr;
  std::uint64_t item_bytes = 0;
  char kind = '?';  // u, i, f or ? for anything else
  bool is_writable = false;
  bool is_contiguous = false;  // in C's order
  bool is_swapped = false;     // its numbers are in the other byte order
  bool is_record = false;      // its items are no numbers, but have fields
  bool is_bare = false;        // a pair: an address, and so many bytes
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // in bytes

  std::uint64_t items() const;
  std::uint64_t bytes() const { return items() * item_bytes; }
  std::string dtype() const;  // as NumPy writes it: "float16", "big-endian uint32"
  std::string text() const;   // for messages: "an array (3, 2) of int64, not contiguous"

  // What it keeps, to Python's collector; what is held by DLPack cannot be shown.
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
  // Before anything is multiplied. Raises InvalidArgumentError: more bytes than a process can address.
  void check_sizes(const std::string& name) const;

  std::unique_ptr<Py_buffer, ReleaseBuffer> buffer_;
  std::optional<nb::ndarray<nb::ro>> array_;
  nb::object owner_;
};

}  // namespace cachalot::python
