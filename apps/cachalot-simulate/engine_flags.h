// The flags of `cachalot simulate` that describe the engine of a colocated instance.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster_flags.h"
#include "flags.h"
#include "sim/engine/engine.h"
#include "timing_source.h"

namespace cachalot::apps {

struct EngineFlags {
  std::uint64_t step_tokens = 2048;
  std::uint64_t block_tokens = 16;
  std::vector<std::string> layerwise = {"off"};
  std::string layerwise_admission = "hidden";
  double host_gb_s = 0;   // the GPUs'
  double host_kv_gb = 0;  // no limit
};

// --step-tokens, --engine-block-tokens, --layerwise, --layerwise-admission, --host-gb-s and --host-kv-gb; KV and sequences are those of --decode-capacity-tokens and
// --decode-sequences.
void add_engine_flags(Command& command, EngineFlags& flags);

// Without the kind of layer-wise KV.
// @errors kInvalidArgument: KV without a limit, or more than an engine can number
Result<sim::EngineOptions> engine_options(const EngineFlags& flags, const ClusterFlags& cluster,
                                          const Timing& timing);

}  // namespace cachalot::apps
