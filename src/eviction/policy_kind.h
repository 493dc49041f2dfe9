// The eviction policies by name, and which of them exist in which mode.
#pragma once

#include <cachalot/result.h>

#include <string>
#include <string_view>
#include <vector>

namespace cachalot::eviction {

enum class PolicyKind {
  kLru,
  kFifo,
  kLfu,
  kLengthAware,
  kHitDensity,
  kS3Fifo,
  kArc,
  kWTinyLfu,
  kOpt,  // Belady's optimum: needs the future, so no cache can have it
};

enum class CacheMode {
  kStream,  // each block is looked up and inserted in order; any block may be evicted
  kLeaf,    // as the pool does: only childless blocks off the request's own path may be evicted; if
            // there is none, the rest of the request is not stored
};

const char* policy_name(PolicyKind kind);
// @errors kInvalidArgument: no such policy; the message lists those there are
Result<PolicyKind> parse_policy(std::string_view name);

// A policy that a pool can run: online, in leaf mode.
// @errors kInvalidArgument: no such policy, or not one of those; the message lists those there are
Result<PolicyKind> parse_pool_policy(std::string_view name);

bool has_mode(PolicyKind kind, CacheMode mode);

// All but the optimum.
std::vector<PolicyKind> online_policies();
// What a pool can run.
std::vector<PolicyKind> pool_policies();
// "lru, fifo, …": what a pool can run, or (with a mode) what `cachalot hitrate` can compute.
std::string pool_policy_names(const char* separator = ", ");
std::string policy_names(CacheMode mode, const char* separator = ", ");

// "stream", "leaf".
const char* cache_mode_name(CacheMode mode);
// @errors kInvalidArgument: neither of them
Result<CacheMode> parse_cache_mode(std::string_view name);

}  // namespace cachalot::eviction
