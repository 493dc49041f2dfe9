// The state of a simulation of colocated instances while it runs. Only simulate_colocated() uses it: see colocated.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/rng.h"
#include "sim/cluster/link_network.h"
#include "sim/cluster/load_series.h"
#include "sim/cluster/prefix_cache.h"
#include "sim/cluster/timers.h"
#include "sim/colocated/colocated.h"

namespace cachalot::sim::colocated {

using JobId = std::uint32_t;
inline constexpr std::uint32_t kNoNode = 0xffffffffu;

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

// What a transfer brings.
enum class Cargo : std::uint8_t { kPeerPrefix, kPoolPrefix, kPoolStore };

struct Ports {
  LinkId out = 0, in = 0;            // to the other instances
  LinkId pool_out = 0, pool_in = 0;  // to the pool, if there is one
};

class Cluster;

struct Node final : EngineListener {
  Node(Cluster& owner, std::uint32_t number, const ClusterOptions& options)
      : cluster(&owner),
        instance(number),
        cache(options.eviction, options.node_capacity_blocks),
        busy(options.window_s),
        load(options.window_s),
        requests(options.window_s) {}

  void on_first_token(std::uint64_t id, const RequestTimes& times) override;
  void on_finished(std::uint64_t id, const RequestTimes& times) override;
  void on_step(const StepRecord& step) override;
  void on_gap(double seconds, std::uint64_t count) override;
  std::uint64_t ready_tokens(std::uint64_t id, std::uint64_t submitted) override;

  Cluster* cluster;
  std::uint32_t instance;
  std::unique_ptr<Engine> engine;
  PrefixCache cache;  // in the host's memory
  Ports ports;
  bool accepts = true;
  bool is_leaving = false;
  std::vector<JobId> jobs;        // routed here and not ended, in that order
  std::vector<JobId> prefilling;  // those of them without a first token
  std::unordered_map<std::uint32_t, std::uint32_t> coming;  // blocks of `prefilling`, how often
  double queued_s = 0;                                      // predicted prefill of `prefilling`
  std::uint64_t queued_tokens = 0;     // that they have to compute, as predicted
  std::uint64_t lost_preemptions = 0;  // of engines that have failed
  InstanceReport report;
  LoadSeries busy, load, requests;
  double requests_since_s = 0;
};

struct JobState {
  double expected_prefill_s = 0;
  std::uint64_t expected_tokens = 0;  // to compute
  std::uint64_t ready_tokens = 0;     // that transfers have brought
  bool is_waiting_for_kv = false;
  TransferId transfer = kNoTransfer;
  Cargo cargo = Cargo::kPoolStore;
  std::uint32_t source = kNoNode;  // kPeerPrefix: the sender
  std::size_t source_blocks = 0;   // held there
  std::uint64_t source_generation = 0;
  std::size_t decoding_place = 0;  // in decoding_
  bool is_decoding = false;
  std::vector<std::uint64_t> keys;  // of the engine's blocks
};

class Cluster {
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
  static constexpr std::size_t kNetworkSlot = 0;
  std::size_t node_slot(std::size_t i) const { return 1 + i; }
  std::size_t change_slot() const { return 1 + nodes_.size(); }
  std::size_t arrival_slot() const { return change_slot() + 1; }

  bool has_pool() const { return options_.pool_capacity_blocks != 0; }
  const Job& job(JobId id) const { return workload_.jobs()[id]; }
  std::span<const std::uint32_t> path(JobId id) const { return workload_.path(job(id)); }
  std::uint64_t input_tokens(JobId id) const {
    return std::max<std::uint64_t>(1, job(id).input_tokens);
  }
  std::uint64_t output_tokens(JobId id) const {
    return std::max<std::uint64_t>(1, job(id).output_tokens);
  }
  double kv_bytes(std::uint64_t tokens) const {
    return static_cast<double>(tokens) * options_.kv_bytes_per_token;
  }

  Status make_engine(Node& node);
  Ports make_ports();
  Status step(std::size_t slot);
  double next_arrival_s() const;
  Status arrive(JobId id);
  std::size_t held_blocks(const Node& node, JobId id) const;
  std::size_t expected_blocks(const Node& node, JobId id) const;
  double queue_s(const Node& node) const;
  sched::Route route(JobId id);
  sched::Verdict verdict(JobId id, double ttft_s);
  Status dispatch(JobId id, const sched::Route& route);
  bool begin_transfer(JobId id, std::uint32_t node, const sched::KvPlan& plan);
  void send(JobId id, Cargo cargo, LinkNetwork::Transfer transfer);
  Status submit(JobId id);
  Status end_transfer(JobId id);
  void release_source(JobId id);
  void leave_prefilling(Node& node, JobId id);
  void leave_decoding(JobId id);
  void count_requests(Node& node);
  void finish(JobId id, Outcome outcome);
  Status change(const Membership& membership);
  Status fail(Node& node);
  Status restart(JobId id);
  void drop_transfer(JobId id);
  Status leave_if_empty(Node& node);
  Status begin_anew(Node& node);
  ClusterReport finish_report();

  const ClusterOptions& options_;
  const EngineOptions& engine_options_;
  const Workload& workload_;
  const ClusterTiming& timing_;
  StepTiming step_timing_;
  std::vector<std::unique_ptr<Node>> nodes_;
  PrefixCache pool_;
  LinkId pool_out_ = 0, pool_in_ = 0;
  LinkNetwork network_;
  Timers timers_;
  base::Rng rng_;
  std::vector<JobState> jobs_;
  std::vector<Membership> changes_;
  std::size_t next_change_ = 0;
  JobId next_arrival_ = 0;
  std::uint64_t in_flight_ = 0;
  std::uint64_t turn_ = 0;
  double now_s_ = 0;
  TokenGaps gaps_;
  std::vector<JobId> decoding_;
  double decode_sum_s_ = 0;
  std::uint64_t decodes_ = 0;
  std::vector<sched::PrefillView> views_;
  std::vector<sched::DecodeShare> decode_shares_, prefill_shares_;
  ClusterReport report_;
};

}  // namespace cachalot::sim::colocated
