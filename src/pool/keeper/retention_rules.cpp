#include "pool/keeper/retention_rules.h"

#include <algorithm>
#include <tuple>

namespace cachalot::pool {
namespace {

bool is_before(const PinnedBlock& a, const PinnedBlock& b) {
  const auto key = [](const PinnedBlock& pin) {
    return std::tuple(pin.namespace_digest.low, pin.namespace_digest.high, pin.hash.low,
                      pin.hash.high);
  };
  return key(a) < key(b);
}

}  // namespace

RetentionRules::RetentionRules(const KeeperOptions& options, const Namespaces& namespaces)
    : namespaces_(namespaces), pins_(options.pins), priorities_(options.priorities) {
  std::sort(pins_.begin(), pins_.end(), is_before);
}

std::uint32_t RetentionRules::priority_of(std::uint32_t namespace_id) const {
  if (namespaces_.is_known(namespace_id)) {
    for (const NamespacePriority& wanted : priorities_) {
      if (wanted.namespace_digest == namespaces_.digest_of(namespace_id)) return wanted.priority;
    }
  }
  return KeeperOptions::kDefaultPriority;
}

bool RetentionRules::is_in_list(std::uint32_t namespace_id, const BlockHash& hash) const {
  if (!namespaces_.is_known(namespace_id)) return false;
  return std::binary_search(pins_.begin(), pins_.end(),
                            PinnedBlock{namespaces_.digest_of(namespace_id), hash}, is_before);
}

}  // namespace cachalot::pool
