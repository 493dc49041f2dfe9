#include "hash.h"

#include <nanobind/operators.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "error.h"
#include "module.h"
#include "numbers.h"
#include "sequence.h"

namespace cachalot::python {
namespace {

constexpr std::size_t kDigits = 16;  // digits of each half

std::string to_text(const BlockHash& hash) {
  char text[2 * kDigits + 1];
  std::snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, hash.high, hash.low);
  return text;
}

BlockHash from_text(std::string_view text) {
  BlockHash hash;
  const auto half = [&](std::size_t at, std::uint64_t& value) {
    const char* const first = text.data() + at;
    return std::from_chars(first, first + kDigits, value, 16).ptr == first + kDigits;
  };
  if (text.size() != 2 * kDigits || !half(0, hash.high) || !half(kDigits, hash.low)) {
    refuse("hash: '%.40s', expected %zu hexadecimal digits", std::string(text).c_str(),
           2 * kDigits);
  }
  return hash;
}

BlockHashes from_object(nb::handle object) {
  const Hashes hashes(object);
  const std::span<const BlockHash> given = hashes.get();
  return {std::make_shared<const std::vector<BlockHash>>(given.begin(), given.end()), 0,
          given.size()};
}

BlockHashes slice(const BlockHashes& hashes, nb::slice index) {
  Py_ssize_t start, stop, step;
  if (PySlice_Unpack(index.ptr(), &start, &stop, &step) < 0) throw nb::python_error();
  const auto count = static_cast<std::size_t>(
      PySlice_AdjustIndices(static_cast<Py_ssize_t>(hashes.count), &start, &stop, step));
  if (step == 1) return {hashes.all, hashes.first + static_cast<std::size_t>(start), count};
  auto chosen = std::make_shared<std::vector<BlockHash>>();
  for (std::size_t i = 0; i < count; ++i, start += step) {
    chosen->push_back(hashes.get()[static_cast<std::size_t>(start)]);
  }
  return {std::move(chosen), 0, count};
}

BlockHash at(const BlockHashes& hashes, nb::handle index) {
  Py_ssize_t position = PyNumber_AsSsize_t(index.ptr(), PyExc_IndexError);
  if (position == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  if (position < 0) position += static_cast<Py_ssize_t>(hashes.count);
  if (position < 0 || position >= static_cast<Py_ssize_t>(hashes.count)) {
    throw nb::index_error("there is no such block");
  }
  return hashes.get()[static_cast<std::size_t>(position)];
}

// As tuple.index(): the position of `value`, if it is present.
bool contains(const BlockHashes& hashes, nb::handle value) {
  const auto all = hashes.get();
  return nb::isinstance<BlockHash>(value) &&
         std::find(all.begin(), all.end(), instance_of<BlockHash>(value, "value")) != all.end();
}

std::size_t count_of(const BlockHashes& hashes, const BlockHash& value) {
  const auto all = hashes.get();
  return static_cast<std::size_t>(std::count(all.begin(), all.end(), value));
}

std::size_t index_of(const BlockHashes& hashes, const BlockHash& value, Py_ssize_t start,
                     Py_ssize_t stop) {
  PySlice_AdjustIndices(static_cast<Py_ssize_t>(hashes.count), &start, &stop, 1);
  const auto all = hashes.get();
  for (Py_ssize_t i = start; i < stop; ++i) {
    if (all[static_cast<std::size_t>(i)] == value) return static_cast<std::size_t>(i);
  }
  refuse("value: %s, expected one of these hashes", to_text(value).c_str());
}

// Hashes the bytes: equal values have equal bytes.
Py_hash_t hash_of(const BlockHashes& hashes) {
  const auto all = hashes.get();
  return nb::hash(nb::bytes(all.data(), all.size_bytes()));
}

struct BufferShape {
  Py_ssize_t shape[2];
  Py_ssize_t strides[2] = {sizeof(BlockHash), sizeof(std::uint64_t)};
};
char kFormat[] = "Q";

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  if ((flags & PyBUF_WRITABLE) == PyBUF_WRITABLE) {
    PyErr_SetString(PyExc_BufferError, "block hashes are read-only");
    return -1;
  }
  if (!nb::inst_ready(self)) {
    PyErr_SetString(PyExc_BufferError, "block hashes: __init__ was not called");
    return -1;
  }
  const std::span<const BlockHash> hashes = nb::inst_ptr<BlockHashes>(self)->get();
  auto* const shape = new BufferShape{{static_cast<Py_ssize_t>(hashes.size()), 2}};
  view->buf = const_cast<BlockHash*>(hashes.data());
  view->len = static_cast<Py_ssize_t>(hashes.size_bytes());
  view->itemsize = sizeof(std::uint64_t);
  view->readonly = 1;
  view->ndim = 2;
  view->format = (flags & PyBUF_FORMAT) != 0 ? kFormat : nullptr;
  view->shape = (flags & PyBUF_ND) != 0 ? shape->shape : nullptr;
  view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? shape->strides : nullptr;
  view->suboffsets = nullptr;
  view->internal = shape;
  Py_INCREF(self);
  view->obj = self;
  return 0;
}

void release_buffer(PyObject*, Py_buffer* view) {
  delete static_cast<BufferShape*>(view->internal);
}

PyType_Slot kBufferSlots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
                              {Py_bf_releasebuffer, reinterpret_cast<void*>(release_buffer)},
                              {0, nullptr}};

}  // namespace

