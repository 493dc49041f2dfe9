// What a replay found out, as plain numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "replay/pool/harness.h"
#include "replay/pool/workload.h"

namespace cachalot::replay {

struct Percentiles {
  double p50_us = 0;
  double p99_us = 0;
};

// How the engines spent their time, in seconds of all of them together. What is missing to
// engines * wall_s is bookkeeping, and waiting for requests to arrive.
struct TimeSpent {
  double lookup_s = 0;
  double read_s = 0;
  double verify_s = 0;
  double compute_s = 0;
  double write_s = 0;
  double fetch_s = 0;    // waiting for blocks from storage and peers
  double archive_s = 0;  // waiting for storage to keep up
};

struct ReplayReport {
  std::uint64_t requests = 0;
  std::uint64_t tokens_in = 0;
  std::uint64_t blocks_total = 0;
  std::uint64_t blocks_hit = 0;         // prefix-constrained, read and valid
  std::uint64_t blocks_hit_remote = 0;  // of these, written by another engine
  std::uint64_t blocks_written = 0;     // published
  std::uint64_t blocks_duplicate = 0;   // written, but another engine's came first
  std::uint64_t blocks_unstored = 0;    // missing and not stored
  double block_hit_rate = 0;
  double token_hit_rate = 0;
  std::uint64_t blocks_hit_storage = 0;  // of blocks_hit, those that came from storage
  std::uint64_t blocks_hit_peers = 0;    // likewise from the pools of other hosts
  StorageCounters storage;
  PeerCounters peers;
  std::uint64_t evictions = 0;
  std::uint64_t bytes_saved = 0;  // blocks_hit * block_bytes: what need not be computed
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  // Bytes per second that an engine spent inside read() and put(): copy, checksum, validation and
  // the wait for the keeper included, time without a core too.
  double read_gb_s = 0;
  double write_gb_s = 0;
  double total_gb_s = 0;  // both directions, all engines, over wall_s
  Percentiles lookup;
  Percentiles request;               // from when it was taken up to its last commit
  std::uint64_t verify_checked = 0;  // blocks
  std::uint64_t verify_checked_bytes = 0;
  std::uint64_t verify_errors = 0;  // blocks
  std::uint64_t stale_reads_discarded = 0;
  std::uint64_t damaged_reads = 0;
  std::uint64_t skipped_lines = 0;
  double wall_s = 0;   // from the first request to the end of the last
  double setup_s = 0;  // before: trace, pool, processes
  TimeSpent spent;
  // Each one's {requests, hits, remote hits}.
  struct PerEngine {
    std::uint64_t requests = 0;
    std::uint64_t blocks_hit = 0;
    std::uint64_t blocks_hit_remote = 0;
    std::uint64_t blocks_written = 0;
  };
  std::vector<PerEngine> engines;
  // Each host, with HostOptions::count.
  struct PerHost {
    std::uint64_t requests = 0;
    std::uint64_t blocks_total = 0, blocks_hit = 0, blocks_hit_storage = 0, blocks_hit_peers = 0;
    std::uint64_t verify_errors = 0;
  };
  std::vector<PerHost> hosts;
  // Each pass through the trace, as above; empty if there is one only.
  struct Pass {
    std::uint64_t requests = 0;
    std::uint64_t blocks_total = 0, blocks_hit = 0, blocks_hit_storage = 0, blocks_hit_peers = 0;
    std::uint64_t blocks_written = 0;
    double block_hit_rate = 0, token_hit_rate = 0;
    std::uint64_t bytes_read = 0, bytes_written = 0;
    double read_gb_s = 0, write_gb_s = 0;
    Percentiles lookup, request;
    std::uint64_t verify_checked = 0, verify_errors = 0;
    double wall_s = 0;  // from its first request to the end of its last
  };
  std::vector<Pass> passes;
  std::uint64_t pool_bytes = 0;  // of all devices of all pools
  // What the pools say of their clients' prompts: the same as blocks_total, blocks_hit, blocks_hit_storage and
  // blocks_hit_peers.
  std::uint64_t prompt_blocks = 0, used_blocks = 0, used_storage_blocks = 0, used_peer_blocks = 0;
  std::vector<std::string> faults;  // the first of each engine, in words

  // Nothing was wrong with any byte.
  bool is_sound() const { return verify_errors == 0 && damaged_reads == 0; }
};

// Sums up what the engines counted. @param options  of the same replay
ReplayReport make_report(const ReplayOptions& options, const Workload& workload,
                         const HarnessState& harness);

}  // namespace cachalot::replay
