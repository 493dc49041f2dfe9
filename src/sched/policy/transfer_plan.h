// From where an instance gets the KV that a request begins with: its own cache, another instance, or the pool, into
// which the storage behind it may bring more before.
#pragma once

#include <cstdint>

#include "sched/policy/snapshot.h"

namespace cachalot::sched {

// Seconds of one more transfer where `sharing` are in flight on the link and share it fairly with it.
double transfer_seconds(const LinkSpeed& link, double bytes, std::uint64_t sharing);

enum class KvSource : std::uint8_t { kOwn, kPeer, kPool };

struct KvPlan {
  std::uint64_t hit_tokens = 0;       // that the prefill begins with
  KvSource source = KvSource::kOwn;   // of the tokens that are transferred
  std::size_t peer = kNoInstance;     // kPeer: which instance
  std::uint64_t transfer_tokens = 0;  // 0 for kOwn
  double transfer_s = 0;
  std::uint64_t fetch_tokens = 0;  // kPool: of transfer_tokens, those that the storage brings first
  double fetch_s = 0;
  double prefill_s = 0;

  double cost_s() const { return fetch_s + transfer_s + prefill_s; }
};

// A request that is cached whole is computed for its last token, which gives the first one of the output.
double prefill_seconds(const TimingModel& timing, std::uint64_t input_tokens,
                       std::uint64_t hit_tokens);

// With the instance's own cache alone.
KvPlan plan_own(const RequestView& request, const ClusterView& cluster, std::size_t instance);

// With the pool, if it has more than the instance and the transfer takes less time than computing the difference; with
// the storage before it, likewise. Otherwise as plan_own().
KvPlan plan_with_pool(const RequestView& request, const ClusterView& cluster, std::size_t instance);

// With what `peer` has, if it has more than the instance; whether that is faster is for the caller to see.
KvPlan plan_from_peer(const RequestView& request, const ClusterView& cluster, std::size_t instance,
                      std::size_t peer);

}  // namespace cachalot::sched
