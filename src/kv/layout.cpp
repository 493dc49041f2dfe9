#include "kv/layout.h"

#include <cstring>

namespace cachalot::kv {
namespace {

constexpr Form kNone = {};

// One row an engine's layout. Sources: the engines' documentation and the shapes that their caches
// have at run time (docs/design/kv.md); a new engine is a new row (docs/extend/layout.md).
constexpr Layout kLayouts[] = {
    // K and V in tensors of their own.
    {"split_bnhc", "NHD, K and V apart, (B, N, H, C)", {"BNHC", "LK"}, kNone},
    {"split_bhnc", "HND, K and V apart, (B, H, N, C)", {"BHNC", "LK"}, kNone},
    // vLLM, a tensor a layer.
    {"vllm_kbnhc", "vLLM NHD (2, B, N, H, C)", {"KBNHC", "L"}, kNone},
    {"vllm_kbhnc", "vLLM HND (2, B, H, N, C)", {"KBHNC", "L"}, kNone},
    {"vllm_bknhc", "vLLM NHD (B, 2, N, H, C)", {"BKNHC", "L"}, kNone},
    {"vllm_bkhnc", "vLLM HND (B, 2, H, N, C)", {"BKHNC", "L"}, kNone},
    {"vllm_bnhkc", "vLLM NHD, packed (B, N, H, 2C)", {"BNHKC", "L"}, kNone},
    {"vllm_bhnkc", "vLLM HND, packed (B, H, N, 2C)", {"BHNKC", "L"}, kNone},
    // vLLM, all layers of a group in one buffer; C is K and V packed, or the latent.
    {"vllm_lbhnc", "vLLM LBHNC", {"LBHNKC", ""}, {"LBNKC", ""}},
    {"vllm_lbnhc", "vLLM LBNHC", {"LBNHKC", ""}, {"LBNKC", ""}},
    {"vllm_lhbnc", "vLLM LHBNC", {"LHBNKC", ""}, {"LBNKC", ""}},
    {"vllm_blhnc", "vLLM BLHNC", {"BLHNKC", ""}, {"BLNKC", ""}},
    {"vllm_blnhc", "vLLM BLNHC, cross-layer NHD", {"BLNHKC", ""}, {"BLNKC", ""}},
    {"vllm_bhlnc", "vLLM BHLNC, cross-layer HND", {"BHLNKC", ""}, {"BLNKC", ""}},
    // Latents, a tensor a layer, or latent and rope apart.
    {"mla_joint", "latent and rope together, (B, N, C)", kNone, {"BNKC", "L"}},
    {"mla_split", "latent and rope apart, (B, N, C)", kNone, {"BNC", "LK"}},
    // SGLang. On the device: K of every layer, then V of every layer.
    {"sglang_device", "SGLang device pool, (slots, H, C)", {"BNHC", "KL"}, {"BNKC", "L"}},
    {"sglang_layer_first", "SGLang host (2, L, slots, H, C)", {"KLBNHC", ""}, {"LBNKC", ""}},
    {"sglang_page_first", "SGLang host (2, slots, L, H, C)", {"KBNLHC", ""}, {"BNLKC", ""}},
    {"sglang_page_first_direct", "SGLang host (2, B, L, N, H, C)", {"KBLNHC", ""}, {"BLNKC", ""}},
    {"sglang_page_head", "SGLang host (2, B, H, N, L, C)", {"KBHNLC", ""}, kNone},
    {"sglang_kv_split", "SGLang host, latent and rope apart", kNone, {"BNLC", "K"}},
    // llama.cpp: a K and a V tensor a layer, a row a cell; a page is a cell, or a run of them.
    {"llama_rows", "llama.cpp with flash attention, (cells, H * C)", {"BNHC", "LK"}, kNone},
    {"llama_transposed_v", "llama.cpp without flash attention", kNone, kNone,
     "V is stored transposed, an element of every cell side by side, so a block of tokens has no "
     "contiguous bytes: run llama.cpp with flash attention, then it is llama_rows"},
};

// All names, short enough for an error: those with the same first word share it.
std::string list_names() {
  std::string list, open_word;
  for (const Layout& layout : kLayouts) {
    if (layout.refusal != nullptr) continue;
    const std::string name = layout.name;
    const std::string word = name.substr(0, name.find('_') + 1);
    if (word == open_word) {
      list += " " + name.substr(word.size());
      continue;
    }
    list += (list.empty() ? "" : ") ") + word + "(" + name.substr(word.size());
    open_word = word;
  }
  return list + ")";
}

bool names_each_once(const std::string& given, std::string_view wanted) {
  if (given.size() != wanted.size()) return false;
  for (const char dimension : wanted) {
    if (given.find(dimension) == std::string::npos) return false;
  }
  return true;
}

}  // namespace

std::span<const Layout> layouts() {
  return kLayouts;
}

Result<const Layout*> find_layout(std::string_view name) {
  for (const Layout& layout : kLayouts) {
    if (name != layout.name) continue;
    if (layout.refusal == nullptr) return &layout;
    return Error::make(Code::kUnsupported, "layout: %s: %s", layout.name, layout.refusal);
  }
  const std::string shown(name.substr(0, 16));
  return Error::make(Code::kInvalidArgument, "layout: %s is none of %s", shown.c_str(),
                     list_names().c_str());
}

Status check_form(const Form& form, Attention attention, const char* name) {
  const bool grouped = attention == Attention::kGrouped;
  if (form.order == nullptr || form.tensors == nullptr) {
    return Error::make(Code::kUnsupported, "layout: %s is not for %s attention", name,
                       grouped ? "grouped" : "latent");
  }
  const char* const wanted = grouped ? "KLBHNC" : "KLBNC";
  const std::string order = form.order;
  if (!names_each_once(order + form.tensors, wanted) || order.empty() || order.back() != 'C' ||
      order.find('B') == std::string::npos) {
    return Error::make(Code::kInvalidArgument,
                       "layout: %s: order %s and tensors %s, expected each of %s once, C last in "
                       "order and B before it",
                       name, form.order, form.tensors, wanted);
  }
  if (std::strpbrk(form.tensors, "HN") != nullptr) {
    return Error::make(Code::kInvalidArgument,
                       "layout: %s: tensors %s, expected none of H and N: heads and tokens of a "
                       "page lie in one tensor",
                       name, form.tensors);
  }
  return {};
}

}  // namespace cachalot::kv
