// What happens to a request in a cluster whose instances have caches, whatever they are: it comes, is routed and
// admitted, begins again after a failure, and is counted.
#pragma once

#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "sim/cluster/cluster.h"
#include "sim/cluster/kv_network.h"

namespace cachalot::sim {

class CachingCluster : public KvNetwork {
 protected:
  // @param instances  that have a timer: those that compute prompts come first
  CachingCluster(const ClusterOptions& options, const Workload& workload,
                 const ClusterTiming& timing, std::size_t instances);

  // What happens to a request when it comes.
  virtual bool can_hold(JobId) const { return true; }  // some instance could, if it were empty
  virtual Status dispatch(JobId id, const sched::Route& route) = 0;
  Status on_arrival(JobId id) override;
  // After its instance has failed: it is routed anew.
  Status begin_again(JobId id);

  // What routing and reports ask of an instance.
  virtual double queue_s(const CachingInstance& instance) const = 0;
  virtual std::uint64_t requests_of(const CachingInstance& instance) const = 0;
  virtual std::size_t held_blocks(const CachingInstance& instance, JobId id) const;
  virtual bool keeps_blocks() const = 0;  // what an instance computes is there for later prompts
  // What admission asks: the instances that decode, and the requests that wait for their first token, each with the
  // time until it comes, as predicted.
  virtual std::size_t decode_instances() const = 0;
  virtual void append_prefilling(std::vector<sched::DecodeShare>& shares) const = 0;
  // What a storage behind the pool adds to what routing sees.
  virtual void add_storage(JobId, sched::RequestView&, sched::ClusterView&) const {}

  // Its KV is lost, and all requests that it has.
  virtual Status fail(CachingInstance& instance) = 0;
  // Ends an instance that leaves and has no request any more.
  virtual Status leave_if_empty(CachingInstance& instance) = 0;
  Status on_change(const Membership& membership) override;

  sched::Route route(JobId id);
  // With blocks of a peer instead, if one has more than the instance. Whatever the route is, it asks its peers first.
  void add_peer(JobId id, const sched::RequestView& request, const sched::ClusterView& cluster,
                sched::Route& route) const;
  // The instance's blocks of the request that is queued or runs, and of one that does no more.
  void expect(CachingInstance& instance, JobId id);
  void expect_no_more(CachingInstance& instance, JobId id);
  void count_requests(CachingInstance& instance);
  // At the end of the prefill, which took `prefill_s` of computing: also where the tokens of its hit were, and of those
  // of the pool at most so many that the storage had brought.
  void count_prefill(JobId id, double prefill_s, std::uint64_t storage_tokens);

  // From the first token to the last, or to a failure.
  void begin_decoding(JobId id);
  void end_decoding(JobId id);
  // At the last token: admission then knows how long the decode took.
  void count_decode(JobId id);

  // Takes the reports of the instances; others may be added before finish_figures().
  void begin_figures();
  // All that depends on neither the kind of instance nor the decode load.
  void finish_figures();

  const ClusterTiming& timing_;
  std::vector<JobId> decoding_;
  TokenGaps gaps_;
  std::vector<sched::PrefillView> views_;  // of the last route()

 private:
  std::size_t expected_blocks(const CachingInstance& instance, JobId id) const;
  sched::Verdict verdict(JobId id, double ttft_s);
  double mean_queue_s() const;
  double mean_decode_s() const;

  base::Rng rng_;
  std::uint64_t turn_ = 0;
  double decode_sum_s_ = 0;
  std::uint64_t decodes_ = 0;
  std::vector<sched::DecodeShare> decode_shares_, prefill_shares_;
  std::vector<std::size_t> decoding_places_;  // in decoding_
};

}  // namespace cachalot::sim
