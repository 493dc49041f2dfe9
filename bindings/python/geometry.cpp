#include <cachalot/client.h>
#include <cachalot/geometry.h>
#include <cachalot/tensor_shape.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>

#include "error.h"
#include "module.h"
#include "numbers.h"

namespace cachalot::python {
namespace {

std::string attention_name(const KvGeometry& geometry) {
  return geometry.attention == Attention::kGrouped ? "grouped" : "latent";
}

Attention parse_attention(const std::string& name) {
  if (name == "grouped") return Attention::kGrouped;
  if (name == "latent") return Attention::kLatent;
  refuse("attention: '%.40s' is not grouped or latent", name.c_str());
}

// One field, in C++ and in Python.
struct Field {
  const char* name;
  std::uint32_t KvGeometry::*member;
};
constexpr Field kFields[] = {
    {"layers", &KvGeometry::layers},
    {"kv_heads", &KvGeometry::kv_heads},
    {"head_dim", &KvGeometry::head_dim},
    {"kv_lora_rank", &KvGeometry::kv_lora_rank},
    {"qk_rope_head_dim", &KvGeometry::qk_rope_head_dim},
    {"block_tokens", &KvGeometry::block_tokens},
    {"tp_rank", &KvGeometry::tp_rank},
    {"tp_size", &KvGeometry::tp_size},
    {"tp_replicas", &KvGeometry::tp_replicas},
    {"pp_rank", &KvGeometry::pp_rank},
    {"pp_size", &KvGeometry::pp_size},
};

nb::dict fields_of(const KvGeometry& geometry) {
  nb::dict fields;
  fields["attention"] = attention_name(geometry);
  fields["dtype"] = dtype_name(geometry.dtype);
  for (const Field& field : kFields) fields[field.name] = geometry.*field.member;
  return fields;
}

// Checked before the dimensions are used; the library checks them again.
KvGeometry make(const nb::kwargs& fields) {
  KvGeometry geometry;
  for (const auto [key, value] : fields) {
    const std::string name = nb::cast<std::string>(key);
    if (name == "attention") {
      geometry.attention = parse_attention(text(value, "attention"));
    } else if (name == "dtype") {
      geometry.dtype = value_of(parse_dtype(text(value, "dtype")));
    } else {
      const auto at = std::find_if(std::begin(kFields), std::end(kFields),
                                   [&](const Field& f) { return name == f.name; });
      if (at == std::end(kFields)) throw nb::type_error(("KvGeometry has no " + name).c_str());
      geometry.*at->member = number(value, at->name);
    }
  }
  check(geometry.check());
  return geometry;
}

std::string repr(const KvGeometry& geometry) {
  std::string text = "KvGeometry(";
  for (const auto [key, value] : fields_of(geometry)) {
    if (text.back() != '(') text += ", ";
    text += nb::cast<std::string>(key) + "=" + nb::repr(value).c_str();
  }
  return text + ")";
}

}  // namespace

void add_geometry(nb::module_& module) {
  nb::class_<KvGeometry> geometry(
      module, "KvGeometry",
      "The KV dimensions of one rank of an engine. All sizes in bytes are computed from\n"
      "them. Immutable.");
  geometry
      .def(
          "__init__",
          [](KvGeometry* self, const nb::kwargs& fields) { new (self) KvGeometry(make(fields)); },
          nb::sig(
              "def __init__(self, *, layers: int, block_tokens: int, attention: str = 'grouped', "
              "dtype: str = 'bf16', kv_heads: int = 0, head_dim: int = 0, kv_lora_rank: int = 0, "
              "qk_rope_head_dim: int = 0, tp_rank: int = 0, tp_size: int = 1, tp_replicas: int = "
              "1, "
              "pp_rank: int = 0, pp_size: int = 1) -> None"),
          "All dimensions are those of this rank only.\n"
          "\n"
          "attention: 'grouped' (MHA, GQA, MQA) needs kv_heads and head_dim; 'latent' (MLA)\n"
          "    needs kv_lora_rank, and qk_rope_head_dim if it has a rope part\n"
          "dtype: 'f32', 'f16', 'bf16', 'f8' or 'i8'\n"
          "tp_replicas: 'grouped': number of consecutive ranks with the same heads\n"
          "\n"
          "Raises InvalidArgumentError: a dimension is missing or belongs to the other\n"
          "attention; a rank is out of range; a size exceeds 63 bits.")
      .def_static(
          "of_model",
          [](const std::string& name, const std::string& dtype, nb::handle block_tokens,
             nb::handle tp_rank, nb::handle tp_size) {
            return value_of(KvGeometry::of_model(
                name, value_of(parse_dtype(dtype)), number(block_tokens, "block_tokens"),
                number(tp_rank, "tp_rank"), number(tp_size, "tp_size")));
          },
          nb::arg("name"), nb::arg("dtype"), nb::arg("block_tokens"), nb::arg("tp_rank") = 0,
          nb::arg("tp_size") = 1,
          nb::sig(
              "def of_model(name: str, dtype: str, block_tokens: int, tp_rank: int = 0, tp_size: "
              "int = 1) -> KvGeometry"),
          "Returns the geometry of rank tp_rank of tp_size for a model of model_names().\n"
          "Heads are split over the ranks; if there are more ranks than heads, heads are\n"
          "replicated. A latent is replicated on every rank.\n"
          "\n"
          "Raises InvalidArgumentError: unknown model or dtype; heads can neither be split\n"
          "nor replicated evenly.")
      .def_prop_ro("attention", &attention_name)
      .def_prop_ro("dtype", [](const KvGeometry& g) { return std::string(dtype_name(g.dtype)); })
      .def_prop_ro(
          "dtype_bytes", [](const KvGeometry& g) { return dtype_bytes(g.dtype); }, "Of one number.")
      .def_prop_ro("token_bytes", &KvGeometry::token_bytes, "Of one token, all layers.")
      .def_prop_ro("layer_bytes", &KvGeometry::layer_bytes, "Of one layer of one block.")
      .def_prop_ro("block_bytes", &KvGeometry::block_bytes, "Of one block, all layers.")
      .def(
          "head_group",
          [](const KvGeometry& g, nb::handle share_tp) {
            return value_of(g.head_group(number(share_tp, "share_tp")));
          },
          nb::arg("share_tp"), nb::sig("def head_group(self, share_tp: int) -> KvGeometry"),
          "Returns the geometry of one of share_tp equal groups of the whole model's KV heads:\n"
          "what a rank of tensor parallelism share_tp keeps. Its tp_rank is the number of this\n"
          "rank's first group; its block_bytes are those of a block in the pool.\n"
          "\n"
          "Raises InvalidArgumentError: share_tp does not divide the model's heads, or a group\n"
          "would lie on several ranks; a latent has one group.")
      .def_prop_ro("is_first_replica", &KvGeometry::is_first_replica,
                   "Whether this is the first of the ranks that hold the same bytes: it is enough\n"
                   "that this one stores them.")
      .def(
          "fingerprint",
          [](const KvGeometry& g, nb::handle share_tp) {
            return g.fingerprint(number(share_tp, "share_tp"));
          },
          nb::arg("share_tp") = 0, nb::sig("def fingerprint(self, share_tp: int = 0) -> str"),
          "Returns a text for the namespace: equal for ranks that hold the same bytes,\n"
          "different for all others. share_tp not 0: of head groups instead, so equal for all\n"
          "ranks that share them.")
      .def(
          "__eq__",
          [](const KvGeometry& a, nb::handle b) {
            return nb::isinstance<KvGeometry>(b) && a == *nb::inst_ptr<KvGeometry>(b);
          },
          nb::arg("other").none(), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", [](nb::handle self) { return nb::hash(self.attr("fingerprint")()); })
      .def("__repr__", &repr)
      .def("__getstate__", &fields_of)
      .def("__setstate__", [](KvGeometry& self, const nb::dict& fields) {
        new (&self) KvGeometry(make(nb::borrow<nb::kwargs>(fields)));
      });
  for (const Field& field : kFields) {
    geometry.def_prop_ro(field.name,
                         [member = field.member](const KvGeometry& g) { return g.*member; });
  }
  module.def("model_names", &model_names, "Returns the names that KvGeometry.of_model() accepts.");
  const std::string legend =
      "Returns the layouts that Client.register_cache() accepts.\n\n" + layout_legend();
  module.def("layout_names", &layout_names, legend.c_str());
}

}  // namespace cachalot::python