Hashes::Hashes(nb::handle object) {
  if (nb::isinstance<BlockHashes>(object)) {
    owner_ = nb::borrow(object);
    hashes_ = instance_of<BlockHashes>(object, "hashes").get();
    return;
  }
  if (!PyList_CheckExact(object.ptr()) && PyObject_CheckBuffer(object.ptr())) {
    const Memory memory = Memory::of(object, "hashes");
    if (memory.shape.size() != 2 || memory.shape[1] != 2 ||
        memory.item_bytes != sizeof(std::uint64_t) || memory.kind != 'u' || memory.is_swapped ||
        !memory.is_contiguous ||
        reinterpret_cast<std::uintptr_t>(memory.data) % alignof(BlockHash) != 0) {
      refuse(
          "hashes: %s, expected (n, 2) of uint64, contiguous, aligned and in this machine's byte "
          "order",
          memory.text().c_str());
    }
    const auto* const first = static_cast<const BlockHash*>(memory.data);
    own_.assign(first, first + memory.shape[0]);
    hashes_ = own_;
    return;
  }
  const nb::object items =
      nb::steal(PySequence_Fast(object.ptr(), "expected a sequence of BlockHash"));
  if (!items.is_valid()) {
    clear_type_error();
    refuse_type(object, "hashes: ", "a sequence of BlockHash, or an array of them");
  }
  const Py_ssize_t count = fast_size(items);
  own_.reserve(static_cast<std::size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    const nb::handle item = fast_item(items, i);
    if (!nb::isinstance<BlockHash>(item)) {
      throw nb::type_error(("hashes: number " + std::to_string(i) + " is a " +
                            nb::type_name(item.type()).c_str() + ", expected a BlockHash")
                               .c_str());
    }
    own_.push_back(instance_of<BlockHash>(item, "hashes"));
  }
  hashes_ = own_;
}

