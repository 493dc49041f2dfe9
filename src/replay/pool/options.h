// What a replay is asked to do, and the pool that follows from it.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "memory/coherence.h"
#include "node/archive/archive_options.h"
#include "pool/format/format.h"
#include "replay/pool/payload.h"
#include "storage/backends.h"
#include "storage/catalogue.h"
#include "trace/request/synthetic_prefix.h"
#include "trace/request/trace_format.h"

namespace cachalot::replay {

inline constexpr std::uint32_t kMaxEngines = 64;
inline constexpr std::uint32_t kMaxPasses = 8;

// The storage behind the pool of a replay; none without a URI.
struct StorageOptions {
  std::string uri;  // storage/backends.h
  storage::BackendSecrets secrets = {};
  storage::Limits limits = {};
  std::uint64_t write_bytes_per_day = 0;  // 0: no limit
  node::WritePolicy write_policy = node::WritePolicy::kThrough;
};

struct ReplayOptions {
  std::string trace;  // file of requests (trace/request/request_trace.h)
  std::uint64_t block_tokens = 512;
  std::uint64_t block_bytes = 65536;  // payload of a block: whole lines
  std::uint64_t capacity_blocks = 20000;
  std::uint32_t engines = 2;  // 1 to kMaxEngines
  std::uint32_t devices = 4;
  memory::DomainKind domain = memory::DomainKind::kNoncoherent;
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
  // As pool::CreateOptions::paths; they must not exist, and do not when the replay is over.
  // None: memfds.
  std::vector<std::string> pool_paths;
  StorageOptions storage = {};
};

// How many blocks a client holds in advance: fewer of large ones.
std::uint32_t grant_target(std::uint64_t block_bytes);

// The pool for it. Grants and blocks in flight come on top of the capacity, so that no block is
// evicted but to make room for another.
// @errors kInvalidArgument: an option out of range, named with its value
Result<pool::Geometry> pool_geometry(const ReplayOptions& options);

// @errors kInvalidArgument: as above, and all other options
Status check_options(const ReplayOptions& options);

// Names everything that makes payloads incompatible.
std::string fingerprint(const ReplayOptions& options);

}  // namespace cachalot::replay
