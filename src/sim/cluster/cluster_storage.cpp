// The storage behind the pool: it brings blocks into the pool before a request reads them there, and gets a copy of
// all that the pool gets.
#include <algorithm>

#include "sim/cluster/cluster_run.h"

namespace cachalot::sim {

void Cluster::add_storage(JobId id, sched::RequestView& request,
                          sched::ClusterView& cluster) const {
  cluster.storage = options_.storage_link;
  if (!has_storage()) return;
  request.storage_hit_tokens = workload_.tokens_of(job(id), storage_.match(path(id)));
  cluster.storage_reads = network_.in_flight(storage_out_);
}

PrefixCache& Cluster::source_of(JobId id) {
  return kv_[id].cargo == Cargo::kStorageFetch ? storage_ : KvNetwork::source_of(id);
}

sched::KvPlan Cluster::plan_from_pool(JobId id, std::uint64_t hit_tokens, bool with_storage) const {
  const PrefillNode& node = prefill_[record(id).prefill];
  const sched::PrefillView view{.hit_tokens = hit_tokens,
                                .held_tokens = hit_tokens,
                                .pool_reads = network_.in_flight(node.ports.pool_in)};
  sched::RequestView request{.input_tokens = job(id).input_tokens};
  request.pool_hit_tokens = workload_.tokens_of(job(id), pool_.match(path(id)));
  sched::ClusterView cluster{.prefill = {&view, 1},
                             .timing = timing_.prefill,
                             .kv_bytes_per_token = options_.kv_bytes_per_token,
                             .link = options_.link,
                             .pool = options_.pool_link};
  if (with_storage) add_storage(id, request, cluster);
  return sched::plan_with_pool(request, cluster, 0);
}

void Cluster::begin_fetch(JobId id, const sched::KvPlan& plan) {
  jobs_[id].storage_tokens += plan.fetch_tokens;
  const double bytes = kv_bytes(plan.fetch_tokens);
  hold_source(id, storage_);
  send(id, Cargo::kStorageFetch,
       transfer_over(options_.storage_link, storage_out_, pool_in_, bytes));
}

// The pool has it now, as far as it has room; the instance reads it there.
void Cluster::end_fetch(JobId id) {
  MovingKv& kv = kv_[id];
  PrefillNode& node = prefill_of(id);
  const std::span<const std::uint32_t> fetched = path(id).first(kv.source_blocks);
  release_source(id);
  storage_.store(fetched);  // a use
  store_in_pool(fetched);
  kv.is_waited_for = false;
  const std::uint64_t own_tokens = workload_.tokens_of(job(id), node.cache.match(path(id)));
  const std::uint64_t hit_tokens = std::max(kv.ready_tokens, own_tokens);
  if (!begin_transfer(id, plan_from_pool(id, hit_tokens, false))) try_start(node);
}

// Writes wait for no one. With too many in flight a write is left out, as the keeper leaves out what is evicted before
// its turn.
void Cluster::write_to_storage(JobId id) {
  constexpr std::uint64_t kMostWrites = 256;
  // What was queued is not written: the figures have ended. Or the job's prefill was repeated.
  if (is_over() || storage_writes_.contains(id)) return;
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
  LinkNetwork::Transfer transfer =
      transfer_over(options_.storage_link, pool_out_, storage_in_, bytes);
  transfer.tag = id | kStorageWriteTag;
  storage_writes_[id] = start_transfer(transfer);
}

// Of a write that is cut off, what was sent until now counts as written.
void Cluster::on_last_end() {
  for (const auto& [id, transfer] : storage_writes_)
    report_.storage_write_bytes -= cancel_transfer(transfer);
  storage_writes_.clear();
}

}  // namespace cachalot::sim
