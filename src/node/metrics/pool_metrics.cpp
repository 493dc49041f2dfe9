#include "node/metrics/pool_metrics.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace cachalot::node {
namespace {

using pool::ClientCounter;
using pool::KeeperCounter;
using enum MetricType;

constexpr MetricFamily kBuild = {"cachalot_build", kInfo, "", "Version of the keeper's program."};
constexpr MetricFamily kRuling = {"cachalot_keeper_ruling", kGauge, "",
                                  "1 while this process's keeper rules the pool, else 0."};
constexpr MetricFamily kPool = {"cachalot_pool", kInfo, "", "Identity of the pool."};
constexpr MetricFamily kKeeper = {"cachalot_keeper", kInfo, "", "How the keeper serves."};
constexpr MetricFamily kEpoch = {"cachalot_keeper_epoch", kGauge, "",
                                 "Number of the keeper's reign: each start and takeover adds one."};
constexpr MetricFamily kStart = {"cachalot_keeper_start_time_seconds", kGauge, "seconds",
                                 "When the keeper began to serve, in Unix time."};
constexpr MetricFamily kPublications = {
    "cachalot_keeper_publications", kCounter, "",
    "Times the keeper published its counters: stands still if its thread hangs."};
constexpr MetricFamily kBlocks = {"cachalot_pool_blocks", kGauge, "blocks",
                                  "Blocks of the pool by state; the sum is constant."};
constexpr MetricFamily kCapacity = {"cachalot_pool_capacity_blocks", kGauge, "blocks",
                                    "Limit of live blocks."};
constexpr MetricFamily kBlockBytes = {"cachalot_pool_block_bytes", kGauge, "bytes",
                                      "Size of a block."};
constexpr MetricFamily kClients = {"cachalot_pool_clients", kGauge, "",
                                   "Client slots in use, by state."};
constexpr MetricFamily kSlots = {"cachalot_pool_client_slots", kGauge, "",
                                 "Client slots for engines, used or not."};
constexpr MetricFamily kNamespaces = {"cachalot_pool_namespaces", kGauge, "",
                                      "Namespaces that clients attached with."};
constexpr MetricFamily kNamespaceLive = {"cachalot_namespace_live_blocks", kGauge, "blocks",
                                         "Blocks of a namespace, by its number and name."};
constexpr MetricFamily kNamespaceQuota = {
    "cachalot_namespace_quota_blocks", kGauge, "blocks",
    "Blocks that a namespace may have before it gives way first; only of those with a quota."};
constexpr MetricFamily kNamespaceCommitted = {"cachalot_namespace_committed_blocks", kCounter,
                                              "blocks",
                                              "Blocks of a namespace that this keeper published."};
constexpr MetricFamily kNamespaceEvicted = {
    "cachalot_namespace_evicted_blocks", kCounter, "blocks",
    "Blocks of a namespace that this keeper evicted, for whatever reason."};
constexpr MetricFamily kEvicted = {"cachalot_keeper_evicted_blocks", kCounter, "blocks",
                                   "Blocks that the keeper evicted, by reason."};
constexpr MetricFamily kRefusedGrants = {"cachalot_keeper_refused_grants", kCounter, "",
                                         "Requests for blocks that got none, by reason."};
constexpr MetricFamily kRefusedCommits = {
    "cachalot_keeper_refused_commits", kCounter, "",
    "Blocks that clients wrote and the keeper did not publish, by reason."};
constexpr MetricFamily kUsed = {
    "cachalot_client_used_blocks", kCounter, "blocks",
    "Blocks that prompts used, by source: in the pool when the prompt came (pool), from another "
    "instance by a transfer (peer), brought by storage for the prompt (storage)."};

template <class Counter>
struct Labelled {
  const char* label;
  Counter counter;
};

constexpr Labelled<KeeperCounter> kStates[] = {
    {"free", KeeperCounter::kFree},    {"granted", KeeperCounter::kGranted},
    {"live", KeeperCounter::kLive},    {"limbo", KeeperCounter::kLimbo},
    {"bad", KeeperCounter::kBad},      {"quarantined", KeeperCounter::kQuarantined},
    {"absent", KeeperCounter::kAbsent}};
constexpr Labelled<KeeperCounter> kEvictionReasons[] = {
    {"capacity", KeeperCounter::kCapacityEvictions},
    {"bucket", KeeperCounter::kBucketEvictions},
    {"expired", KeeperCounter::kExpired},
    {"requested", KeeperCounter::kRequestedEvictions}};
constexpr Labelled<KeeperCounter> kCommitReasons[] = {
    {"no_space", KeeperCounter::kNoSpaceCommits},
    {"no_parent", KeeperCounter::kNoParentCommits},
    {"invalid", KeeperCounter::kInvalidCommits},
    {"not_held", KeeperCounter::kNotHeldCommits}};
constexpr Labelled<ClientCounter> kSources[] = {{"pool", ClientCounter::kUsedPoolBlocks},
                                                {"peer", ClientCounter::kUsedPeerBlocks},
                                                {"storage", ClientCounter::kUsedStorageBlocks}};
constexpr Labelled<KeeperCounter> kRefusalReasons[] = {
    {"no_space", KeeperCounter::kNoSpaceGrants}, {"over_limit", KeeperCounter::kOverLimitGrants}};

template <class Counter>
struct Total {
  Counter counter;
  MetricFamily family;
};

constexpr Total<KeeperCounter> kKeeperTotals[] = {
    {KeeperCounter::kRequests,
     {"cachalot_keeper_requests", kCounter, "", "Messages of clients that the keeper served."}},
    {KeeperCounter::kMalformed,
     {"cachalot_keeper_malformed_requests", kCounter, "", "Messages that were not valid."}},
    {KeeperCounter::kCommits,
     {"cachalot_keeper_committed_blocks", kCounter, "blocks", "Blocks that were published."}},
    {KeeperCounter::kDuplicates,
     {"cachalot_keeper_duplicate_blocks", kCounter, "blocks",
      "Commits of blocks that were published already."}},
    {KeeperCounter::kRefused,
     {"cachalot_keeper_refused_blocks", kCounter, "blocks",
      "Commits without a published parent, without room, or invalid."}},
    {KeeperCounter::kNoSpaceNamespaces,
     {"cachalot_keeper_refused_namespaces", kCounter, "",
      "Namespaces that the pool had no room for."}},
    {KeeperCounter::kGrants,
     {"cachalot_keeper_granted_blocks", kCounter, "blocks", "Blocks granted to clients."}},
    {KeeperCounter::kTouches,
     {"cachalot_keeper_touches", kCounter, "", "Hits that clients reported."}},
    {KeeperCounter::kStaleTouches,
     {"cachalot_keeper_stale_touches", kCounter, "", "Reported hits of blocks evicted since."}},
    {KeeperCounter::kSuspicions,
     {"cachalot_keeper_suspicions", kCounter, "", "Clients that stopped answering."}},
    {KeeperCounter::kReleasedBlocks,
     {"cachalot_keeper_released_blocks", kCounter, "blocks",
      "Quarantined blocks that were freed after evidence."}},
    {KeeperCounter::kRepairedLines,
     {"cachalot_keeper_repaired_lines", kCounter, "",
      "Damaged directory and keeper lines that were written again."}},
};

constexpr Total<ClientCounter> kClientTotals[] = {
    {ClientCounter::kPrompts,
     {"cachalot_client_prompts", kCounter, "", "Prompts that asked for blocks, each once."}},
    {ClientCounter::kPromptBlocks,
     {"cachalot_client_prompt_blocks", kCounter, "blocks",
      "Blocks that prompts asked for; those of them that were used: cachalot_client_used_blocks."}},
    {ClientCounter::kLookups,
     {"cachalot_client_lookups", kCounter, "",
      "Calls that looked blocks up: a prompt may be looked up more than once."}},
    {ClientCounter::kLookedUpBlocks,
     {"cachalot_client_looked_up_blocks", kCounter, "blocks",
      "Blocks of these calls, each time that they were looked up."}},
    {ClientCounter::kHitBlocks,
     {"cachalot_client_hit_blocks", kCounter, "blocks",
      "Blocks of these calls that were in the pool."}},
    {ClientCounter::kReadBlocks,
     {"cachalot_client_read_blocks", kCounter, "blocks", "Blocks that were loaded."}},
    {ClientCounter::kReadBytes,
     {"cachalot_client_read_bytes", kCounter, "bytes", "Bytes that were loaded."}},
    {ClientCounter::kStaleReads,
     {"cachalot_client_stale_reads", kCounter, "",
      "Reads that were discarded because the block was evicted meanwhile."}},
    {ClientCounter::kDamagedReads,
     {"cachalot_client_damaged_reads", kCounter, "", "Reads with a wrong checksum."}},
    {ClientCounter::kPuts, {"cachalot_client_puts", kCounter, "", "Blocks written, also in vain."}},
    {ClientCounter::kWrittenBytes,
     {"cachalot_client_written_bytes", kCounter, "bytes", "Bytes that were written."}},
    {ClientCounter::kCommitted,
     {"cachalot_client_committed_blocks", kCounter, "blocks", "Blocks that were stored."}},
    {ClientCounter::kDuplicates,
     {"cachalot_client_duplicate_blocks", kCounter, "blocks",
      "Blocks that another client had stored first."}},
    {ClientCounter::kRefused,
     {"cachalot_client_refused_blocks", kCounter, "blocks", "Blocks that the keeper refused."}},
    {ClientCounter::kLostReports,
     {"cachalot_client_lost_reports", kCounter, "", "Hits that could not be reported."}},
    {ClientCounter::kReattachments,
     {"cachalot_client_reattachments", kCounter, "",
      "Times a client attached again, to a new keeper or after a suspicion."}},
};

// A text of fixed size in a line, padded with zeros.
template <std::size_t kBytes>
std::string_view text_in(const char (&text)[kBytes]) {
  return {text, strnlen(text, kBytes)};
}

void write_identity(Exposition& exposition, const pool::Access& access) {
  char uuid[40], version[16];
  std::snprintf(uuid, sizeof uuid, "%016" PRIx64 "%016" PRIx64, access.id.high, access.id.low);
  std::snprintf(version, sizeof version, "%" PRIu32, pool::version_of(access.geometry));
  const Label labels[] = {{"uuid", uuid},
                          {"format_version", version},
                          {"domain", memory::domain_name(access.geometry.domain)}};
  exposition.begin(kPool);
  exposition.sample(labels, 1);
  exposition.single(kBlockBytes, access.geometry.block_bytes);
  exposition.single(kSlots, access.geometry.engine_clients());
}

void write_service(Exposition& exposition, const pool::PoolState& state) {
  exposition.single(kCapacity, state.capacity_blocks());
  exposition.single(kEpoch, state.read_keepers().epoch);
  std::uint32_t publications = 0;
  if (state.read_publications(publications)) exposition.single(kPublications, publications);
  pool::KeeperInfoLine info{};
  if (!state.read_keeper_info(info)) return;
  exposition.begin(kKeeper);
  exposition.sample({"policy", text_in(info.policy)}, 1);
  exposition.single(kStart, info.since_unix_s);
}

void write_clients(Exposition& exposition, const pool::PoolState& state, std::uint32_t slots) {
  std::uint64_t served = 0, suspected = 0, held = 0;
  for (std::uint32_t slot = 0; slot < slots; ++slot) {
    const std::uint32_t flags = state.read_view(slot).flags;
    if ((flags & pool::kViewHeld) != 0) {
      ++held;
    } else if ((flags & pool::kViewSuspected) != 0) {
      ++suspected;
    } else if ((flags & pool::kViewOpen) != 0) {
      ++served;
    }
  }
  exposition.begin(kClients);
  exposition.sample({"state", "served"}, served);
  exposition.sample({"state", "suspected"}, suspected);
  exposition.sample({"state", "held"}, held);
}

void write_namespaces(Exposition& exposition, const pool::PoolState& state) {
  struct Part {
    const MetricFamily& family;
    std::uint64_t pool::NamespaceCounters::*value;
  };
  constexpr Part kParts[] = {{kNamespaceLive, &pool::NamespaceCounters::live_blocks},
                             {kNamespaceQuota, &pool::NamespaceCounters::quota_blocks},
                             {kNamespaceCommitted, &pool::NamespaceCounters::committed_blocks},
                             {kNamespaceEvicted, &pool::NamespaceCounters::evicted_blocks}};
  const std::vector<pool::NamespaceName> namespaces = state.read_namespaces();
  for (const Part& part : kParts) {
    exposition.begin(part.family);
    for (const pool::NamespaceName& one : namespaces) {
      const std::uint64_t value = state.read_namespace_counters(one.id).*part.value;
      if (&part.family == &kNamespaceQuota && value == 0) continue;
      const std::string id = std::to_string(one.id);
      const Label labels[] = {{"namespace", id}, {"name", one.name}};
      exposition.sample(labels, value);
    }
  }
}

template <class Counter, std::size_t kCount>
void write_labelled(Exposition& exposition, const MetricFamily& family, const char* label,
                    const Labelled<Counter> (&parts)[kCount],
                    const pool::Counters<Counter>& counters) {
  exposition.begin(family);
  for (const Labelled<Counter>& part : parts)
    exposition.sample({label, part.label}, counters[part.counter]);
}

void write_keeper_counters(Exposition& exposition, const pool::KeeperCounters& counters) {
  write_labelled(exposition, kBlocks, "state", kStates, counters);
  exposition.single(kNamespaces, counters[KeeperCounter::kNamespaces]);
  write_labelled(exposition, kEvicted, "reason", kEvictionReasons, counters);
  write_labelled(exposition, kRefusedGrants, "reason", kRefusalReasons, counters);
  write_labelled(exposition, kRefusedCommits, "reason", kCommitReasons, counters);
  for (const Total<KeeperCounter>& total : kKeeperTotals)
    exposition.single(total.family, counters[total.counter]);
}

}  // namespace

void write_process_metrics(Exposition& exposition, bool is_ruling) {
  exposition.begin(kBuild);
  exposition.sample({"version", CACHALOT_VERSION}, 1);
  exposition.single(kRuling, is_ruling ? 1 : 0);
}

void write_pool_metrics(Exposition& exposition, const pool::Pool& pool) {
  const pool::PoolState state = pool.state();
  const pool::Access& access = pool.access();
  write_identity(exposition, access);
  write_service(exposition, state);
  write_clients(exposition, state, access.geometry.clients);
  write_namespaces(exposition, state);
  pool::KeeperCounters counters;
  if (state.read_keeper_counters(counters)) write_keeper_counters(exposition, counters);
  const pool::ClientCounters totals = state.read_totals();
  for (const Total<ClientCounter>& total : kClientTotals)
    exposition.single(total.family, totals[total.counter]);
  write_labelled(exposition, kUsed, "source", kSources, totals);
}

}  // namespace cachalot::node
