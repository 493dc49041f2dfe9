#include "index/eviction_policy.h"

#include <algorithm>
#include <string>

#include "index/leaf_lru.h"

namespace cachalot::index {
namespace {

// What the command line will offer one day, so that asking for it today is not called a typo.
constexpr std::string_view kPlanned[] = {"lfu",      "fifo",         "s3fifo", "arc",
                                         "wtinylfu", "length_aware", "opt"};

}  // namespace

const char* policy_name(PolicyKind kind) {
  switch (kind) {
    case PolicyKind::kLru:
      return "lru";
  }
  return "unknown";
}

Result<PolicyKind> parse_policy(std::string_view name) {
  if (name == policy_name(PolicyKind::kLru)) return PolicyKind::kLru;
  const bool is_planned =
      std::find(std::begin(kPlanned), std::end(kPlanned), name) != std::end(kPlanned);
  const std::string shown(name.substr(0, 60));
  return Error::make(Code::kInvalidArgument, "policy: %s %s, expected one of: %s", shown.c_str(),
                     is_planned ? "is not in this version" : "is unknown",
                     policy_name(PolicyKind::kLru));
}

std::unique_ptr<EvictionPolicy> make_leaf_policy(PolicyKind kind, std::uint32_t capacity_nodes) {
  switch (kind) {
    case PolicyKind::kLru:
      return std::make_unique<LeafLru>(capacity_nodes);
  }
  CACHALOT_CHECK(false);
  return nullptr;
}

}  // namespace cachalot::index
