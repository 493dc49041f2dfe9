#include "pool/format/statistics.h"

namespace cachalot::pool {

const char* counter_name(KeeperCounter counter) {
  static constexpr const char* kNames[] = {"free_blocks",
                                           "granted_blocks",
                                           "live_blocks",
                                           "limbo_blocks",
                                           "quarantined_blocks",
                                           "bad_blocks",
                                           "clients",
                                           "namespaces",
                                           "requests",
                                           "malformed_requests",
                                           "commits",
                                           "duplicates",
                                           "refused",
                                           "evictions",
                                           "touches",
                                           "stale_touches",
                                           "grants",
                                           "bucket_evictions",
                                           "suspicions",
                                           "released_blocks",
                                           "repaired_lines",
                                           "expired_blocks",
                                           "capacity_evictions",
                                           "requested_evictions",
                                           "no_space_grants",
                                           "over_limit_grants",
                                           "no_space_commits",
                                           "no_parent_commits",
                                           "invalid_commits",
                                           "not_held_commits",
                                           "no_space_namespaces",
                                           "absent_blocks"};
  static_assert(std::size(kNames) == KeeperCounters::kCount);
  return kNames[static_cast<std::uint32_t>(counter)];
}

const char* counter_name(ClientCounter counter) {
  static constexpr const char* kNames[] = {"lookups",
                                           "looked_up_blocks",
                                           "hit_blocks",
                                           "read_blocks",
                                           "read_bytes",
                                           "stale_reads",
                                           "damaged_reads",
                                           "puts",
                                           "written_bytes",
                                           "committed_blocks",
                                           "duplicate_blocks",
                                           "refused_blocks",
                                           "lost_reports",
                                           "reattachments",
                                           "prompts",
                                           "prompt_blocks",
                                           "used_pool_blocks",
                                           "used_peer_blocks",
                                           "used_storage_blocks"};
  static_assert(std::size(kNames) == ClientCounters::kCount);
  return kNames[static_cast<std::uint32_t>(counter)];
}

}  // namespace cachalot::pool
