// Timing from a profile: the times of a step's operators, added up.
//
//   step = layers * (dense operators of all tokens + attention) + embedding, final norm, output head, sampler
//          + all-reduces of tensor parallelism + overhead of a step with prompt tokens
//
// What recorded runs of vLLM 0.19 say about the composition (docs/design/sched.md has the figures):
// - Steps that only decode run as one recorded graph: their kernels' times add up, within 1 to 4 %. Tokens are padded
//   to the next size that was recorded.
// - Steps with prompt tokens take a constant more than their kernels, whatever their size (gpu_spec.h): no recorded
//   graph covers them, and the host prepares more.
// - Uneven contexts make decode slower, by the table of skew, where the profile has one.
// - The host's own work (scheduling, detokenizing) hides behind the GPU's: nothing is added for it.
#pragma once

#include <cachalot/result.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sched/timing/attention_grid.h"
#include "sched/timing/gpu_spec.h"
#include "sched/timing/profile_tables.h"
#include "sched/timing/served_model.h"
#include "sched/timing/timing_model.h"

namespace cachalot::sched {

struct ProfileOptions {
  // vLLM records graphs for 1, 2, 4, multiples of 8 to 256, then of 16, up to so many tokens.
  std::uint64_t largest_graph_tokens = 512;
  // Chunk of prefill_seconds(): the engine's tokens per step.
  std::uint64_t chunk_tokens = 2048;
};

class ProfileModel final : public TimingModel {
 public:
  // @errors kBadInput: an operator is missing; kInvalidArgument: a number of the options
  static Result<ProfileModel> make(const ProfileTables& tables, const ServedModel& model,
                                   const GpuSpec& gpu, const ProfileOptions& options);

  double step_seconds(std::span<const PrefillPart> prefill,
                      const DecodePart& decode) const override;
  double prefill_seconds(std::uint64_t input_tokens, std::uint64_t hit_tokens) const override;

  const GpuSpec& gpu() const { return gpu_; }
  const ServedModel& model() const { return model_; }
  std::uint64_t tensor_parallel() const { return tensor_parallel_; }

 private:
  ProfileModel(const ServedModel& model, const GpuSpec& gpu, const ProfileOptions& options,
               AttentionGrid attention)
      : model_(model), gpu_(gpu), options_(options), attention_(std::move(attention)) {}

  void tabulate(const ProfileTables& tables);
  std::uint64_t padded(std::uint64_t tokens) const;
  double tokens_us(std::uint64_t tokens) const;
  double sequences_us(std::uint64_t sequences) const;
  double attention_us(std::span<const PrefillPart> prefill, const DecodePart& decode) const;
  double uneven_decode_us(const DecodePart& decode) const;

  ServedModel model_;
  GpuSpec gpu_;
  ProfileOptions options_;
  AttentionGrid attention_;
  std::uint64_t tensor_parallel_ = 1;
  // By number of tokens and of sequences, so that a step looks up two numbers. What lies behind: the slope of the end.
  std::vector<double> tokens_us_;
  std::vector<double> sequences_us_;
  double more_tokens_us_ = 0, more_sequences_us_ = 0;
  bool has_skew_ = false;
  SkewAxis skew_sequences_, skew_rate_, skew_longest_;
  // Without a chunk, [sequences][skew rate][longest context] by the numbers of the labels.
  std::vector<double> alpha_;
};

}  // namespace cachalot::sched
