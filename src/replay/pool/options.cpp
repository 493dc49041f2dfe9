#include "replay/pool/options.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>

#include "eviction/policy_kind.h"
#include "memory/line.h"
#include "pool/format/domains.h"

namespace cachalot::replay {
namespace {

constexpr std::uint64_t kGrantedBytes = std::uint64_t{32} << 20;  // about, for a client
constexpr std::uint32_t kFewestGrants = 4;
constexpr std::uint32_t kMostGrants = 64;

Error out_of_range(const char* what, std::uint64_t value, std::uint64_t least, std::uint64_t most) {
  return Error::make(Code::kInvalidArgument,
                     "%s: %" PRIu64 " is not within %" PRIu64 " to %" PRIu64, what, value, least,
                     most);
}

}  // namespace

Result<HostPolicy> parse_host_policy(const std::string& text) {
  for (const HostPolicy policy :
       {HostPolicy::kRoundRobin, HostPolicy::kRandom, HostPolicy::kPrefix}) {
    if (text == host_policy_name(policy)) return policy;
  }
  return Error::make(Code::kInvalidArgument,
                     "host policy: \"%.40s\", expected round_robin, random or prefix",
                     text.c_str());
}

const char* host_policy_name(HostPolicy policy) {
  switch (policy) {
    case HostPolicy::kRoundRobin:
      return "round_robin";
    case HostPolicy::kRandom:
      return "random";
    case HostPolicy::kPrefix:
      break;
  }
  return "prefix";
}

std::uint32_t grant_target(std::uint64_t block_bytes) {
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      kGrantedBytes / std::max<std::uint64_t>(block_bytes, 1), kFewestGrants, kMostGrants));
}

Result<pool::Geometry> pool_geometry(const ReplayOptions& options) {
  constexpr std::uint64_t kMostBlocks = std::uint64_t{1} << 31;
  if (options.engines == 0 || options.engines > kMaxEngines) {
    return out_of_range("engines", options.engines, 1, kMaxEngines);
  }
  if (options.hosts.count > kMaxHosts || options.all_engines() > kMaxEngines) {
    return Error::make(Code::kInvalidArgument,
                       "hosts: %u with %u engines each, expected at most %u engines in all",
                       options.host_count(), options.engines, kMaxEngines);
  }
  if (options.block_bytes == 0 || options.block_bytes % memory::kLineBytes != 0) {
    return Error::make(Code::kInvalidArgument,
                       "block_bytes: %" PRIu64 " is not a multiple of 64, at least 64",
                       options.block_bytes);
  }
  if (options.capacity_blocks == 0 || options.capacity_blocks > kMostBlocks) {
    return out_of_range("capacity_blocks", options.capacity_blocks, 1, kMostBlocks);
  }
  // What brings blocks from behind the pool is a client, too.
  const std::uint32_t clients = options.engines + (options.has_sources() ? 1 : 0);
  // A client holds at most its target, and as much again in flight to be published.
  const std::uint64_t held = (std::uint64_t{clients} * 2 + 1) * grant_target(options.block_bytes);
  pool::Geometry geometry;
  geometry.devices = options.devices;
  CACHALOT_TRY(pool::set_domains(geometry, options.domain));
  geometry.block_bytes = options.block_bytes;
  geometry.capacity_blocks = static_cast<std::uint32_t>(options.capacity_blocks);
  geometry.blocks = static_cast<std::uint32_t>(options.capacity_blocks + held);
  geometry.directory_slots = pool::rated_directory_slots(geometry.capacity_blocks);
  geometry.clients = clients + 1;  // and the operators'
  CACHALOT_TRY_ASSIGN(geometry.device_bytes, pool::device_bytes_needed(geometry));
  return geometry;
}

Status check_options(const ReplayOptions& options) {
  CACHALOT_TRY(pool_geometry(options));
  if (options.trace.empty()) return Error::make(Code::kInvalidArgument, "trace: no file was given");
  if (options.block_tokens == 0) {
    return out_of_range("block_tokens", 0, 1, ~std::uint64_t{0});
  }
  if (options.passes == 0 || options.passes > kMaxPasses) {
    return out_of_range("passes", options.passes, 1, kMaxPasses);
  }
  if (!std::isfinite(options.speed) || options.speed < 0) {
    return Error::make(Code::kInvalidArgument, "speed: %g is not a positive factor", options.speed);
  }
  if (options.hosts.has_networks && !options.storage.uris.empty()) {
    return Error::make(
        Code::kInvalidArgument,
        "storage: %.120s, expected none for hosts with networks of their own, from which no "
        "server is reached",
        options.storage.uris.front().c_str());
  }
  if (options.hosts.count != 0 && !options.pool_paths.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "pool: %.120s, expected no path for several hosts, whose pools are unnamed",
                       options.pool_paths.front().c_str());
  }
  CACHALOT_TRY(eviction::parse_pool_policy(options.policy));
  return {};
}

std::string fingerprint(const ReplayOptions& options) {
  return "replay/model=" + options.model + "/block_tokens=" + std::to_string(options.block_tokens) +
         "/block_bytes=" + std::to_string(options.block_bytes) +
         "/seed=" + std::to_string(options.seed);
}

}  // namespace cachalot::replay
