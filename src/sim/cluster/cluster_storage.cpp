// The storage behind the pool: it brings blocks into the pool before a request reads them there, and gets a copy of
// all that the pool gets.
#include <algorithm>

#include "sim/cluster/cluster_run.h"

namespace cachalot::sim {

PrefixCache& Cluster::source_of(JobId id) {
  const JobState& state = jobs_[id];
  switch (state.cargo) {
    case Cargo::kPeerPrefix:
      return prefill_[state.source].cache;
    case Cargo::kStorageFetch:
      return storage_;
    default:
      return pool_;
  }
}

sched::KvPlan Cluster::plan_from_pool(JobId id, std::uint32_t at, std::uint64_t hit_tokens,
                                      bool with_storage) const {
  const sched::PrefillView view{.hit_tokens = hit_tokens,
                                .held_tokens = hit_tokens,
                                .pool_reads = network_.in_flight(prefill_[at].ports.pool_in)};
  sched::RequestView request{.input_tokens = job(id).input_tokens};
  request.pool_hit_tokens = workload_.tokens_of(job(id), pool_.match(path(id)));
  if (with_storage && has_storage()) {
    request.storage_hit_tokens = workload_.tokens_of(job(id), storage_.match(path(id)));
  }
  return sched::plan_with_pool(
      request,
      {.prefill = {&view, 1},
       .timing = timing_.prefill,
       .kv_bytes_per_token = options_.kv_bytes_per_token,
       .link = options_.link,
       .pool = options_.pool_link,
       .storage = options_.storage_link,
       .storage_reads = has_storage() ? network_.in_flight(storage_out_) : 0},
      0);
}

bool Cluster::begin_fetch(JobId id, const sched::KvPlan& plan) {
  JobState& state = jobs_[id];
  state.source_blocks = storage_.match(path(id));
  state.source_generation = storage_.generation();
  storage_.hold(path(id).first(state.source_blocks));
  state.is_waiting_for_kv = true;
  state.storage_tokens += plan.fetch_tokens;
  const double bytes = kv_bytes(plan.fetch_tokens);
  report_.storage_read_bytes += bytes;
  send(id, Cargo::kStorageFetch,
       {.links = {storage_out_, pool_in_},
        .link_count = 2,
        .bytes = bytes,
        .latency_s = options_.storage_link.latency_s,
        .most_bytes_per_s = options_.storage_link.transfer_bytes_per_s});
  return true;
}

// The pool has it now, as far as it has room; the instance reads it there.
void Cluster::end_fetch(JobId id) {
  JobState& state = jobs_[id];
  const std::uint32_t at = report_.records[id].prefill;
  release_source(id);
  storage_.store(path(id).first(state.source_blocks));  // a use
  pool_.store(path(id).first(state.source_blocks));
  report_.pool_blocks = std::max(report_.pool_blocks, pool_.size());
  state.is_waiting_for_kv = false;
  const std::uint64_t own_tokens = workload_.tokens_of(job(id), prefill_[at].cache.match(path(id)));
  const std::uint64_t hit_tokens = std::max(state.ready_tokens, own_tokens);
  if (!begin_transfer(id, at, plan_from_pool(id, at, hit_tokens, false))) try_start(at);
}

// Writes wait for no one. With too many in flight a write is left out, as the keeper leaves out what is evicted before
// its turn.
void Cluster::write_to_storage(JobId id) {
  constexpr std::uint64_t kMostWrites = 256;
  const std::uint64_t known_tokens = workload_.tokens_of(job(id), storage_.match(path(id)));
  const std::uint64_t new_tokens = workload_.tokens_of(job(id), path(id).size()) - known_tokens;
  if (new_tokens == 0) {
    storage_.store(path(id));  // a use
    return;
  }
  const double bytes = kv_bytes(new_tokens);
  if (network_.in_flight(storage_in_) >= kMostWrites) {
    report_.storage_skipped_bytes += bytes;
    return;
  }
  report_.storage_write_bytes += bytes;
  network_.start(now_s_, {.links = {pool_out_, storage_in_},
                          .link_count = 2,
                          .bytes = bytes,
                          .latency_s = options_.storage_link.latency_s,
                          .most_bytes_per_s = options_.storage_link.transfer_bytes_per_s,
                          .tag = id | kStorageWriteTag});
  timers_.set(kNetworkSlot, network_.next_s());
}

// Where the tokens of a hit were. At the end of its prefill.
void Cluster::count_tiers(JobId id) {
  const JobState& state = jobs_[id];
  RequestRecord& record = report_.records[id];
  std::uint64_t left = record.hit_tokens;
  const auto take = [&](std::uint64_t tokens) {
    const std::uint64_t taken = std::min(tokens, left);
    left -= taken;
    return taken;
  };
  // What the storage brought was then read from the pool.
  const std::uint64_t fetched = std::min(state.storage_tokens, state.pool_tokens);
  record.storage_tokens = take(fetched);
  report_.hit_tokens_storage += record.storage_tokens;
  report_.hit_tokens_pool += take(state.pool_tokens - fetched);
  report_.hit_tokens_peer += take(state.peer_tokens);
}

}  // namespace cachalot::sim
