// What a simulation found: each request's fate, and the figures of the whole.
//
// 1. Every request ends once: completed + rejected = requests.
// 2. Hits are of requests whose prefill was computed, each once, however often it began again: the sum of the records.
// 3. A request is good if it completed, its TTFT is at most the goal, and its mean time between tokens is, too.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/cluster/decode_node.h"
#include "sim/cluster/workload.h"

namespace cachalot::sim {

enum class Outcome : std::uint8_t {
  kOpen,  // only while the simulation runs
  kCompleted,
  kRejectedPrefill,  // at arrival: its TTFT would have been too long
  kRejectedDecode,   // at arrival: the decode side was, or would have been, too full
  kWasted,           // after its prefill: no decode instance could keep its goal, or ever hold it
  kNoInstance,       // no instance accepted it, or the KV of a colocated engine could never hold it
};
const char* outcome_name(Outcome outcome);

struct RequestRecord {
  Outcome outcome = Outcome::kOpen;
  std::uint32_t prefill = 0xffffffffu;  // instance; none: 0xffffffff
  std::uint32_t decode = 0xffffffffu;
  std::uint32_t restarts = 0;  // after a failure of an instance
  // Of the prefill that counts, the last: none was computed, or its instance failed, 0.
  std::uint64_t hit_tokens = 0;                    // that it began with
  std::uint64_t transferred_tokens = 0;            // that a peer or the pool sent for it
  std::uint64_t peer_tokens = 0, pool_tokens = 0;  // of hit_tokens, from there
  std::uint64_t storage_tokens = 0;  // likewise, which the storage brought into the pool
  double arrival_s = 0;  // the workload's, or in a closed loop when another request made room
  double predicted_ttft_s = 0;
  double prefill_begin_s = 0;
  double first_token_s = 0;
  double end_s = 0;
};

struct InstanceReport {
  bool is_decode = false;
  bool is_colocated = false;  // both: it has the figures of both
  std::uint32_t instance = 0;
  std::uint64_t requests = 0;
  double busy_s = 0;
  std::uint64_t hit_tokens = 0, input_tokens = 0;  // prefill
  std::uint64_t cached_blocks = 0, most_cached_blocks = 0, evictions = 0;
  std::uint64_t steps = 0, tokens = 0, most_reserved_tokens = 0;  // decode
  double sent_bytes = 0, received_bytes = 0;
  std::vector<double>
      load;  // mean of each window: busy share and queue (prefill), predicted TBT / goal (decode)
  std::vector<double> queue;  // requests queued and running (prefill), running sequences (decode)
};

struct Distribution {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0;
};
// Sorts them. A percentile is the smallest value that so many percent do not exceed.
Distribution distribution_of(std::vector<double>& values);

// The requests of one pass through the trace.
struct PassReport {
  std::uint64_t requests = 0, completed = 0, input_tokens = 0, hit_tokens = 0;
  double seconds = 0;  // from its first arrival to its last end
  Distribution ttft_s, tpot_s, e2e_s;
  double completed_rps = 0;
};

struct ClusterReport {
  std::uint64_t requests = 0, completed = 0, good = 0;
  std::uint64_t rejected_prefill = 0, rejected_decode = 0, wasted = 0, no_instance = 0;
  std::uint64_t restarts = 0;
  // Of colocated engines; bytes of KV to their hosts' memory and back, with layer-wise KV.
  std::uint64_t preemptions = 0;
  double host_out_bytes = 0, host_in_bytes = 0;
  Distribution ttft_s, tbt_s, tpot_s, e2e_s;
  double goodput_rps = 0, slo_attainment = 0;
  // Input and output of completed requests and of good ones; of an output that was not simulated only its first token.
  std::uint64_t completed_tokens = 0, good_tokens = 0;
  double offered_rps = 0;  // requests over the time from the first arrival to the last

  // Of requests whose prefill was computed: completed, or wasted.
  std::uint64_t input_tokens = 0, hit_tokens = 0, transferred_tokens = 0;
  std::uint64_t full_blocks = 0, hit_full_blocks = 0;
  double prefill_s = 0;       // of instances
  double prefill_cold_s = 0;  // the same without reuse
  double wasted_prefill_s = 0;

  double bytes_transferred = 0;
  double handover_bytes = 0, peer_bytes = 0, pool_read_bytes = 0, pool_write_bytes = 0;
  std::uint64_t pool_blocks = 0;
  // Of hit_tokens, by where they were when the request came; the rest was in the instance's own cache.
  std::uint64_t hit_tokens_peer = 0, hit_tokens_pool = 0, hit_tokens_storage = 0;
  // The same in blocks of prompts, of which the last may be filled in part: as `cachalot replay` counts.
  std::uint64_t blocks = 0, hit_blocks = 0;
  std::uint64_t hit_blocks_peer = 0, hit_blocks_pool = 0, hit_blocks_storage = 0;
  bool has_peers = false;
  std::uint64_t peer_gone_blocks = 0;  // evicted before the question for them came
  std::uint64_t peer_waits_ended = 0;  // of prompts that waited as long as they may
  double storage_read_bytes = 0, storage_write_bytes = 0;
  double storage_skipped_bytes = 0;  // not written, because too many writes were in flight
  std::uint64_t storage_blocks = 0;

  double sim_s = 0;  // from the first arrival to the last end
  double window_s = 0;
  std::vector<double> decode_load;  // of each window, the mean over decode instances
  double decode_load_deviation =
      0;  // of the windows in which requests arrived, without the first and the last

  std::vector<PassReport> passes;         // with ClusterOptions::pass_requests
  std::vector<InstanceReport> instances;  // prefill first
  std::vector<RequestRecord> records;     // of jobs, in their order

  std::uint64_t rejected() const {
    return rejected_prefill + rejected_decode + wasted + no_instance;
  }
  double token_hit_rate() const;
  double full_block_hit_rate() const;
  double block_hit_rate() const;
};

// Fills in what the records say.
void summarise(const Workload& workload, double ttft_slo_s, double tbt_slo_s, const TokenGaps& gaps,
               ClusterReport& report);

// Fills in `passes`, each of `pass_requests` records. 0: none.
void summarise_passes(const Workload& workload, std::size_t pass_requests, ClusterReport& report);

// The standard deviation of the decode load over the whole windows of arrivals, without the first, in which the cluster
// fills. Of records, window_s and decode_load.
double steady_deviation(const ClusterReport& report);

}  // namespace cachalot::sim
