#include "cluster_flags.h"

#include <charconv>
#include <cinttypes>
#include <cmath>
#include <limits>

#include "values.h"

namespace cachalot::apps {
namespace {

constexpr double kGiga = 1e9;

// "leave:3@600": prefill instance 3 leaves after 600 s.
Result<sim::Membership> parse_change(const std::string& text) {
  const Error error = Error::make(
      Code::kInvalidArgument,
      "--change: \"%.60s\", expected leave, fail or join:INSTANCE@SECONDS, as in leave:3@600",
      text.c_str());
  const std::size_t colon = text.find(':'), at = text.find('@');
  if (colon == std::string::npos || at == std::string::npos || at < colon) return error;
  sim::Membership change;
  const std::string kind = text.substr(0, colon);
  if (kind == "leave") {
    change.change = sim::Change::kLeave;
  } else if (kind == "fail") {
    change.change = sim::Change::kFail;
  } else if (kind == "join") {
    change.change = sim::Change::kJoin;
  } else {
    return error;
  }
  const char* const begin = text.data();
  const auto instance = std::from_chars(begin + colon + 1, begin + at, change.instance);
  const auto seconds = std::from_chars(begin + at + 1, begin + text.size(), change.at_s);
  if (instance.ec != std::errc() || instance.ptr != begin + at || seconds.ec != std::errc() ||
      seconds.ptr != begin + text.size()) {
    return error;
  }
  return change;
}

Status set_caches(const ClusterFlags& flags, sim::ClusterOptions& options) {
  CACHALOT_TRY_ASSIGN(const std::uint64_t node,
                      parse_blocks_or_inf("--node-capacity-blocks", flags.node_capacity_blocks));
  options.node_capacity_blocks = flags.shared_pool ? 0 : node;
  if (!flags.pool_capacity_blocks.empty()) {
    CACHALOT_TRY_ASSIGN(options.pool_capacity_blocks,
                        parse_blocks_or_inf("--pool-capacity-blocks", flags.pool_capacity_blocks));
  } else if (flags.shared_pool) {
    if (__builtin_mul_overflow(node, flags.prefill, &options.pool_capacity_blocks) ||
        node == sim::kUnlimited) {
      options.pool_capacity_blocks = sim::kUnlimited;
    }
  }
  if (flags.shared_pool && options.pool_capacity_blocks == 0) {
    return Error::make(Code::kInvalidArgument,
                       "--shared-pool: a pool of 0 blocks, expected at least 1");
  }
  if (!flags.storage_capacity_blocks.empty()) {
    CACHALOT_TRY_ASSIGN(
        options.storage_capacity_blocks,
        parse_blocks_or_inf("--storage-capacity-blocks", flags.storage_capacity_blocks));
    if (options.storage_capacity_blocks != 0 && options.pool_capacity_blocks == 0) {
      return Error::make(Code::kInvalidArgument,
                         "--storage-capacity-blocks: %s without a pool, expected --shared-pool or "
                         "--pool-capacity-blocks",
                         flags.storage_capacity_blocks.c_str());
    }
  }
  CACHALOT_TRY_ASSIGN(options.eviction,
                      named("--eviction", eviction::parse_pool_policy(flags.eviction)));
  return {};
}

Status set_links(const ClusterFlags& flags, sim::ClusterOptions& options) {
  options.link = {.latency_s = flags.link_latency_us / 1e6, .bytes_per_s = flags.link_gb_s * kGiga};
  options.pool_link = options.link;
  if (flags.pool_link_gb_s != 0) options.pool_link.bytes_per_s = flags.pool_link_gb_s * kGiga;
  if (flags.pool_link_latency_us >= 0) {
    options.pool_link.latency_s = flags.pool_link_latency_us / 1e6;
  }
  options.storage_link = {.latency_s = flags.storage_latency_us / 1e6,
                          .bytes_per_s = flags.storage_gb_s * kGiga};
  if (flags.pool_gb_s != 0) options.pool_bytes_per_s = flags.pool_gb_s * kGiga;
  if (flags.operation_bytes.empty()) return {};
  CACHALOT_TRY_ASSIGN(const std::uint64_t bytes,
                      parse_bytes("--operation-bytes", flags.operation_bytes));
  if (bytes == 0) {
    return Error::make(Code::kInvalidArgument, "--operation-bytes: 0, expected at least 1");
  }
  for (sched::LinkSpeed* const link : {&options.link, &options.pool_link}) {
    if (link->latency_s == 0) continue;
    link->transfer_bytes_per_s = static_cast<double>(bytes) *
                                 static_cast<double>(flags.operations_in_flight) / link->latency_s;
  }
  return {};
}

Status set_peers(const ClusterFlags& flags, sim::ClusterOptions& options) {
  constexpr double kWaitMs = 2000;  // as the vLLM connector's storage_wait
  if (!flags.peers) return {};
  if (flags.shared_pool) {
    return Error::make(Code::kInvalidArgument,
                       "--peers: with --shared-pool, expected one of both: peers have caches of "
                       "their own");
  }
  options.peers.is_on = true;
  options.peers.cell = static_cast<std::uint32_t>(flags.peer_cell);
  if (flags.peer_gb_s != 0) options.peers.bytes_per_s = flags.peer_gb_s * kGiga;
  options.peers.copies_first = !flags.keep_peer_copies;
  options.peers.most_wait_s = (flags.peer_wait_ms < 0 ? kWaitMs : flags.peer_wait_ms) / 1e3;
  return {};
}

}  // namespace

void add_cluster_flags(Command& command, ClusterFlags& flags) {
  const auto add = [&](const char* name, auto& value, const char* type, const char* text) {
    return command.add_option(name, value, text)->type_name(type);
  };
  add("--prefill", flags.prefill, "P", "prefill instances")->transform(number(1, 65536));
  add("--decode", flags.decode, "D",
      "decode instances; 0 (default): only the prefill side, which ends with the first token")
      ->transform(number(0, 65536));
  add("--node-capacity-blocks", flags.node_capacity_blocks, "N|inf",
      "cache of each prefill instance, or of each colocated engine's host, in blocks of the trace")
      ->capture_default_str();
  command.add_flag("--shared-pool", flags.shared_pool,
                   "instead, one pool of the same size in all, which all instances read and write");
  add("--pool-capacity-blocks", flags.pool_capacity_blocks, "N|inf",
      "size of the pool; without --shared-pool a pool beside the instances' own caches");
  add("--eviction", flags.eviction, eviction::pool_policy_names("|").c_str(),
      "eviction policy of caches and pool")
      ->capture_default_str();
  add("--link-gb-s", flags.link_gb_s, "X", "bandwidth of an instance's link, each way, in GB/s")
      ->transform(decimal(1e-6, 1e6))
      ->capture_default_str();
  add("--link-latency-us", flags.link_latency_us, "X", "its latency")
      ->transform(decimal(0, 1e9))
      ->capture_default_str();
  add("--pool-link-gb-s", flags.pool_link_gb_s, "X",
      "bandwidth of an instance's link to the pool (default: --link-gb-s)")
      ->transform(decimal(1e-6, 1e6));
  add("--pool-link-latency-us", flags.pool_link_latency_us, "X",
      "its latency (default: --link-latency-us)")
      ->transform(decimal(0, 1e9));
  add("--pool-gb-s", flags.pool_gb_s, "X",
      "bandwidth of the pool for all together, each way (default: what the links reach)")
      ->transform(decimal(1e-6, 1e9));
  add("--storage-capacity-blocks", flags.storage_capacity_blocks, "N|inf",
      "storage behind the pool, which gets a copy of all that the pool gets");
  add("--storage-gb-s", flags.storage_gb_s, "X",
      "its bandwidth for all together, each way, in GB/s")
      ->transform(decimal(1e-6, 1e6))
      ->capture_default_str();
  add("--storage-latency-us", flags.storage_latency_us, "X", "its latency")
      ->transform(decimal(0, 1e9))
      ->capture_default_str();
  command.add_flag("--peers", flags.peers,
                   "hosts that are peers, as of serve --peers: what a cache lacks is fetched from "
                   "that of another instance, whatever the policy");
  add("--peer-cell", flags.peer_cell, "N",
      "so many instances in a row are peers of each other (default: all)")
      ->transform(number(1, 65536));
  add("--peer-gb-s", flags.peer_gb_s, "X",
      "most that an instance sends to its peers, in GB/s (default: what its link reaches)")
      ->transform(decimal(1e-6, 1e6));
  add("--peer-wait-ms", flags.peer_wait_ms, "X",
      "a prompt waits so long for blocks of peers, then takes those that have come; as the "
      "engines' storage_wait")
      ->transform(decimal(0, 1e9))
      ->default_str("2000");
  command.add_flag("--keep-peer-copies", flags.keep_peer_copies, "as of serve");
  add("--operation-bytes", flags.operation_bytes, "SIZE",
      "transfers are cut into operations of this size, each of which takes the latency")
      ->default_str("whole transfers");
  add("--operations-in-flight", flags.operations_in_flight, "N",
      "of one transfer, with --operation-bytes")
      ->transform(number(1, 1u << 20))
      ->capture_default_str();
  add("--decode-capacity-tokens", flags.decode_capacity_tokens, "N|inf",
      "KV of a decode instance or colocated engine (default: what the hardware has room for)");
  add("--decode-sequences", flags.decode_sequences, "N",
      "most sequences of a decode instance or colocated engine")
      ->transform(number(1, 1u << 20))
      ->capture_default_str();
  add("--balancing-threshold", flags.balancing_threshold, "X",
      "conductor: another instance's prefix counts if it is more than X times the own one")
      ->transform(decimal(1e-3, 1e9))
      ->capture_default_str();
  add("--ttft-slo-ms", flags.ttft_slo_ms, "X", "goal for the time to first token")
      ->transform(decimal(1e-3, 1e12));
  add("--tbt-slo-ms", flags.tbt_slo_ms, "X", "goal for the mean time between tokens")
      ->transform(decimal(1e-3, 1e12));
  add("--assumed-decode-s", flags.assumed_decode_s, "X",
      "what a decode takes for predictive admission (default: the mean so far)")
      ->transform(decimal(1e-3, 1e9));
  add("--decode-prediction", flags.decode_prediction, "uniform|exponential",
      "predictive admission: each decode takes the same time, or ends with the same rate")
      ->capture_default_str();
  add("--decode-check", flags.decode_check, "present|with_request",
      "reject_on_load: after the prefill, whether the decode instance misses the goal with what it "
      "has, or with the request")
      ->capture_default_str();
  add("--change", flags.changes, "WHAT:I@S",
      "leave:I@S, fail:I@S or join:I@S: prefill instance I after S seconds; several times");
  add("--window-s", flags.window_s, "X",
      "length of a window of the load over time; longer if there were more than 16384")
      ->transform(decimal(1e-3, 1e9))
      ->capture_default_str();
  add("--seed", flags.seed, "S", "of random choices")
      ->transform(number(0, ~std::uint64_t{0}))
      ->capture_default_str();
}

Result<sim::ClusterOptions> cluster_options(const ClusterFlags& flags) {
  if (flags.prefill == 0) {
    return Error::make(
        Code::kInvalidArgument,
        "simulate: no instances, expected --prefill P and --decode D, or --colocated N");
  }
  sim::ClusterOptions options;
  options.prefill = static_cast<std::uint32_t>(flags.prefill);
  options.decode = static_cast<std::uint32_t>(flags.decode);
  CACHALOT_TRY(set_caches(flags, options));
  CACHALOT_TRY(set_links(flags, options));
  CACHALOT_TRY(set_peers(flags, options));
  if (!flags.decode_capacity_tokens.empty()) {
    CACHALOT_TRY_ASSIGN(
        options.decode_capacity_tokens,
        parse_blocks_or_inf("--decode-capacity-tokens", flags.decode_capacity_tokens));
  }
  options.decode_most_sequences = flags.decode_sequences;
  options.routing.balancing_threshold = flags.balancing_threshold;
  if (flags.ttft_slo_ms != 0) options.admission.ttft_slo_s = flags.ttft_slo_ms / 1000;
  if (flags.tbt_slo_ms != 0) options.admission.tbt_slo_s = flags.tbt_slo_ms / 1000;
  options.assumed_decode_s = flags.assumed_decode_s;
  CACHALOT_TRY_ASSIGN(
      options.admission.prediction,
      named("--decode-prediction", sched::parse_decode_prediction(flags.decode_prediction)));
  CACHALOT_TRY_ASSIGN(options.admission.check,
                      named("--decode-check", sched::parse_decode_check(flags.decode_check)));
  options.seed = flags.seed;
  options.window_s = flags.window_s;
  for (const std::string& text : flags.changes) {
    CACHALOT_TRY_ASSIGN(const sim::Membership change, parse_change(text));
    if (change.instance >= options.prefill || !(change.at_s >= 0) || !std::isfinite(change.at_s)) {
      return Error::make(
          Code::kInvalidArgument,
          "--change: \"%.60s\" of instance %u, expected one below %u, at 0 s or later",
          text.c_str(), change.instance, options.prefill);
    }
    options.changes.push_back(change);
  }
  return options;
}

}  // namespace cachalot::apps
