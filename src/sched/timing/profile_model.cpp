#include "sched/timing/profile_model.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace cachalot::sched {
namespace {

constexpr const char* kEachLayerOnce[] = {"qkv_proj",     "rotary_emb", "o_proj",
                                          "gate_up_proj", "act_fn",     "down_proj"};
constexpr const char* kEachLayerTwice = "layernorm";
constexpr const char* kEachLayerIfThere = "qk_norm";
constexpr const char* kOnce[] = {"embedding", "final_layernorm"};
constexpr const char* kPerSequence[] = {"lm_head", "sampler"};

Status check_has(const std::map<std::string, Curve>& curves, const char* table, const char* name) {
  const auto found = curves.find(name);
  if (found != curves.end() && !found->second.empty()) return {};
  return Error::make(Code::kBadInput, "%s: no rows of layer %s, which every step needs", table,
                     name);
}

std::size_t bucket_of(const SkewAxis& axis, double value) {
  std::size_t i = 0;
  while (i + 1 < axis.labels.size() && value > axis.upper_edges[i]) ++i;
  return i;
}

}  // namespace

Result<ProfileModel> ProfileModel::make(const ProfileTables& tables, const ServedModel& model,
                                        const GpuSpec& gpu, const ProfileOptions& options) {
  if (options.chunk_tokens == 0) {
    return Error::make(Code::kInvalidArgument, "chunk_tokens is 0, expected at least 1");
  }
  for (const char* name : kEachLayerOnce) CACHALOT_TRY(check_has(tables.dense, "dense", name));
  CACHALOT_TRY(check_has(tables.dense, "dense", kEachLayerTwice));
  for (const char* name : kOnce) CACHALOT_TRY(check_has(tables.dense, "dense", name));
  for (const char* name : kPerSequence) {
    CACHALOT_TRY(check_has(tables.per_sequence, "per_sequence", name));
  }
  CACHALOT_TRY_ASSIGN(AttentionGrid attention, AttentionGrid::make(tables.attention));
  ProfileModel made(model, gpu, options, std::move(attention));
  made.tensor_parallel_ = tables.tensor_parallel;
  made.tabulate(tables);
  return made;
}

void ProfileModel::tabulate(const ProfileTables& tables) {
  const auto tp = static_cast<double>(tensor_parallel_);
  const auto all_tokens_us = [&](double tokens) {
    double layer = 2 * value_at(tables.dense.at(kEachLayerTwice), tokens);
    for (const char* name : kEachLayerOnce) layer += value_at(tables.dense.at(name), tokens);
    if (const auto found = tables.dense.find(kEachLayerIfThere); found != tables.dense.end()) {
      layer += value_at(found->second, tokens);
    }
    // After attention and after the feed-forward part, bf16 activations.
    layer += 2 * 1e6 * gpu_.all_reduce_seconds(tokens * model_.width * 2, tp);
    double us = model_.layers * layer;
    for (const char* name : kOnce) us += value_at(tables.dense.at(name), tokens);
    return us;
  };
  const auto all_sequences_us = [&](double sequences) {
    double us = 0;
    for (const char* name : kPerSequence) us += value_at(tables.per_sequence.at(name), sequences);
    return us;
  };
  double most_tokens = 1, most_sequences = 1;
  for (const auto& [name, curve] : tables.dense)
    most_tokens = std::max(most_tokens, curve.back().first);
  for (const auto& [name, curve] : tables.per_sequence)
    most_sequences = std::max(most_sequences, curve.back().first);
  const auto fill = [](std::vector<double>& table, double last, const auto& value, double& more) {
    table.resize(static_cast<std::size_t>(last) + 1);
    for (std::size_t i = 1; i < table.size(); ++i) table[i] = value(static_cast<double>(i));
    more = value(last + 1) - value(last);
  };
  fill(tokens_us_, most_tokens, all_tokens_us, more_tokens_us_);
  fill(sequences_us_, most_sequences, all_sequences_us, more_sequences_us_);

  has_skew_ = tables.has_skew;
  if (!has_skew_) return;
  skew_sequences_ = tables.skew.sequences;
  skew_rate_ = tables.skew.skew_rate;
  skew_longest_ = tables.skew.longest_context;
  const std::string& no_chunk = tables.skew.chunk_context.label_of(0);
  for (const std::string& sequences : skew_sequences_.labels) {
    for (const std::string& rate : skew_rate_.labels) {
      for (const std::string& longest : skew_longest_.labels) {
        const auto found = tables.skew.alpha.find({0, sequences, rate, longest, no_chunk});
        alpha_.push_back(found == tables.skew.alpha.end() ? tables.skew.alpha_default
                                                          : found->second);
      }
    }
  }
}

