// PartStrides: where one part of a cache without a named layout lies.
#include "strides.h"

#include <cachalot/client.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cinttypes>
#include <iterator>
#include <string>

#include "error.h"
#include "module.h"
#include "numbers.h"

namespace cachalot::python {
namespace {

struct TensorField {
  const char* name;
  std::uint32_t PartStrides::*member;
};
constexpr TensorField kTensorFields[] = {{"tensor", &PartStrides::tensor},
                                         {"layer_tensors", &PartStrides::layer_tensors}};
struct ByteField {
  const char* name;
  std::uint64_t PartStrides::*member;
};
constexpr ByteField kByteFields[] = {{"offset", &PartStrides::offset},
                                     {"layer", &PartStrides::layer},
                                     {"page", &PartStrides::page},
                                     {"head", &PartStrides::head},
                                     {"token", &PartStrides::token}};

PartStrides make(const nb::kwargs& fields) {
  PartStrides strides;
  for (const auto [key, value] : fields) {
    const std::string name = text(key, "name");
    const auto is_it = [&](const auto& field) { return name == field.name; };
    const auto of_tensors = std::find_if(std::begin(kTensorFields), std::end(kTensorFields), is_it);
    const auto of_bytes = std::find_if(std::begin(kByteFields), std::end(kByteFields), is_it);
    if (of_tensors != std::end(kTensorFields)) {
      strides.*of_tensors->member = number(value, of_tensors->name);
    } else if (of_bytes != std::end(kByteFields)) {
      strides.*of_bytes->member = whole_number(value, of_bytes->name, ~std::uint64_t{0});
    } else {
      throw nb::type_error(("PartStrides has no " + name).c_str());
    }
  }
  return strides;
}

std::string repr(const PartStrides& strides) {
  std::string list;
  const auto add = [&](const char* name, std::uint64_t value) {
    if (value != 0)
      list += (list.empty() ? "" : ", ") + std::string(name) + "=" + std::to_string(value);
  };
  for (const TensorField& field : kTensorFields) add(field.name, strides.*field.member);
  for (const ByteField& field : kByteFields) add(field.name, strides.*field.member);
  return "PartStrides(" + list + ")";
}

}  // namespace

std::array<PartStrides, kParts> strides_of(nb::handle object) {
  if (!PySequence_Check(object.ptr()) || PyUnicode_Check(object.ptr()))
    refuse_type(object, "strides: ", "two PartStrides");
  const std::size_t count = nb::len(object);
  if (count != kParts) refuse("strides: %zu parts, expected %" PRIu32, count, kParts);
  std::array<PartStrides, kParts> strides;
  for (std::uint32_t k = 0; k < kParts; ++k) {
    const nb::object one = object[k];
    const std::string name = "strides: part " + std::to_string(k) + ": ";
    if (!nb::isinstance<PartStrides>(one)) refuse_type(one, name, "a PartStrides");
    strides[k] = instance_of<PartStrides>(one, "strides");
  }
  return strides;
}

void add_strides(nb::module_& module) {
  nb::class_<PartStrides> strides(
      module, "PartStrides",
      "Where one part of a cache lies, for register_cache(): keys or values, or a latent\n"
      "or its rope part. What one head keeps of one token is contiguous. For layer l,\n"
      "page p, head h (0 in a latent) and token t of the page it starts at\n"
      "\n"
      "    tensors[tensor + l * layer_tensors]\n"
      "        + offset + l * layer + p * page + h * head + t * token\n"
      "\n"
      "offset, layer, page, head and token are bytes. Immutable.");
  strides
      .def(
          "__init__",
          [](PartStrides* self, const nb::kwargs& fields) { new (self) PartStrides(make(fields)); },
          nb::sig("def __init__(self, *, tensor: int = 0, layer_tensors: int = 0, offset: int = 0, "
                  "layer: int = 0, page: int = 0, head: int = 0, token: int = 0) -> None"),
          "tensor: of layer 0\n"
          "layer_tensors: tensors from one layer to the next; 0: all layers lie in one tensor\n"
          "offset: of layer 0, page 0, head 0, token 0 in its tensor\n"
          "layer: bytes from one layer to the next; 0: each layer has its own tensor\n"
          "page, head, token: bytes from one to the next")
      .def(
          "__eq__",
          [](const PartStrides& a, nb::handle b) {
            return nb::isinstance<PartStrides>(b) && a == *nb::inst_ptr<PartStrides>(b);
          },
          nb::arg("other").none(), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", [](const PartStrides& self) { return nb::hash(nb::cast(repr(self))); })
      .def("__repr__", &repr);
  for (const TensorField& field : kTensorFields) {
    strides.def_prop_ro(field.name,
                        [member = field.member](const PartStrides& s) { return s.*member; });
  }
  for (const ByteField& field : kByteFields) {
    strides.def_prop_ro(field.name,
                        [member = field.member](const PartStrides& s) { return s.*member; });
  }
}

}  // namespace cachalot::python
