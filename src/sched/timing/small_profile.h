// A profile for tests whose step times can be added up by hand.
//
// Each of the operators below takes 1 us a token (layernorm 0.5), so a layer takes 7 us a token; embedding and final
// norm 1 us a token each; output head and sampler 1 us a sequence each. Attention: 10 us for 1,000 tokens of all decode
// contexts together, 2 us a token of a chunk.
#pragma once

#include "sched/timing/gpu_spec.h"
#include "sched/timing/profile_tables.h"
#include "sched/timing/served_model.h"

namespace cachalot::sched {

inline ServedModel small_model() {
  return {.name = "small",
          .layers = 10,
          .width = 1000,
          .heads = 8,
          .kv_heads = 2,
          .head_dim = 128,
          .inner_width = 4000,
          .vocabulary = 10000};
}

inline GpuSpec small_gpu() {
  return {.name = "small",
          .memory_bytes = 1e9,
          .memory_bytes_per_second = 1e12,
          .bf16_flops = 1e14,
          .fp8_flops = 2e14,
          .link_bytes_per_second = 1e10,
          .link_latency_s = 1e-6,
          .host_bytes_per_second = 1e10,
          .prompt_step_overhead_s = 0.001,
          .link_is_estimate = true};
}

inline ProfileTables small_profile() {
  ProfileTables tables;
  tables.hardware = tables.model = "small";
  const auto line = [](double slope) { return Curve{{1, slope}, {1000, 1000 * slope}}; };
  for (const char* name : {"qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn",
                           "down_proj", "embedding", "final_layernorm"})
    tables.dense[name] = line(1);
  tables.dense["layernorm"] = line(0.5);
  for (const char* name : {"lm_head", "sampler"}) tables.per_sequence[name] = line(1);
  for (const double sequences : {1.0, 100.0}) {
    for (const double context : {10.0, 1000.0}) {
      const double decode = sequences * context / 100;
      tables.attention.push_back({0, 0, sequences, context, decode});
      for (const double chunk : {16.0, 1000.0})
        tables.attention.push_back({chunk, 0, sequences, context, decode + 2 * chunk});
    }
  }
  for (const double chunk : {16.0, 1000.0}) tables.attention.push_back({chunk, 0, 0, 0, 2 * chunk});
  return tables;
}

}  // namespace cachalot::sched