std::optional<BlockHash> parent_of(nb::handle object, const char* name) {
  if (object.is_none()) return std::nullopt;
  if (nb::isinstance<BlockHash>(object)) return instance_of<BlockHash>(object, name);
  if (!PyObject_CheckBuffer(object.ptr()) && !nb::hasattr(object, "__dlpack__")) {
    const std::string prefix = std::string(name) + ": ";
    refuse_type(object, prefix.c_str(), "a BlockHash, one row of an array of hashes, or None");
  }
  const Memory memory = Memory::of(object, name);
  if (memory.shape.size() != 1 || memory.shape[0] != 2 ||
      memory.item_bytes != sizeof(std::uint64_t) || memory.kind != 'u' || memory.is_swapped ||
      !memory.is_contiguous) {
    refuse("%s: %s, expected a BlockHash or one row of an array of hashes: (2,) of uint64", name,
           memory.text().c_str());
  }
  BlockHash hash;
  std::memcpy(&hash, memory.data, sizeof hash);
  return hash;
}

void add_hash(nb::module_& module) {
  nb::class_<BlockHash>(
      module, "BlockHash",
      "The name of a block: the chained hash of its tokens and all tokens before them.")
      .def(
          "__init__",
          [](BlockHash* self, const std::string& text) { new (self) BlockHash(from_text(text)); },
          nb::arg("text"), "Parses 32 hexadecimal digits, as str() writes them.")
      .def_ro("low", &BlockHash::low)
      .def_ro("high", &BlockHash::high)
      .def(nb::self == nb::self, nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", [](const BlockHash& hash) { return static_cast<Py_hash_t>(hash.low >> 1); })
      .def("__str__", &to_text)
      .def("__repr__", [](const BlockHash& hash) { return "BlockHash('" + to_text(hash) + "')"; })
      .def("__reduce__", [](nb::handle self) {
        return nb::make_tuple(self.type(), nb::make_tuple(nb::str(self)));
      });

  nb::class_<BlockHashes>(
      module, "BlockHashes", nb::type_slots(kBufferSlots),
      "Hashes of consecutive blocks, from Client.hash_tokens(): a sequence of BlockHash.\n"
      "By the buffer protocol, a read-only array (n, 2) of uint64 (low, high). Slices of\n"
      "step 1 share the memory.")
      .def(
          "__init__",
          [](BlockHashes* self, nb::object hashes) { new (self) BlockHashes(from_object(hashes)); },
          nb::arg("hashes").none(),
          nb::sig("def __init__(self, hashes: cachalot.types.Hashes) -> None"))
      .def("__len__", [](const BlockHashes& hashes) { return hashes.count; })
      .def("__getitem__", &slice)
      .def("__getitem__", &at, nb::sig("def __getitem__(self, index: int, /) -> BlockHash"))
      .def(
          "__eq__",
          [](const BlockHashes& a, nb::handle b) {
            if (!nb::isinstance<BlockHashes>(b)) return false;
            const auto left = a.get(), right = instance_of<BlockHashes>(b, "hashes").get();
            return std::equal(left.begin(), left.end(), right.begin(), right.end());
          },
          nb::arg("other").none(), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", &hash_of)
      .def(
          "__iter__", [](nb::handle self) { return nb::steal(PySeqIter_New(self.ptr())); },
          nb::sig("def __iter__(self) -> collections.abc.Iterator[BlockHash]"))
      .def("__contains__", &contains, nb::arg("value").none(),
           nb::sig("def __contains__(self, value: object, /) -> bool"))
      .def("index", &index_of, nb::arg("value"), nb::arg("start") = 0,
           nb::arg("stop") = PY_SSIZE_T_MAX,
           nb::sig(
               "def index(self, value: BlockHash, start: int = 0, stop: int = sys.maxsize) -> int"),
           "Returns the position of the first block with this hash, from start up to stop.\n"
           "Raises InvalidArgumentError, a ValueError: there is none.")
      .def("count", &count_of, nb::arg("value"), "Returns how many blocks have this hash.")
      .def("__repr__",
           [](const BlockHashes& hashes) {
             return "BlockHashes(of " + std::to_string(hashes.count) + " blocks)";
           })
      .def("__reduce__", [](nb::handle self) {
        return nb::make_tuple(self.type(), nb::make_tuple(nb::list(self)));
      });
}

}  // namespace cachalot::python
