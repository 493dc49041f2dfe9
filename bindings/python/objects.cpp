// Objects: keys and address lists, for connectors without pages.
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cinttypes>
#include <memory>
#include <string_view>
#include <vector>

#include "client_object.h"
#include "numbers.h"

namespace cachalot::python {
namespace {

// A key's bytes; a str is encoded as UTF-8.
std::string_view key_of(nb::handle key) {
  if (PyBytes_Check(key.ptr())) {
    return {PyBytes_AsString(key.ptr()), static_cast<std::size_t>(PyBytes_Size(key.ptr()))};
  }
  Py_ssize_t size = 0;
  const char* const text =
      PyUnicode_Check(key.ptr()) ? PyUnicode_AsUTF8AndSize(key.ptr(), &size) : nullptr;
  if (text == nullptr) {
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    throw nb::type_error(
        (std::string("key: is a ") + nb::type_name(key.type()).c_str() + ", expected str or bytes")
            .c_str());
  }
  return {text, static_cast<std::size_t>(size)};
}

// The parts of an object; keeps them alive during the copy.
struct Parts {
  Parts(nb::handle object, bool must_be_writable) {
    if (PyObject_CheckBuffer(object.ptr()) || nb::hasattr(object, "__dlpack__")) {
      add(object, must_be_writable);
    } else {
      for (const nb::handle part : object) add(part, must_be_writable);
    }
  }
  std::vector<Memory> held;
  std::vector<Buffer> buffers;

 private:
  void add(nb::handle object, bool must_be_writable) {
    const std::string name = "part " + std::to_string(held.size());
    Memory memory = Memory::of(object, name);
    if (!memory.is_contiguous)
      refuse("%s: is not contiguous, expected C order without gaps", name.c_str());
    if (must_be_writable && !memory.is_writable) refuse("%s: is read-only", name.c_str());
    buffers.push_back({memory.data, memory.bytes()});
    held.push_back(std::move(memory));
  }
};

Memory buffer_of(nb::handle object) {
  Memory memory = Memory::of(object, "buffer");
  if (!memory.is_contiguous) refuse("buffer: is not contiguous, expected C order without gaps");
  return memory;
}

std::vector<bool> exists(ClientObject& self, nb::handle keys) {
  // A str is also a sequence (of its letters), which is certainly a mistake.
  if (PyUnicode_Check(keys.ptr()) || PyBytes_Check(keys.ptr()) ||
      PySequence_Check(keys.ptr()) == 0) {
    refuse_type(keys, "keys: ", "a sequence of str or bytes");
  }
  std::vector<nb::object> held;  // own the bytes
  std::vector<std::string_view> names;
  for (const nb::handle key : keys) {
    held.push_back(nb::borrow(key));
    names.push_back(key_of(key));
  }
  const auto present = std::make_unique<bool[]>(names.size());
  const std::span<bool> answers(present.get(), names.size());
  check(self.call([&](Client& client) { return client.exists(names, answers); }));
  return {answers.begin(), answers.end()};
}

std::uint64_t put(ClientObject& self, nb::handle key, nb::handle parts) {
  const std::string_view name = key_of(key);
  const Parts from(parts, false);
  return value_of(self.call([&](Client& client) { return client.put(name, from.buffers); }));
}

std::uint64_t get(ClientObject& self, nb::handle key, nb::handle parts) {
  const std::string_view name = key_of(key);
  const Parts to(parts, true);
  return value_of(self.call([&](Client& client) { return client.get(name, to.buffers); }));
}

}  // namespace

void add_objects(nb::class_<ClientObject>& client) {
  client
      .def(
          "register_buffer",
          [](ClientObject& self, nb::handle buffer) { self.register_buffer(buffer_of(buffer)); },
          nb::arg("buffer").none(),
          nb::sig("def register_buffer(self, buffer: cachalot.types.Memory) -> None"),
          "Registers memory that parts of objects lie in. It is kept alive until\n"
          "unregister_buffer() or detach().\n"
          "\n"
          "Raises InvalidArgumentError: no bytes, not contiguous, or overlap with a\n"
          "registered buffer.")
      .def(
          "unregister_buffer",
          [](ClientObject& self, nb::handle buffer) {
            self.unregister_buffer(buffer_of(buffer).data);
          },
          nb::arg("buffer").none(),
          nb::sig("def unregister_buffer(self, buffer: cachalot.types.Memory) -> None"),
          "Unregisters the memory; its address identifies it.")
      .def("exists", &exists, nb::arg("keys").none(),
           nb::sig("def exists(self, keys: collections.abc.Sequence[str | bytes]) -> list[bool]"),
           "Returns for each key whether its object is in the pool.")
      .def("put", &put, nb::arg("key"), nb::arg("parts"),
           nb::sig("def put(self, key: str | bytes, parts: cachalot.types.Memory | "
                   "collections.abc.Iterable[cachalot.types.Memory]) -> int"),
           "Stores an object: the concatenation of its parts, which must be in registered\n"
           "buffers. An object lies in one block. Returns the bytes stored; 0 if the key\n"
           "exists already.\n"
           "\n"
           "Raises NoSpaceError: the pool is full; as store().")
      .def("get", &get, nb::arg("key"), nb::arg("parts"),
           nb::sig("def get(self, key: str | bytes, parts: cachalot.types.Memory | "
                   "collections.abc.Iterable[cachalot.types.Memory]) -> int"),
           "Reads an object into `parts`, which must be in registered buffers and together\n"
           "have the object's size. Returns the bytes read.\n"
           "\n"
           "Raises NotFoundError: no such key; InvalidArgumentError: the parts do not have the\n"
           "object's size, or overlap.");
}

}  // namespace cachalot::python
