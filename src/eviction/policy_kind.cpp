#include "eviction/policy_kind.h"

namespace cachalot::eviction {
namespace {

struct PolicyRow {
  PolicyKind kind;
  const char* name;
  bool has_stream, has_leaf, is_online;
};

// In the order in which lists show them.
constexpr PolicyRow kPolicies[] = {
    {PolicyKind::kLru, "lru", true, true, true},
    {PolicyKind::kFifo, "fifo", true, true, true},
    {PolicyKind::kLfu, "lfu", true, true, true},
    {PolicyKind::kLengthAware, "length_aware", true, true, true},
    {PolicyKind::kHitDensity, "hit_density", false, true, true},
    {PolicyKind::kS3Fifo, "s3fifo", true, false, true},
    {PolicyKind::kArc, "arc", true, false, true},
    {PolicyKind::kWTinyLfu, "wtinylfu", true, false, true},
    {PolicyKind::kOpt, "opt", true, true, false},
};

const PolicyRow* find(std::string_view name) {
  for (const PolicyRow& row : kPolicies) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

template <class Wanted>
std::string names(Wanted&& wanted, const char* separator = ", ") {
  std::string list;
  for (const PolicyRow& row : kPolicies) {
    if (!wanted(row)) continue;
    if (!list.empty()) list += separator;
    list += row.name;
  }
  return list;
}

Error unknown(std::string_view name, const char* what, const std::string& expected) {
  const std::string shown(name.substr(0, 60));
  return Error::make(Code::kInvalidArgument, "policy \"%s\" %s, expected one of: %s", shown.c_str(),
                     what, expected.c_str());
}

}  // namespace

const char* policy_name(PolicyKind kind) {
  for (const PolicyRow& row : kPolicies) {
    if (row.kind == kind) return row.name;
  }
  return "unknown";
}

Result<PolicyKind> parse_policy(std::string_view name) {
  if (const PolicyRow* const row = find(name)) return row->kind;
  return unknown(name, "is unknown", names([](const PolicyRow&) { return true; }));
}

Result<PolicyKind> parse_pool_policy(std::string_view name) {
  const PolicyRow* const row = find(name);
  if (row == nullptr) return unknown(name, "is unknown", pool_policy_names());
  if (!row->has_leaf) return unknown(name, "exists in stream mode only", pool_policy_names());
  if (!row->is_online) return unknown(name, "needs to know the future", pool_policy_names());
  return row->kind;
}

bool has_mode(PolicyKind kind, CacheMode mode) {
  for (const PolicyRow& row : kPolicies) {
    if (row.kind == kind) return mode == CacheMode::kLeaf ? row.has_leaf : row.has_stream;
  }
  return false;
}

std::vector<PolicyKind> online_policies() {
  std::vector<PolicyKind> kinds;
  for (const PolicyRow& row : kPolicies) {
    if (row.is_online) kinds.push_back(row.kind);
  }
  return kinds;
}

std::vector<PolicyKind> pool_policies() {
  std::vector<PolicyKind> kinds;
  for (const PolicyRow& row : kPolicies) {
    if (row.has_leaf && row.is_online) kinds.push_back(row.kind);
  }
  return kinds;
}

std::string pool_policy_names(const char* separator) {
  return names([](const PolicyRow& row) { return row.has_leaf && row.is_online; }, separator);
}

std::string policy_names(CacheMode mode, const char* separator) {
  return names(
      [mode](const PolicyRow& row) {
        return mode == CacheMode::kLeaf ? row.has_leaf : row.has_stream;
      },
      separator);
}

const char* cache_mode_name(CacheMode mode) {
  return mode == CacheMode::kStream ? "stream" : "leaf";
}

Result<CacheMode> parse_cache_mode(std::string_view name) {
  for (const CacheMode mode : {CacheMode::kStream, CacheMode::kLeaf}) {
    if (name == cache_mode_name(mode)) return mode;
  }
  const std::string shown(name.substr(0, 60));
  return Error::make(Code::kInvalidArgument, "mode: %s is unknown, expected stream or leaf",
                     shown.c_str());
}

}  // namespace cachalot::eviction
