#include "kv/block_order.h"

namespace cachalot::kv {
namespace {

constexpr BlockOrder kOrders[] = {
    // Each layer contiguous, so that it can be loaded alone: the default.
    {"layer_first", "LKNHC", "LNKC"},
    // The same for engines that keep heads apart (HND), or K and V packed.
    {"layer_first_hnd", "LKHNC", "LNKC"},
    {"layer_first_packed", "LNHKC", "LNKC"},
    {"layer_first_packed_hnd", "LHNKC", "LNKC"},
    // Latent and rope apart, for engines with two tensors.
    {"layer_first_split", "LKNHC", "LKNC"},
    // As SGLang's host pools have a page: token by token, or layer by layer.
    {"page_first", "KNLHC", "NLKC"},
    {"page_first_direct", "KLNHC", "LNKC"},
};

}  // namespace

std::span<const BlockOrder> block_orders() {
  return kOrders;
}

const BlockOrder& default_block_order() {
  return kOrders[0];
}

Result<const BlockOrder*> find_block_order(std::string_view name) {
  std::string known;
  for (const BlockOrder& order : kOrders) {
    if (name == order.name) return &order;
    known += (known.empty() ? "" : ", ") + std::string(order.name);
  }
  const std::string shown(name.substr(0, 40));
  return Error::make(Code::kInvalidArgument, "block order: %s is unknown, expected one of: %s",
                     shown.c_str(), known.c_str());
}

}  // namespace cachalot::kv
