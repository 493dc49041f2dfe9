// The state of a simulation while it runs, and what its events do. Only simulate() uses it: see cluster.h.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "sched/policy/decode_choice.h"
#include "sim/cluster/caching_cluster.h"
#include "sim/cluster/cluster.h"
#include "sim/cluster/decode_node.h"

namespace cachalot::sim {

// In a transfer's tag beside the job: the pool's copy goes to the storage. No job waits for it.
inline constexpr std::uint64_t kStorageWriteTag = std::uint64_t{1} << 32;

struct PrefillNode : CachingInstance {
  using CachingInstance::CachingInstance;

  std::deque<JobId> queue;
  JobId running = kNoJob;
  double begin_s = 0, end_s = kNever;
  std::size_t held_blocks = 0;  // of the running job's path

  std::uint64_t requests_there() const { return queue.size() + (running != kNoJob ? 1 : 0); }
};

struct DecodeSide {
  DecodeSide(const ClusterOptions& options, const sched::TimingModel& timing)
      : node(timing, options.decode_capacity_tokens, options.decode_most_sequences),
        load(options.window_s),
        running(options.window_s) {}

  DecodeNode node;
  Ports ports;
  std::deque<JobId> waiting;                    // for room; their KV is where it was computed
  std::uint64_t chosen = 0, chosen_tokens = 0;  // waiting or on their way: sequences, context
  std::uint64_t waiting_reserve = 0;            // tokens that `waiting` will reserve
  InstanceReport report;
  LoadSeries load, running;
};

struct JobState {
  double expected_prefill_s = 0;
  double prefill_s = 0;
  std::uint64_t storage_tokens = 0;  // that the storage has brought into the pool
  bool has_asked_again = false;      // its peers
  bool has_looked_again = false;     // in the pool
};

class Cluster final : public CachingCluster {
 public:
  Cluster(const ClusterOptions& options, const Workload& workload, const ClusterTiming& timing);

  // @errors none
  Result<ClusterReport> run(const std::function<void(double)>& on_progress);

 private:
  // Timers: prefill instances, then decode instances.
  std::size_t decode_timer(std::size_t i) const { return options_.prefill + i; }
  PrefillNode& prefill_of(JobId id) { return prefill_[record(id).prefill]; }
  bool has_storage() const { return options_.storage_capacity_blocks != 0; }

  Status on_transfer_end(std::uint64_t tag) override;
  Status on_instance(std::size_t instance) override;
  void on_last_end() override;
  bool keeps_blocks() const override { return options_.node_capacity_blocks != 0; }
  std::size_t decode_instances() const override { return decode_.size(); }
  void append_prefilling(std::vector<sched::DecodeShare>& shares) const override;
  Status dispatch(JobId id, const sched::Route& route) override;
  double queue_s(const CachingInstance& instance) const override;
  std::uint64_t requests_of(const CachingInstance& instance) const override;
  void add_storage(JobId id, sched::RequestView& request,
                   sched::ClusterView& cluster) const override;
  PrefixCache& source_of(JobId id) override;
  Status fail(CachingInstance& instance) override;
  Status leave_if_empty(CachingInstance& instance) override;

  bool begin_transfer(JobId id, const sched::KvPlan& plan);
  void end_transfer(JobId id);
  void try_start(PrefillNode& node);
  bool read_more(JobId id, std::size_t own_blocks, std::uint64_t hit_tokens);
  void end_prefill(PrefillNode& node);
  void hand_over(JobId id);
  bool choose_decode(JobId id);
  void wait_for_decode(JobId id);
  void fill_decode(std::uint32_t decode);
  void begin_handover(JobId id, std::uint32_t decode);
  void enter_decode(JobId id);
  void end_decode_step(std::uint32_t decode);
  void end_if_left(PrefillNode& node);

  void begin_fetch(JobId id, const sched::KvPlan& plan);
  void end_fetch(JobId id);
  void write_to_storage(JobId id);
  sched::KvPlan plan_from_pool(JobId id, std::uint64_t hit_tokens, bool with_storage) const;
  ClusterReport finish_report();

  std::deque<PrefillNode> prefill_;
  std::vector<DecodeSide> decode_;
  PrefixCache storage_;
  LinkId storage_out_ = 0, storage_in_ = 0;
  std::map<JobId, TransferId> storage_writes_;  // in flight
  std::vector<JobState> jobs_;
  std::vector<sched::DecodeView> decode_views_;
  std::vector<JobId> ended_;
};

}  // namespace cachalot::sim
