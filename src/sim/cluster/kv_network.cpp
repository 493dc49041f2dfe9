#include "sim/cluster/kv_network.h"

#include <algorithm>

namespace cachalot::sim {

KvNetwork::KvNetwork(const ClusterOptions& options, const Workload& workload, std::size_t instances)
    : EventLoop(options, workload, instances),
      pool_(options.eviction, options.pool_capacity_blocks),
      kv_(workload.jobs().size()) {
  if (!has_pool()) return;
  // Without a limit it is what all ports reach.
  const double most = options.pool_link.bytes_per_s * (options.prefill + options.decode);
  pool_in_ = network_.add_link(std::min(options.pool_bytes_per_s, most));
  pool_out_ = network_.add_link(std::min(options.pool_bytes_per_s, most));
}

Ports KvNetwork::make_ports() {
  Ports ports;
  ports.out = network_.add_link(options_.link.bytes_per_s);
  ports.in = network_.add_link(options_.link.bytes_per_s);
  if (options_.peers.is_on) {
    const double most = std::min(options_.peers.bytes_per_s, options_.link.bytes_per_s);
    ports.peer_out = network_.add_link(most);
  }
  if (!has_pool()) return ports;
  ports.pool_out = network_.add_link(options_.pool_link.bytes_per_s);
  ports.pool_in = network_.add_link(options_.pool_link.bytes_per_s);
  return ports;
}

void KvNetwork::add_instance(CachingInstance& instance) {
  instance.ports = make_ports();
  instances_.push_back(&instance);
}

void KvNetwork::send(JobId id, Cargo cargo, LinkNetwork::Transfer transfer) {
  transfer.tag = id;
  bytes_of(cargo) += transfer.bytes;
  kv_[id].cargo = cargo;
  kv_[id].transfer = start_transfer(transfer);
}

LinkNetwork::Transfer KvNetwork::transfer_over(const sched::LinkSpeed& speed, LinkId from,
                                               LinkId to, double bytes) const {
  return {.links = {from, to},
          .link_count = 2,
          .bytes = bytes,
          .latency_s = speed.latency_s,
          .most_bytes_per_s = speed.transfer_bytes_per_s};
}

double& KvNetwork::bytes_of(Cargo cargo) {
  switch (cargo) {
    case Cargo::kPeerPrefix:
    case Cargo::kPeerQuestion:
    case Cargo::kPeerCopy:
      return report_.peer_bytes;
    case Cargo::kPoolPrefix:
      return report_.pool_read_bytes;
    case Cargo::kStorageFetch:
      return report_.storage_read_bytes;
    case Cargo::kPoolStore:
      return report_.pool_write_bytes;
    case Cargo::kHandover:
      break;
  }
  return report_.handover_bytes;
}

void KvNetwork::hold_source(JobId id, PrefixCache& cache) {
  MovingKv& kv = kv_[id];
  kv.source_blocks = cache.match(path(id));
  kv.source_generation = cache.generation();
  cache.hold(path(id).first(kv.source_blocks));
  kv.is_waited_for = true;
}

void KvNetwork::fetch_prefix(JobId id, std::uint32_t to, const sched::KvPlan& plan) {
  MovingKv& kv = kv_[id];
  const Ports& ports = instances_[to]->ports;
  const double bytes = kv_bytes(plan.transfer_tokens);
  kv.ready_tokens = plan.hit_tokens;
  record(id).transferred_tokens += plan.transfer_tokens;
  if (plan.source == sched::KvSource::kPeer) {
    CachingInstance& peer = *instances_[plan.peer];
    kv.source = peer.number;
    kv.peer_tokens += plan.transfer_tokens;
    hold_source(id, peer.cache);
    send(id, Cargo::kPeerPrefix, transfer_over(options_.link, peer.ports.out, ports.in, bytes));
  } else {
    kv.source = kNoNode;
    kv.pool_tokens += plan.transfer_tokens;
    hold_source(id, pool_);
    send(id, Cargo::kPoolPrefix,
         transfer_over(options_.pool_link, pool_out_, ports.pool_in, bytes));
  }
}

void KvNetwork::receive_prefix(JobId id) {
  CachingInstance& instance = instance_of(id);
  release_source(id);
  store_in_cache(instance, path(id).first(kv_[id].source_blocks));
  kv_[id].is_waited_for = false;
}

bool KvNetwork::send_to_pool(JobId id) {
  const std::uint64_t new_tokens = job(id).input_tokens - record(id).hit_tokens;
  if (!has_pool()) return false;
  if (new_tokens == 0) {
    if (kv_[id].pool_tokens != 0) pool_.use(path(id));
    return false;
  }
  const double bytes = kv_bytes(new_tokens);
  send(id, Cargo::kPoolStore,
       transfer_over(options_.pool_link, instance_of(id).ports.pool_out, pool_in_, bytes));
  return true;
}

std::size_t KvNetwork::store_in_cache(CachingInstance& instance,
                                      std::span<const std::uint32_t> path, bool are_copies) {
  const std::size_t held =
      are_copies ? instance.cache.store_copies(path) : instance.cache.store(path);
  instance.report.most_cached_blocks =
      std::max(instance.report.most_cached_blocks, instance.cache.size());
  return held;
}

void KvNetwork::store_in_pool(std::span<const std::uint32_t> path) {
  pool_.store(path);
  report_.pool_blocks = std::max(report_.pool_blocks, pool_.size());
}

PrefixCache& KvNetwork::source_of(JobId id) {
  const MovingKv& kv = kv_[id];
  return kv.cargo == Cargo::kPeerPrefix ? instances_[kv.source]->cache : pool_;
}

void KvNetwork::release_source(JobId id) {
  PrefixCache& cache = source_of(id);
  if (cache.generation() != kv_[id].source_generation) return;
  cache.release(path(id).first(kv_[id].source_blocks));
}

void KvNetwork::drop_transfer(JobId id) {
  MovingKv& kv = kv_[id];
  bytes_of(kv.cargo) -= cancel_transfer(kv.transfer);
  kv.transfer = kNoTransfer;
  kv.is_waited_for = false;
  stop_waiting(id);
  if (kv.cargo == Cargo::kPeerPrefix || kv.cargo == Cargo::kPoolPrefix ||
      kv.cargo == Cargo::kStorageFetch) {
    release_source(id);
  }
}

std::vector<JobId> KvNetwork::waiting_for(const CachingInstance& instance) const {
  std::vector<JobId> ids;
  for (JobId id = 0; id < next_arrival(); ++id) {
    const MovingKv& kv = kv_[id];
    if (kv.transfer == kNoTransfer) continue;
    if (kv.cargo != Cargo::kPeerPrefix && kv.cargo != Cargo::kPeerCopy) continue;
    if (kv.source == instance.number && record(id).prefill != instance.number) ids.push_back(id);
  }
  return ids;
}

}  // namespace cachalot::sim
