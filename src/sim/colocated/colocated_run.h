// The state of a simulation of colocated instances while it runs. Only simulate_colocated() uses it: see colocated.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "sim/cluster/caching_cluster.h"
#include "sim/colocated/colocated.h"

namespace cachalot::sim::colocated {

// Steps that decode by one model, all others by another.
class StepTiming final : public sched::TimingModel {
 public:
  explicit StepTiming(const ClusterTiming& timing) : timing_(timing) {}
  double step_seconds(std::span<const sched::PrefillPart> prefill,
                      const sched::DecodePart& decode) const override {
    const sched::TimingModel* model = decode.sequences == 0 ? timing_.prefill : timing_.decode;
    return model->step_seconds(prefill, decode);
  }
  double prefill_seconds(std::uint64_t input, std::uint64_t hit) const override {
    return timing_.prefill->prefill_seconds(input, hit);
  }

 private:
  ClusterTiming timing_;
};

class Cluster;

// Its cache is in the host's memory; `busy` counts steps, `requests` those in the engine or on their way to it.
struct Node final : CachingInstance, EngineListener {
  Node(Cluster& owner, std::uint32_t instance, const ClusterOptions& options)
      : CachingInstance(options, instance), cluster(&owner), load(options.window_s) {
    report.is_colocated = true;
  }

  void on_first_token(std::uint64_t id, const RequestTimes& times) override;
  void on_finished(std::uint64_t id, const RequestTimes& times) override;
  void on_step(const StepRecord& step) override;
  void on_gap(double seconds, std::uint64_t count) override;
  std::uint64_t ready_tokens(std::uint64_t id, std::uint64_t submitted) override;

  Cluster* cluster;
  std::unique_ptr<Engine> engine;
  std::vector<JobId> jobs;             // routed here and not ended, in that order
  std::vector<JobId> prefilling;       // those of them without a first token
  std::uint64_t queued_tokens = 0;     // that they have to compute, as predicted
  std::uint64_t lost_preemptions = 0;  // of engines that have failed
  LoadSeries load;
};

struct JobState {
  double expected_prefill_s = 0;
  std::uint64_t expected_tokens = 0;  // to compute
  bool is_decoding = false;
  std::vector<std::uint64_t> keys;  // of the engine's blocks
};

class Cluster final : public CachingCluster {
 public:
  Cluster(const ColocatedOptions& options, const Workload& workload, const ClusterTiming& timing);

  Result<ClusterReport> run(const std::function<void(double)>& on_progress);

  // What the engine of `node` tells.
  void first_token(Node& node, JobId id, const RequestTimes& times);
  void finished(Node& node, JobId id);
  void step_ended(Node& node, const StepRecord& step);
  void gap(double seconds, std::uint64_t count) { gaps_.record(seconds, count); }
  std::uint64_t ready_tokens(const Node& node, JobId id, std::uint64_t submitted) const;

 private:
  std::uint64_t input_tokens(JobId id) const {
    return std::max<std::uint64_t>(1, job(id).input_tokens);
  }
  std::uint64_t output_tokens(JobId id) const {
    return std::max<std::uint64_t>(1, job(id).output_tokens);
  }
  // Of the engine, in a block of the trace.
  std::uint64_t blocks_of_block() const {
    return workload_.block_tokens() / engine_options_.block_tokens;
  }

  Status on_transfer_end(std::uint64_t tag) override;
  Status on_instance(std::size_t instance) override;
  bool can_hold(JobId id) const override;
  bool keeps_blocks() const override {
    return engine_options_.prefix_caching || options_.node_capacity_blocks != 0;
  }
  std::size_t decode_instances() const override;
  void append_prefilling(std::vector<sched::DecodeShare>& shares) const override;
  Status dispatch(JobId id, const sched::Route& route) override;
  double queue_s(const CachingInstance& instance) const override;
  std::uint64_t requests_of(const CachingInstance& instance) const override;
  std::size_t held_blocks(const CachingInstance& instance, JobId id) const override;
  Status fail(CachingInstance& instance) override;
  Status leave_if_empty(CachingInstance& instance) override;

  Status make_engine(Node& node);
  Status submit(JobId id);
  void leave_prefilling(Node& node, JobId id);
  void leave_decoding(JobId id);
  Status begin_anew(Node& node);
  ClusterReport finish_report();

  const EngineOptions& engine_options_;
  StepTiming step_timing_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<JobState> jobs_;
};

}  // namespace cachalot::sim::colocated
