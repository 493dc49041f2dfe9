#include "engine_flags.h"

#include <algorithm>
#include <cinttypes>

#include "values.h"

namespace cachalot::apps {

void add_engine_flags(Command& command, EngineFlags& flags) {
  const auto add = [&](const char* name, auto& value, const char* type, const char* text) {
    return command.add_option(name, value, text)->type_name(type);
  };
  add("--step-tokens", flags.step_tokens, "N",
      "most tokens of a step of a colocated engine: the chunk of a prompt beside its decodes")
      ->transform(number(1, 1u << 24))
      ->capture_default_str();
  add("--engine-block-tokens", flags.block_tokens, "N",
      "of a KV block of a colocated engine; a divisor of the trace's --block-tokens")
      ->transform(number(1, 1u << 16))
      ->capture_default_str();
  add("--layerwise", flags.layerwise, (sched::layerwise_names("|") + ",…").c_str(),
      "KV of colocated engines beyond the device: none, request-wise swap, LayerKV always, or by "
      "memory and queue; several make one table")
      ->capture_default_str();
  add("--layerwise-admission", flags.layerwise_admission, "hidden|goal",
      "when a prompt may begin with KV in the host's memory: while loading that hides behind "
      "decode "
      "steps, or while all that decode keep --tbt-slo-ms")
      ->transform(one_of({"hidden", "goal"}))
      ->capture_default_str();
  add("--host-gb-s", flags.host_gb_s, "X",
      "bandwidth between an instance and its host's memory, each way (default: of its GPUs, each "
      "with its own link)")
      ->transform(decimal(1e-6, 1e6));
  add("--host-kv-gb", flags.host_kv_gb, "X",
      "host memory of an instance for KV that --layerwise puts there (default: no limit)")
      ->transform(decimal(1e-6, 1e9));
}

Result<sim::EngineOptions> engine_options(const EngineFlags& flags, const ClusterFlags& cluster,
                                          const Timing& timing) {
  std::uint64_t tokens = timing.decode_capacity_tokens;
  if (!cluster.decode_capacity_tokens.empty()) {
    CACHALOT_TRY_ASSIGN(
        tokens, parse_blocks_or_inf("--decode-capacity-tokens", cluster.decode_capacity_tokens));
  }
  constexpr std::uint64_t kMostBlocks = 1u << 28;
  const std::uint64_t blocks = tokens / flags.block_tokens;
  if (blocks == 0 || blocks > kMostBlocks) {
    return Error::make(Code::kInvalidArgument,
                       "--decode-capacity-tokens: %s, expected %" PRIu64 " to %" PRIu64
                       " tokens for a colocated engine",
                       cluster.decode_capacity_tokens.c_str(), flags.block_tokens,
                       kMostBlocks * flags.block_tokens);
  }
  sim::EngineOptions engine{.blocks = blocks,
                            .block_tokens = flags.block_tokens,
                            .max_sequences = cluster.decode_sequences,
                            .step_tokens = flags.step_tokens};
  engine.layerwise.layers = static_cast<std::uint64_t>(timing.layers);
  engine.layerwise.host_bytes_per_s =
      flags.host_gb_s > 0 ? flags.host_gb_s * 1e9 : timing.host_bytes_per_s;
  if (flags.layerwise_admission == "goal" && cluster.tbt_slo_ms > 0) {
    engine.layerwise.tbt_slo_s = cluster.tbt_slo_ms / 1e3;
  }
  engine.kv_bytes_per_block = timing.kv_bytes_per_token * static_cast<double>(flags.block_tokens);
  if (flags.host_kv_gb > 0) {
    engine.host_blocks =
        static_cast<std::uint64_t>(flags.host_kv_gb * 1e9 / engine.kv_bytes_per_block);
  }
  return engine;
}

}  // namespace cachalot::apps
