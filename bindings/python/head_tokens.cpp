#include "head_tokens.h"

#include "error.h"
#include "numbers.h"
#include "sequence.h"

namespace cachalot::python {
namespace {

constexpr const char* kName = "tokens";

void check_heads(std::size_t heads, std::size_t layer, const KvGeometry& geometry) {
  if (heads == geometry.heads()) return;
  refuse("tokens: layer %zu has lists of %zu heads, expected %u%s", layer, heads, geometry.heads(),
         geometry.attention == Attention::kLatent ? ": a latent has one head" : "");
}

nb::object items_of(nb::handle object, const std::string& what, const char* expected) {
  nb::object items = nb::steal(PySequence_Fast(object.ptr(), expected));
  if (items.is_valid()) return items;
  clear_type_error();
  refuse_type(object, what, expected);
}

}  // namespace

HeadTokens::HeadTokens(nb::handle object, const KvGeometry& geometry) {
  if (is_array(object)) {
    take_array(object, geometry);
  } else {
    take_sequence(object, geometry);
  }
}

void HeadTokens::take_array(nb::handle object, const KvGeometry& geometry) {
  const Memory memory = Memory::of(object, kName);
  numbers_ = Numbers::copy_cube(memory, kName);
  const auto layers = static_cast<std::size_t>(memory.shape[0]);
  const auto heads = static_cast<std::size_t>(memory.shape[1]);
  const auto tokens = static_cast<std::size_t>(memory.shape[2]);
  if (layers != 0) check_heads(heads, 0, geometry);
  for (std::size_t i = 0; i < layers * heads; ++i)
    lists_.push_back(std::span(numbers_).subspan(i * tokens, tokens));
}

void HeadTokens::take_sequence(nb::handle object, const KvGeometry& geometry) {
  const nb::object layers = items_of(object, "tokens: ", "a sequence for each layer");
  for (Py_ssize_t layer = 0; layer < fast_size(layers); ++layer) {
    const nb::object of_layer = nb::borrow(fast_item(layers, layer));
    const nb::object heads = items_of(of_layer, "tokens: layer " + std::to_string(layer) + ": ",
                                      "a sequence for each head");
    check_heads(static_cast<std::size_t>(fast_size(heads)), static_cast<std::size_t>(layer),
                geometry);
    for (Py_ssize_t head = 0; head < fast_size(heads); ++head) {
      const nb::object list = nb::borrow(fast_item(heads, head));
      each_.push_back(Numbers::copy(list, kName));
    }
  }
  lists_.assign(each_.begin(), each_.end());
}

}  // namespace cachalot::python
