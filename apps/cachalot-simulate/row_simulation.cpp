#include "row_simulation.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>

#include "flag_uses.h"
#include "sim/cluster/cluster.h"
#include "sim/colocated/colocated.h"
#include "values.h"

namespace cachalot::apps {
namespace {

Status check_flags(const SimulateOptions& options, std::span<const std::string> admissions,
                   std::span<const std::string> layerwise) {
  const ClusterFlags& flags = options.cluster;
  const auto rejecting =
      std::ranges::find_if(admissions, [](const std::string& name) { return name != "none"; });
  if (rejecting != admissions.end() && flags.ttft_slo_ms == 0 && flags.tbt_slo_ms == 0) {
    return Error::make(Code::kInvalidArgument,
                       "--admission: %s without a goal rejects nothing, expected --ttft-slo-ms or "
                       "--tbt-slo-ms",
                       rejecting->c_str());
  }
  if (flags.prefill == 0 && flags.colocated != 0 && flags.decode != 0) {
    return Error::make(Code::kInvalidArgument,
                       "--decode: %" PRIu64
                       " without --prefill, expected both or --colocated alone",
                       flags.decode);
  }
  if (flags.colocated != 0 && !flags.storage_capacity_blocks.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "--storage-capacity-blocks: %s with --colocated, expected it with "
                       "--prefill alone",
                       flags.storage_capacity_blocks.c_str());
  }
  if (flags.colocated != 0 && flags.peers && !flags.pool_capacity_blocks.empty()) {
    return Error::make(Code::kInvalidArgument,
                       "--pool-capacity-blocks: %s with --colocated and --peers, expected it with "
                       "--prefill alone",
                       flags.pool_capacity_blocks.c_str());
  }
  if (flags.colocated != 0) return {};
  const auto not_off =
      std::ranges::find_if(layerwise, [](const std::string& name) { return name != "off"; });
  if (not_off == layerwise.end()) return {};
  return Error::make(Code::kInvalidArgument,
                     "--layerwise: \"%s\" without colocated engines, expected --colocated N",
                     not_off->c_str());
}

Result<ClusterKind> kind_of(const SimulateOptions& options, const ClusterFlags& flags,
                            const Timing& timing, std::string name) {
  ClusterKind kind{.name = std::move(name), .cluster = {}, .engine = {}};
  CACHALOT_TRY_ASSIGN(kind.cluster, cluster_options(flags));
  kind.cluster.kv_bytes_per_token = timing.kv_bytes_per_token;
  if (flags.decode_capacity_tokens.empty()) {
    kind.cluster.decode_capacity_tokens = timing.decode_capacity_tokens;
  }
  kind.cluster.closed_loop = options.closed_loop;
  CACHALOT_TRY(sim::check(kind.cluster));
  CACHALOT_TRY_ASSIGN(
      kind.price, price_of(options.cost, std::uint64_t{kind.cluster.prefill} + kind.cluster.decode,
                           timing.gpus, kind.cluster.pool_capacity_blocks != 0));
  return kind;
}

Result<std::vector<ClusterKind>> kinds_of(const SimulateOptions& options, const Timing& timing) {
  std::vector<ClusterKind> kinds;
  const ClusterFlags& flags = options.cluster;
  if (flags.prefill != 0 || flags.colocated == 0) {
    const std::string name =
        std::to_string(flags.prefill) + "P+" + std::to_string(flags.decode) + "D";
    CACHALOT_TRY_ASSIGN(ClusterKind separated, kind_of(options, flags, timing, name));
    kinds.push_back(std::move(separated));
  }
  if (flags.colocated != 0) {
    ClusterFlags same = flags;
    same.prefill = flags.colocated;
    same.decode = 0;
    CACHALOT_TRY_ASSIGN(
        ClusterKind colocated,
        kind_of(options, same, timing, std::to_string(flags.colocated) + " colocated"));
    colocated.is_colocated = true;
    CACHALOT_TRY_ASSIGN(colocated.engine, engine_options(options.engine, flags, timing));
    kinds.push_back(std::move(colocated));
  }
  for (ClusterKind& kind : kinds) kind.passes = options.passes;
  return kinds;
}

// A set of Use: what these rows have.
unsigned uses_of(const SimulateOptions& options, const PolicySetup& setup,
                 std::span<const std::string> admissions, std::span<const std::string> layerwise) {
  const ClusterFlags& flags = options.cluster;
  const RecordedRunFlags& profile = options.recorded;
  const auto has = [](std::span<const std::string> names, std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  unsigned uses = 0;
  const auto add_if = [&](bool condition, unsigned use) { uses |= condition ? use : 0; };
  const bool has_profile = !profile.profile.empty();
  const bool reduces = has_profile && setup.timing->gpus > 1;
  add_if(!flags.shared_pool || flags.pool_capacity_blocks.empty(), kNodeCaches);
  add_if(!flags.operation_bytes.empty(), kOperationSize);
  add_if(has_profile, kProfile);
  add_if(reduces, kReduceLink);
  add_if(reduces && (profile.link_gb_s.empty() || profile.link_us.empty()), kReducePreset);
  add_if(!options.timing.calibration.empty(), kFittedModel);
  add_if(!has_profile && options.timing.calibration.empty(), kTimesOfFormula);
  add_if(options.closed_loop == 0, kTraceTimes);
  add_if(!options.map.empty(), kMap);
  for (const ClusterKind& kind : setup.kinds) {
    const sim::ClusterOptions& cluster = kind.cluster;
    const bool has_pool = cluster.pool_capacity_blocks != 0, has_several = cluster.prefill > 1;
    const bool has_decode_side = cluster.decode != 0,
               decodes = has_decode_side || kind.is_colocated;
    const bool has_moves = setup.routing == sched::RoutingKind::kConductor && has_several &&
                           (kind.is_colocated || cluster.node_capacity_blocks != 0);
    // With a pool KV goes to decode through it.
    const bool uses_links = has_moves || cluster.peers.is_on || (has_decode_side && !has_pool);
    const bool is_chance = setup.routing == sched::RoutingKind::kRandom ||
                           setup.routing == sched::RoutingKind::kPowerOfTwo;
    const bool has_layers = kind.is_colocated && std::ranges::any_of(layerwise, [](auto& name) {
                              return name != "off";
                            });
    const bool has_prompt_plan = has_layers && (has(layerwise, "on") || has(layerwise, "auto"));
    add_if(has_pool, kPool);
    add_if(cluster.storage_capacity_blocks != 0, kStorage);
    add_if(cluster.peers.is_on, kPeers);
    add_if(has_several, kSeveral);
    add_if(has_moves, kMoves);
    add_if(uses_links || (has_pool && flags.pool_link_gb_s == 0), kLinkSpeed);
    add_if(uses_links || (has_pool && flags.pool_link_latency_us < 0), kLinkLatency);
    add_if((uses_links && cluster.link.latency_s != 0) ||
               (has_pool && cluster.pool_link.latency_s != 0),
           kOperations);
    add_if(has_decode_side, kDecodeSide);
    add_if(kind.is_colocated, kColocated);
    add_if(is_chance && has_several, kChance);
    add_if(decodes && flags.tbt_slo_ms != 0 && has(admissions, "predictive"), kPrediction);
    add_if(has_decode_side && flags.tbt_slo_ms != 0 && has(admissions, "reject_on_load"),
           kDecodeCheck);
    add_if(has_layers, kHostKv);
    add_if(
        has_prompt_plan && (options.engine.layerwise_admission != "goal" || flags.tbt_slo_ms != 0),
        kPromptPlan);
    add_if(decodes && !has_profile && options.timing.calibration.empty(), kFormula);
    add_if(kind.price.network == "rdma", kRdma);
    add_if(kind.price.network == "cxl", kCxl);
  }
  return uses;
}

Result<sim::ClusterReport> simulate_row(const ClusterKind& kind, const PolicySetup& setup,
                                        const sim::Workload& workload, const SimulateRow& row,
                                        const std::function<void(double)>& on_progress) {
  sim::ClusterOptions cluster = kind.cluster;
  cluster.routing.kind = setup.routing;
  CACHALOT_TRY_ASSIGN(cluster.admission.kind, sched::parse_admission(row.admission));
  if (kind.passes > 1) cluster.pass_requests = workload.jobs().size() / kind.passes;
  const sim::ClusterTiming times = {setup.timing->prefill.get(), setup.timing->decode.get()};
  if (!kind.is_colocated) return sim::simulate(cluster, workload, times, on_progress);
  sim::EngineOptions engine = kind.engine;
  CACHALOT_TRY_ASSIGN(engine.layerwise.kind, sched::parse_layerwise(row.layerwise));
  return sim::simulate_colocated({cluster, engine}, workload, times, on_progress);
}

}  // namespace

Result<RowSimulator> RowSimulator::make(const BoundFlags& flags) {
  RowSimulator simulator(flags);
  const SimulateOptions& options = flags.options;
  CACHALOT_TRY_ASSIGN(const auto policies, split_list("--policy", options.policies));
  CACHALOT_TRY_ASSIGN(simulator.admissions_, split_list("--admission", options.admissions));
  CACHALOT_TRY_ASSIGN(simulator.layerwise_, split_list("--layerwise", options.engine.layerwise));
  CACHALOT_TRY(check_differ("--policy", policies));
  CACHALOT_TRY(check_differ("--admission", simulator.admissions_));
  CACHALOT_TRY(check_differ("--layerwise", simulator.layerwise_));
  for (const std::string& text : policies) {
    CACHALOT_TRY_ASSIGN(PolicyRow row, parse_policy_row(flags, text));
    simulator.policies_.push_back(std::move(row));
  }
  for (const std::string& name : simulator.admissions_) {
    CACHALOT_TRY(named("--admission", sched::parse_admission(name)));
  }
  for (const std::string& name : simulator.layerwise_) {
    CACHALOT_TRY(named("--layerwise", sched::parse_layerwise(name)));
  }
  return simulator;
}

Result<std::shared_ptr<const Timing>> RowSimulator::timing_for(const SimulateOptions& options) {
  const auto known = std::ranges::find_if(known_, [&](const KnownTiming& timing) {
    return timing.flags == options.timing && timing.recorded == options.recorded &&
           timing.step_tokens == options.engine.step_tokens;
  });
  if (known != known_.end()) return known->timing;
  CACHALOT_TRY_ASSIGN(Timing timing,
                      timing_of(options.timing, options.recorded, options.engine.step_tokens));
  known_.push_back({options.timing, options.recorded, options.engine.step_tokens,
                    std::make_shared<const Timing>(std::move(timing))});
  return known_.back().timing;
}

Status RowSimulator::check_axes(std::span<const MapAxis> axes) const {
  for (const PolicyRow& policy : policies_) {
    for (const FlagValue& own : policy.flags) {
      if (std::ranges::find(axes, own.flag, &MapAxis::flag) == axes.end()) continue;
      return Error::make(Code::kInvalidArgument,
                         "--map: %s, but \"%.80s\" has a value of its own, expected one of both",
                         own.flag.c_str(), policy.name.c_str());
    }
  }
  return {};
}

Result<std::vector<PolicySetup>> RowSimulator::prepare(std::span<const FlagValue> values) {
  std::vector<PolicySetup> setups;
  for (const PolicyRow& policy : policies_) {
    std::vector<FlagValue> all(values.begin(), values.end());
    all.insert(all.end(), policy.flags.begin(), policy.flags.end());
    CACHALOT_TRY_ASSIGN(const SimulateOptions options, flags_.with(all));
    CACHALOT_TRY(check_flags(options, admissions_, layerwise_));
    PolicySetup setup{
        .name = policy.name, .routing = policy.routing, .timing = nullptr, .kinds = {}};
    CACHALOT_TRY_ASSIGN(setup.timing, timing_for(options));
    CACHALOT_TRY_ASSIGN(setup.kinds, kinds_of(options, *setup.timing));
    setup.uses = uses_of(options, setup, admissions_, layerwise_);
    setups.push_back(std::move(setup));
  }
  return setups;
}

Status RowSimulator::check_uses(std::span<const std::vector<PolicySetup>> cells,
                                std::span<const MapAxis> axes) const {
  std::vector<unsigned> uses(policies_.size());
  unsigned all = 0;
  for (const std::vector<PolicySetup>& setups : cells) {
    for (std::size_t i = 0; i < setups.size(); ++i) {
      uses[i] |= setups[i].uses;
      all |= setups[i].uses;
    }
  }
  CACHALOT_TRY(apps::check_uses(given_, all));
  for (const MapAxis& axis : axes) {
    const FlagValue first = {axis.flag, axis.values.front()};
    CACHALOT_TRY(apps::check_uses({&first, 1}, all));
  }
  for (std::size_t i = 0; i < uses.size(); ++i) {
    CACHALOT_TRY(apps::check_uses(policies_[i].flags, uses[i]));
  }
  return {};
}

std::size_t RowSimulator::rows_of(std::span<const PolicySetup> setups) const {
  std::size_t rows = 0;
  for (const PolicySetup& setup : setups) {
    for (const ClusterKind& kind : setup.kinds) {
      rows += admissions_.size() * (kind.is_colocated ? layerwise_.size() : 1);
    }
  }
  return rows;
}

Result<std::vector<SimulateRow>> RowSimulator::simulate(std::span<const PolicySetup> setups,
                                                        const sim::Workload& workload,
                                                        double rate_scale,
                                                        const OnProgress& on_progress) const {
  const std::vector<std::string> off = {"off"};
  std::size_t most_kinds = 0;
  for (const PolicySetup& setup : setups) most_kinds = std::max(most_kinds, setup.kinds.size());
  std::vector<SimulateRow> rows;
  const auto add = [&](const PolicySetup& setup, const ClusterKind& kind,
                       const std::string& admission, const std::string& layers) -> Status {
    SimulateRow row{.cluster = kind.name,
                    .policy = setup.name,
                    .admission = admission,
                    .layerwise = layers,
                    .rate_scale = rate_scale,
                    .names_cluster = most_kinds > 1,
                    .block_tokens = workload.block_tokens(),
                    .options = kind.cluster,
                    .timing = setup.timing,
                    .report = {}};
    std::function<void(double)> show;
    if (on_progress) show = [&](double part) { on_progress(row, part); };
    const auto begin = std::chrono::steady_clock::now();
    CACHALOT_TRY_ASSIGN(row.report, simulate_row(kind, setup, workload, row, show));
    row.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    row.cost = cost_of(kind.price, row.report);
    rows.push_back(std::move(row));
    return {};
  };
  for (std::size_t k = 0; k < most_kinds; ++k) {
    for (const PolicySetup& setup : setups) {
      if (k >= setup.kinds.size()) continue;
      const ClusterKind& kind = setup.kinds[k];
      for (const std::string& admission : admissions_) {
        for (const std::string& layers : kind.is_colocated ? layerwise_ : off) {
          CACHALOT_TRY(add(setup, kind, admission, layers));
        }
      }
    }
  }
  return rows;
}

}  // namespace cachalot::apps
