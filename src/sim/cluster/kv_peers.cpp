// Hosts that are peers: what a prompt lacks in its instance's cache is fetched from the cache of another instance, and then
// lies in both. As `cachalot serve --peers`: a host knows what the others have, asks one whatever the speed of the link, and
// asks the next one for blocks that were evicted before the question came. Reading is no use of a block at its owner.
//
// Differs: what a host knows of the others is never old but by the time of a question; one owner sends all blocks of an
// answer, and has copied them when the question came.
#include <algorithm>
#include <cmath>

#include "sim/cluster/kv_network.h"

namespace cachalot::sim {

std::uint32_t KvNetwork::find_peer(JobId id, const CachingInstance& reader,
                                   std::size_t own_blocks) const {
  const std::size_t cell = options_.peers.cell == 0 ? instances_.size() : options_.peers.cell;
  const std::size_t first = reader.number / cell * cell;
  const std::size_t end = std::min(first + cell, instances_.size());
  std::uint32_t best = kNoNode;
  std::size_t most = own_blocks;
  std::uint64_t best_sending = 0;
  for (std::size_t i = first; i < end; ++i) {
    const CachingInstance& peer = *instances_[i];
    if (&peer == &reader) continue;
    const std::size_t held = peer.cache.match(path(id));
    const std::uint64_t sending = network_.in_flight(peer.ports.peer_out);
    if (held < most || held == own_blocks) continue;
    if (held == most && sending >= best_sending) continue;
    best = peer.number;
    most = held;
    best_sending = sending;
  }
  return best;
}

bool KvNetwork::ask_peers(JobId id, std::size_t own_blocks) {
  MovingKv& kv = kv_[id];
  if (!options_.peers.is_on || kv.has_waited_enough) return false;
  const std::uint32_t peer = find_peer(id, instance_of(id), own_blocks);
  if (peer == kNoNode) return false;
  kv.source = peer;
  kv.source_blocks = instances_[peer]->cache.match(path(id));
  kv.own_blocks = own_blocks;
  kv.is_waited_for = true;
  if (kv.peer_wait == kNoTransfer && std::isfinite(options_.peers.most_wait_s)) {
    kv.peer_wait =
        start_transfer({.latency_s = options_.peers.most_wait_s, .tag = id | kPeerWaitTag});
  }
  send(id, Cargo::kPeerQuestion, {.latency_s = options_.link.latency_s});
  return true;
}

bool KvNetwork::end_peer_transfer(JobId id) {
  MovingKv& kv = kv_[id];
  kv.transfer = kNoTransfer;
  if (kv.cargo == Cargo::kPeerCopy) {
    receive_copy(id, kv.source_blocks);
    stop_waiting(id);
    return false;
  }
  if (kv.source == kNoNode) {  // the answer that not all are there
    if (ask_peers(id, kv.own_blocks)) return true;
    stop_waiting(id);
    return false;
  }
  const std::size_t there = instances_[kv.source]->cache.match(path(id));
  if (there >= kv.source_blocks) {
    send_copy(id);
  } else {
    report_.peer_gone_blocks += kv.source_blocks - there;
    kv.source = kNoNode;
    send(id, Cargo::kPeerQuestion, {.latency_s = options_.link.latency_s});
  }
  return true;
}

void KvNetwork::send_copy(JobId id) {
  const MovingKv& kv = kv_[id];
  const std::uint64_t tokens =
      workload_.tokens_of(job(id), kv.source_blocks) - workload_.tokens_of(job(id), kv.own_blocks);
  const Ports& from = instances_[kv.source]->ports;
  send(id, Cargo::kPeerCopy,
       {.links = {from.peer_out, from.out, instance_of(id).ports.in},
        .link_count = 3,
        .bytes = kv_bytes(tokens),
        .latency_s = options_.link.latency_s,
        .most_bytes_per_s = options_.link.transfer_bytes_per_s});
}

// Leading blocks of the prompt, of which the request's own ones were there before.
void KvNetwork::receive_copy(JobId id, std::size_t blocks) {
  MovingKv& kv = kv_[id];
  if (blocks <= kv.own_blocks) return;
  const std::uint64_t tokens =
      workload_.tokens_of(job(id), blocks) - workload_.tokens_of(job(id), kv.own_blocks);
  record(id).transferred_tokens += tokens;
  kv.peer_tokens += tokens;
  const std::size_t held =
      store_in_cache(instance_of(id), path(id).first(blocks), /*are_copies=*/true);
  kv.ready_tokens = std::max(kv.ready_tokens, workload_.tokens_of(job(id), held));
}

void KvNetwork::end_peer_wait(JobId id) {
  MovingKv& kv = kv_[id];
  kv.peer_wait = kNoTransfer;
  kv.has_waited_enough = true;
  ++report_.peer_waits_ended;
  const bool is_copy = kv.cargo == Cargo::kPeerCopy;
  const std::uint64_t tokens =
      workload_.tokens_of(job(id), kv.source_blocks) - workload_.tokens_of(job(id), kv.own_blocks);
  const double sent_bytes = kv_bytes(tokens) - cancel_transfer(kv.transfer);
  kv.transfer = kNoTransfer;
  stop_waiting(id);
  if (!is_copy) return;
  report_.peer_bytes -= kv_bytes(tokens) - sent_bytes;
  const auto whole =
      static_cast<std::size_t>(sent_bytes / kv_bytes(workload_.block_tokens()) + 1e-6);
  receive_copy(id, std::min(kv.own_blocks + whole, kv.source_blocks));
}

void KvNetwork::stop_waiting(JobId id) {
  MovingKv& kv = kv_[id];
  kv.is_waited_for = false;
  if (kv.peer_wait != kNoTransfer) cancel_transfer(kv.peer_wait);
  kv.peer_wait = kNoTransfer;
}

}  // namespace cachalot::sim
