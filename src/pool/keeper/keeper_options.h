// What a keeper is told: limits, intervals, what to evict, and its name in reports.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "block_hash/block_hash.h"

namespace cachalot::pool {

// A block that is never evicted once it is there, and its whole prefix with it.
struct PinnedBlock {
  BlockHash namespace_digest;
  BlockHash hash;
};
// Blocks of namespaces of lower priority are evicted first, whatever their order.
struct NamespacePriority {
  BlockHash namespace_digest;
  std::uint32_t priority = 0;
};

// A namespace that has more live blocks than this gives way first when the pool is full.
struct NamespaceQuota {
  BlockHash namespace_digest;
  std::uint64_t bytes = 0;  // of blocks, whole ones
};

struct KeeperOptions {
  std::string policy = "lru";
  // Blocks that were not used for so long are evicted, also where there is room; looked at every 100 ms.
  // 0: never. What a keeper takes over counts as used then.
  std::uint64_t ttl_ns = 0;
  // What came from another host, which still has it, is evicted first, until a second prompt uses it
  // (eviction/wrappers/copies_first.h); not where there are priorities.
  bool copies_first = false;
  std::vector<PinnedBlock> pins = {};
  std::vector<NamespacePriority> priorities = {};
  std::vector<NamespaceQuota> quotas = {};  // at most 64
  // of 0 to 7: a namespace that is not in the list
  static constexpr std::uint32_t kDefaultPriority = 4;
  std::uint32_t max_grants = 256;              // blocks one client may hold at a time
  std::uint64_t tend_interval_ns = 2'000'000;  // between two looks at the client table
  std::uint32_t polls_between_clock_reads = 64;
  // A client whose heartbeat stands still for so long, by the keeper's clock, is suspected: it is
  // served no more, and what it holds is quarantined. 0: never.
  std::uint64_t suspect_after_ns = 10'000'000'000;
  std::uint64_t watch_interval_ns = 100'000'000;  // between two looks at heartbeats and processes
  // directory lines compared with memory at each look at the table
  std::uint32_t scrub_lines = 64;
  std::uint32_t takeover_threads = 1;  // that read and write the directory when it begins
  // The takeover reads every payload that has a checksum, and drops blocks whose bytes are wrong.
  bool verify_payloads = false;
  // Devices that were added to the pool and cannot be mapped here are given up, with their blocks. Else the keeper
  // does not begin.
  bool without_lost_devices = false;
  // for start(): bit k: keeper area k is in use by another process
  std::uint32_t avoid_slots = 0;
  // The keeper's name in reports.
  std::uint32_t pid = 0;
  std::uint64_t start_time = 0;
  std::uint64_t boot_id_low = 0, boot_id_high = 0;
  std::uint32_t pid_namespace = 0, time_namespace = 0;
  // This machine's number in the pool. Keepers run on hosts 0 and 1 only: each has two of the four areas, and every other
  // epoch, so that two of them never choose the same, though no lock holds between machines.
  std::uint32_t host = 0;
  std::string version = {};  // of its program
  // The wall clock of reports, in Unix seconds. Passed in, so that simulated runs repeat exactly. None: 0.
  std::function<std::uint64_t()> unix_s = {};
  // Writes the pool back to its files, where it lies in files, when the keeper has stopped in order. None: nothing does.
  std::function<Status()> flush = {};
  // Writes the page of the first device that begins at `offset` back to its file. Asked once, before the keeper serves, if
  // the last one had written all back.
  std::function<Status(std::uint64_t offset)> flush_page = {};
  // Doorbells work between processes of one machine only.
  bool use_doorbells = true;

  // @errors kInvalidArgument: no such policy, no grants, a priority out of range
  Status check() const;
};

}  // namespace cachalot::pool
