// What a replay is asked to do, and the pool that follows from it.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "node/archive/archive_options.h"
#include "pool/format/format.h"
#include "replay/pool/payload.h"
#include "storage/backends.h"
#include "storage/catalogue.h"
#include "trace/request/synthetic_prefix.h"
#include "trace/request/trace_format.h"

namespace cachalot::replay {

inline constexpr std::uint32_t kMaxEngines = 64;
inline constexpr std::uint32_t kMaxHosts = 64;
inline constexpr std::uint32_t kMaxPasses = 8;

// What lies behind each pool of a replay; nothing without a URI.
struct StorageOptions {
  std::vector<std::string> uris;  // storage/backends.h
  storage::BackendSecrets secrets = {};
  storage::Limits limits = {};
  std::uint64_t write_bytes_per_day = 0;  // 0: no limit
  node::WritePolicy write_policy = node::WritePolicy::kThrough;
};

// Which host takes which request.
enum class HostPolicy {
  kRoundRobin,  // request i: host i modulo N
  kRandom,      // by the seed
  kPrefix,      // by the first block's hash: requests with the same beginning meet
};

// "round_robin", "random", "prefix". @errors kInvalidArgument
Result<HostPolicy> parse_host_policy(const std::string& text);
const char* host_policy_name(HostPolicy policy);

// Several pools, each with a keeper and engines of its own, as on machines of their own.
struct HostOptions {
  std::uint32_t count = 0;  // 0: one pool
  HostPolicy policy = HostPolicy::kRoundRobin;
  bool has_peers = false;     // each keeper reads from the pools of the others
  bool keeps_copies = false;  // KeeperOptions::copies_first is off
  // Each request begins after the one before has ended and all hosts know of its blocks: the hits repeat.
  bool is_in_order = false;
  bool has_networks = false;           // peers speak over links of their own (host_network.h)
  std::uint64_t link_bytes_per_s = 0;  // that a host sends over its link; 0: no limit
};

struct ReplayOptions {
  std::string trace;  // file of requests (trace/request/request_trace.h)
  std::uint64_t block_tokens = 512;
  std::uint64_t block_bytes = 65536;  // payload of a block: whole lines
  std::uint64_t capacity_blocks = 20000;
  std::uint32_t engines = 2;  // of each host; 1 to kMaxEngines, as all of them together
  HostOptions hosts = {};
  std::uint32_t devices = 4;
  std::string domain = "noncoherent";  // as pool::set_domains() takes it
  std::string policy = "lru";
  std::string model;                 // goes into the namespace's fingerprint; may be empty
  std::uint64_t seed = 1;            // likewise: other seeds, other hashes and bytes
  std::uint64_t limit_requests = 0;  // 0: the whole trace
  std::uint32_t passes = 1;          // times that the trace is replayed, 1 to kMaxPasses
  double speed = 0;                  // of the trace's own time; 0: as fast as possible
  VerifyMode verify = VerifyMode::kFull;
  bool skip_bad_lines = false;
  trace::TraceFormat trace_format = trace::TraceFormat::kAuto;
  std::optional<trace::SyntheticPrefix> synthetic_prefix = {};  // for a trace without block ids
  double time_unit_ms = 0;                                      // as trace::RequestTraceOptions
  std::function<void(const std::string&)> warn = {};            // likewise
  // As pool::CreateOptions::paths; they must not exist, and do not when the replay is over.
  // None: memfds.
  std::vector<std::string> pool_paths;
  StorageOptions storage = {};

  std::uint32_t host_count() const { return hosts.count == 0 ? 1 : hosts.count; }
  std::uint32_t all_engines() const { return engines * host_count(); }
  // Whether blocks may come from behind a pool.
  bool has_sources() const { return hosts.has_peers || !storage.uris.empty(); }
};

// How many blocks a client holds in advance: fewer of large ones.
std::uint32_t grant_target(std::uint64_t block_bytes);

// The pool of each host. Grants and blocks in flight come on top of the capacity, so that no block is
// evicted but to make room for another.
// @errors kInvalidArgument: an option out of range, named with its value
Result<pool::Geometry> pool_geometry(const ReplayOptions& options);

// @errors kInvalidArgument: as above, and all other options
Status check_options(const ReplayOptions& options);

// Names everything that makes payloads incompatible.
std::string fingerprint(const ReplayOptions& options);

}  // namespace cachalot::replay
