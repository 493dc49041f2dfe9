#include "eviction/leaf_order.h"

#include <algorithm>

namespace cachalot::eviction {
namespace {

struct OrderRow {
  LeafOrderKind kind;
  const char* name;
};

constexpr OrderRow kOrders[] = {
    {LeafOrderKind::kLru, "lru"},   {LeafOrderKind::kLfu, "lfu"},
    {LeafOrderKind::kFifo, "fifo"}, {LeafOrderKind::kLengthAware, "length_aware"},
    {LeafOrderKind::kSlru, "slru"}, {LeafOrderKind::kPriority, "priority"},
    {LeafOrderKind::kMru, "mru"},   {LeafOrderKind::kFilo, "filo"},
};

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool is_same_name(std::string_view one, std::string_view other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                    [](char a, char b) { return lower(a) == lower(b); });
}

}  // namespace

Rank LeafOrder::rank(const LeafHistory& leaf) const {
  switch (kind) {
    case LeafOrderKind::kLru:
      return {leaf.used_at, leaf.depth};
    case LeafOrderKind::kLfu:
      return LfuOrder::rank(leaf);
    case LeafOrderKind::kFifo:
      return FifoOrder::rank(leaf);
    case LeafOrderKind::kLengthAware:
      return LengthAwareOrder::rank(leaf);
    case LeafOrderKind::kSlru:
      return {leaf.uses >= protected_uses ? 1u : 0u, leaf.used_at};
    case LeafOrderKind::kPriority:  // the sign bit turned: negative ones come first
      return {static_cast<std::uint32_t>(leaf.priority) ^ 0x80000000u, leaf.used_at};
    case LeafOrderKind::kMru:
      return {~leaf.used_at, 0};
    case LeafOrderKind::kFilo:
      return {~leaf.stored_at, 0};
  }
  return {};
}

std::string leaf_order_names() {
  std::string list;
  for (const OrderRow& row : kOrders) {
    if (!list.empty()) list += ", ";
    list += row.name;
  }
  return list;
}

Result<LeafOrder> parse_leaf_order(std::string_view name) {
  for (const OrderRow& row : kOrders) {
    if (is_same_name(name, row.name)) return LeafOrder{.kind = row.kind};
  }
  const std::string shown(name.substr(0, 60));
  return Error::make(Code::kInvalidArgument, "eviction order: %s is unknown, expected one of: %s",
                     shown.c_str(), leaf_order_names().c_str());
}

}  // namespace cachalot::eviction