std::uint64_t ProfileModel::padded(std::uint64_t tokens) const {
  std::uint64_t graph = tokens;
  if (tokens <= 2) return tokens;
  if (tokens <= 4) {
    graph = 4;
  } else if (tokens <= 256) {
    graph = (tokens + 7) / 8 * 8;
  } else {
    graph = (tokens + 15) / 16 * 16;
  }
  return graph <= options_.largest_graph_tokens ? graph : tokens;
}

double ProfileModel::tokens_us(std::uint64_t tokens) const {
  const std::uint64_t last = tokens_us_.size() - 1;
  if (tokens <= last) return tokens_us_[tokens];
  return tokens_us_[last] + static_cast<double>(tokens - last) * more_tokens_us_;
}

double ProfileModel::sequences_us(std::uint64_t sequences) const {
  const std::uint64_t last = sequences_us_.size() - 1;
  if (sequences <= last) return sequences_us_[sequences];
  return sequences_us_[last] + static_cast<double>(sequences - last) * more_sequences_us_;
}

// The profile's skew rate: how many sequences are near the longest, from 0 (one) to 1 (all).
double ProfileModel::uneven_decode_us(const DecodePart& decode) const {
  const auto sequences = static_cast<double>(decode.sequences);
  const double mean = static_cast<double>(decode.context_tokens) / sequences;
  const double even = attention_.decode_us(sequences, mean);
  const auto longest = static_cast<double>(decode.longest_context_tokens);
  const auto shortest = static_cast<double>(decode.shortest_context_tokens);
  if (!has_skew_ || decode.sequences < 2 || longest <= mean || shortest >= longest) return even;
  const double rate = std::clamp((mean - shortest) / (longest - shortest), 0.0, 1.0);
  const std::size_t row = bucket_of(skew_sequences_, sequences) * skew_rate_.labels.size() +
                          bucket_of(skew_rate_, rate);
  const double alpha =
      alpha_[row * skew_longest_.labels.size() + bucket_of(skew_longest_, longest)];
  return std::max(0.0, even + alpha * (attention_.decode_us(sequences, longest) - even));
}

// The profile has one chunk beside the decodes: the largest goes there, the others are computed alone. Skew was fitted
// on other batches than steps with prompts are, and overstates those: it is left out there.
double ProfileModel::attention_us(std::span<const PrefillPart> prefill,
                                  const DecodePart& decode) const {
  const PrefillPart* largest = nullptr;
  for (const PrefillPart& part : prefill) {
    if (part.new_tokens != 0 && (largest == nullptr || part.new_tokens > largest->new_tokens))
      largest = &part;
  }
  if (largest == nullptr) return decode.sequences == 0 ? 0 : uneven_decode_us(decode);
  const auto sequences = static_cast<double>(decode.sequences);
  const double mean =
      decode.sequences == 0 ? 0 : static_cast<double>(decode.context_tokens) / sequences;
  double us = 0;
  for (const PrefillPart& part : prefill) {
    const bool with_decodes = &part == largest;
    us += attention_.mixed_us(static_cast<double>(part.new_tokens),
                              static_cast<double>(part.context_tokens),
                              with_decodes ? sequences : 0, mean);
  }
  return us;
}

double ProfileModel::step_seconds(std::span<const PrefillPart> prefill,
                                  const DecodePart& decode) const {
  std::uint64_t prompt_tokens = 0, prompts = 0;
  for (const PrefillPart& part : prefill) {
    prompt_tokens += part.new_tokens;
    prompts += part.new_tokens != 0 ? 1 : 0;
  }
  if (prompt_tokens + decode.sequences == 0) return 0;
  const bool decode_only = prompt_tokens == 0;
  const std::uint64_t tokens =
      decode_only ? padded(decode.sequences) : prompt_tokens + decode.sequences;
  const double us = tokens_us(tokens) + sequences_us(prompts + decode.sequences) +
                    model_.layers * attention_us(prefill, decode);
  return us * 1e-6 + (decode_only ? 0 : gpu_.prompt_step_overhead_s);
}

double ProfileModel::prefill_seconds(std::uint64_t input_tokens, std::uint64_t hit_tokens) const {
  double seconds = 0;
  for (std::uint64_t done = hit_tokens; done < input_tokens;) {
    const PrefillPart part[] = {{.new_tokens = std::min(options_.chunk_tokens, input_tokens - done),
                                 .context_tokens = done}};
    seconds += step_seconds(part, {});
    done += part[0].new_tokens;
  }
  return seconds;
}

}  // namespace cachalot::sched
