// What a scheduling decision is made from: the state of a cluster at one moment, as plain numbers.
//
// 1. A decision is a function of a snapshot: no clock, no random numbers of its own, no I/O, no state that a
//    call changes. A router and a simulator that fill in equal snapshots get equal decisions.
// 2. Times are seconds. "now" is 0: what is in the past is negative.
// 3. held_tokens <= hit_tokens <= the request's input_tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "sched/timing/timing_model.h"

namespace cachalot::sched {

inline constexpr std::size_t kNoInstance = std::numeric_limits<std::size_t>::max();

// A link as its users see it: one transfer alone takes latency_s + bytes / min(bytes_per_s, transfer_bytes_per_s).
struct LinkSpeed {
  double latency_s = 0;
  double bytes_per_s = std::numeric_limits<double>::infinity();
  // The most that one transfer reaches, whatever the link has free: for small operations over a long latency it is
  // bytes of an operation * operations in flight / latency.
  double transfer_bytes_per_s = std::numeric_limits<double>::infinity();
};

struct RequestView {
  std::uint64_t input_tokens = 0;
  std::uint64_t pool_hit_tokens = 0;  // leading tokens that the shared pool has; 0 without a pool
  std::uint64_t storage_hit_tokens = 0;  // that the storage behind the pool has; 0 without storage
};

struct PrefillView {
  bool accepts = true;         // false: it leaves, or is gone
  double queue_s = 0;          // until it could begin with this request, as predicted
  std::uint64_t requests = 0;  // queued and running
  // Leading tokens of the request that its own cache will have when the turn comes: those it has, and those that
  // requests before it in the queue compute.
  std::uint64_t hit_tokens = 0;
  std::uint64_t held_tokens = 0;  // those that it has now, and can send
  std::uint64_t sending = 0;      // transfers in flight from it
  std::uint64_t receiving = 0;    // and to it
  std::uint64_t pool_reads = 0;   // of it, from the shared pool
};

struct ClusterView {
  std::span<const PrefillView> prefill;
  const TimingModel* timing = nullptr;  // of prefill
  double kv_bytes_per_token = 0;
  LinkSpeed link;                   // of an instance to the others, each way
  LinkSpeed pool;                   // of an instance to the shared pool, each way
  LinkSpeed storage = {};           // of the storage to the pool, for all together
  std::uint64_t storage_reads = 0;  // in flight
  // For policies that take turns or chances; the caller gives each request other numbers.
  std::uint64_t turn = 0;
  std::uint64_t random = 0;
};

struct DecodeView {
  bool accepts = true;
  std::uint64_t sequences = 0;        // decoding, waiting here, and chosen but not here yet
  std::uint64_t context_tokens = 0;   // of those
  std::uint64_t reserved_tokens = 0;  // KV that those have or will have at most
  std::uint64_t capacity_tokens = std::numeric_limits<std::uint64_t>::max();
};

}  // namespace cachalot::sched
