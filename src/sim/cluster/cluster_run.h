// The state of a simulation while it runs, and what its events do. Only simulate() uses it: see cluster.h.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/rng.h"
#include "sched/policy/decode_choice.h"
#include "sim/cluster/cluster.h"
#include "sim/cluster/decode_node.h"
#include "sim/cluster/link_network.h"
#include "sim/cluster/load_series.h"
#include "sim/cluster/prefix_cache.h"
#include "sim/cluster/timers.h"

namespace cachalot::sim {

using JobId = std::uint32_t;
inline constexpr JobId kNoJob = 0xffffffffu;
inline constexpr std::uint32_t kNoNode = 0xffffffffu;

// What a transfer brings.
enum class Cargo : std::uint8_t { kPeerPrefix, kPoolPrefix, kStorageFetch, kPoolStore, kHandover };

// In a transfer's tag beside the job: the pool's copy goes to the storage. No job waits for it.
inline constexpr std::uint64_t kStorageWriteTag = std::uint64_t{1} << 32;

struct Ports {
  LinkId out = 0, in = 0;            // to the other instances
  LinkId pool_out = 0, pool_in = 0;  // to the pool, if there is one
};

struct PrefillNode {
  explicit PrefillNode(const ClusterOptions& options)
      : cache(options.eviction, options.node_capacity_blocks),
        busy(options.window_s),
        queued(options.window_s) {}

  PrefixCache cache;
  Ports ports;
  bool accepts = true;
  bool is_leaving = false;
  std::deque<JobId> queue;
  std::unordered_map<std::uint32_t, std::uint32_t>
      coming;           // blocks of `queue` and `running`, how often
  double queued_s = 0;  // predicted prefill of the queue
  JobId running = kNoJob;
  double begin_s = 0, end_s = kNever;
  std::size_t held_blocks = 0;  // of the running job's path
  InstanceReport report;
  LoadSeries busy, queued;
  double queued_since_s = 0;

  std::uint64_t requests() const { return queue.size() + (running != kNoJob ? 1 : 0); }
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
  std::uint64_t ready_tokens = 0;  // that transfers have brought
  std::uint64_t peer_tokens = 0, pool_tokens = 0, storage_tokens = 0;  // brought from there
  bool is_waiting_for_kv = false;
  bool has_looked_again = false;
  TransferId transfer = kNoTransfer;
  Cargo cargo = Cargo::kHandover;
  std::uint32_t source =
      kNoNode;  // kPeerPrefix: the sender; kHandover, kPoolStore: the instance that computed it
  std::size_t source_blocks = 0;  // held there
  std::uint64_t source_generation = 0;
  std::size_t decoding_place = 0;  // in decoding_
};

class Cluster {
 public:
  Cluster(const ClusterOptions& options, const Workload& workload, const ClusterTiming& timing)
      : options_(options),
        workload_(workload),
        timing_(timing),
        pool_(options.eviction, options.pool_capacity_blocks),
        storage_(options.eviction, options.storage_capacity_blocks),
        timers_(options.prefill + options.decode + 3),
        rng_(options.seed),
        jobs_(workload.jobs().size()) {
    report_.records.resize(jobs_.size());
    changes_ = options.changes;
    std::stable_sort(changes_.begin(), changes_.end(),
                     [](const Membership& a, const Membership& b) { return a.at_s < b.at_s; });
    make_nodes();
  }

  ClusterReport run(const std::function<void(double)>& on_progress);

 private:
  static constexpr std::size_t kNetworkSlot = 0;
  std::size_t prefill_slot(std::size_t i) const { return 1 + i; }
  std::size_t decode_slot(std::size_t i) const { return 1 + options_.prefill + i; }
  std::size_t change_slot() const { return 1 + options_.prefill + options_.decode; }
  std::size_t arrival_slot() const { return change_slot() + 1; }

  bool has_pool() const { return options_.pool_capacity_blocks != 0; }
  bool has_storage() const { return options_.storage_capacity_blocks != 0; }
  const Job& job(JobId id) const { return workload_.jobs()[id]; }
  std::span<const std::uint32_t> path(JobId id) const { return workload_.path(job(id)); }
  double kv_bytes(std::uint64_t tokens) const {
    return static_cast<double>(tokens) * options_.kv_bytes_per_token;
  }

  void make_nodes();
  Ports make_ports();
  void step(std::size_t slot);

  std::size_t expected_blocks(const PrefillNode& node, JobId id) const;
  void expect(PrefillNode& node, JobId id);
  void expect_no_more(PrefillNode& node, JobId id);
  sched::Route route(JobId id);
  sched::Verdict verdict(JobId id, double ttft_s);
  double next_arrival_s() const;
  void arrive(JobId id);
  void dispatch(JobId id, const sched::Route& route);
  bool begin_transfer(JobId id, std::uint32_t node, const sched::KvPlan& plan);
  void try_start(std::uint32_t node);
  bool begin_fetch(JobId id, const sched::KvPlan& plan);
  void end_fetch(JobId id);
  void write_to_storage(JobId id);
  PrefixCache& source_of(JobId id);
  sched::KvPlan plan_from_pool(JobId id, std::uint32_t node, std::uint64_t hit_tokens,
                               bool with_storage) const;
  void count_tiers(JobId id);
  bool read_more_from_pool(JobId id, std::uint32_t node, std::uint64_t hit_tokens);
  void end_prefill(std::uint32_t node);
  void hand_over(JobId id);
  void fill_decode(std::uint32_t decode);
  void begin_handover(JobId id, std::uint32_t decode);
  void end_transfer(JobId id);
  void end_decode_step(std::uint32_t decode);
  void finish(JobId id, Outcome outcome);
  void change(const Membership& membership);
  void fail(std::uint32_t node);
  void restart(JobId id);
  void drop_transfer(JobId id);
  void release_source(JobId id);
  void count_queue(PrefillNode& node);
  void leave_if_empty(PrefillNode& node);
  void send(JobId id, Cargo cargo, LinkNetwork::Transfer transfer);
  ClusterReport finish_report();

  const ClusterOptions& options_;
  const Workload& workload_;
  const ClusterTiming& timing_;
  std::vector<PrefillNode> prefill_;
  std::vector<DecodeSide> decode_;
  PrefixCache pool_, storage_;
  LinkId pool_out_ = 0, pool_in_ = 0;
  LinkId storage_out_ = 0, storage_in_ = 0;
  LinkNetwork network_;
  Timers timers_;
  base::Rng rng_;
  std::vector<JobState> jobs_;
  std::vector<Membership> changes_;
  std::size_t next_change_ = 0;
  JobId next_arrival_ = 0;
  JobId pass_first_ = 0;  // of the pass in work
  double pass_start_s_ = 0;
  std::uint64_t in_flight_ = 0;
  std::uint64_t turn_ = 0;
  double now_s_ = 0;
  TokenGaps gaps_;
  std::vector<JobId> decoding_;  // from the end of the prefill to the last token
  double decode_sum_s_ = 0;
  std::uint64_t decodes_ = 0;
  std::vector<sched::PrefillView> views_;
  std::vector<sched::DecodeView> decode_views_;
  std::vector<sched::DecodeShare> decode_shares_, prefill_shares_;
  std::vector<JobId> ended_;
  ClusterReport report_;
};

}  // namespace cachalot::sim
