#include "sched/policy/layerwise.h"

#include <algorithm>
#include <cmath>

#include "sched/policy/names.h"

namespace cachalot::sched {
namespace {

constexpr Name<LayerwiseKind> kLayerwiseNames[] = {
    {LayerwiseKind::kOff, "off"},
    {LayerwiseKind::kSwap, "swap"},
    {LayerwiseKind::kOn, "on"},
    {LayerwiseKind::kAuto, "auto"},
};

// A request in the host's memory whose slack is less than so many steps at the goal has to go on now.
constexpr double kUrgentSteps = 8;

std::uint64_t divided_up(std::uint64_t product, std::uint64_t by) {
  return (product + by - 1) / by;
}

double smallest_slack_s(const LayerwiseOptions& options, const LayerwiseView& view) {
  double slack_s = std::numeric_limits<double>::infinity();
  for (const DecodeProgress& progress : view.decoding) {
    const double own_s = prefill_slack_s(progress, view.step_s, options.tbt_slo_s);
    if (own_s >= 0 || progress.is_hosted) slack_s = std::min(slack_s, own_s);
  }
  return slack_s;
}

}  // namespace

std::string layerwise_names(const char* separator) {
  return list_names(kLayerwiseNames, separator);
}

Result<LayerwiseKind> parse_layerwise(std::string_view name) {
  return parse_name("no layer-wise KV", kLayerwiseNames, name);
}

std::uint64_t fewest_device_layers(const LayerwiseOptions& options, double prefill_s,
                                   double kv_bytes) {
  const auto layers = static_cast<double>(options.layers);
  const double layer_s = kv_bytes / layers / options.host_bytes_per_s;
  const double copied = layer_s <= 0 ? layers : std::min(layers, std::floor(prefill_s / layer_s));
  const auto fewest = options.layers - static_cast<std::uint64_t>(copied);
  return std::min(options.layers, std::max(fewest, options.staging_layers));
}

double prefill_slack_s(const DecodeProgress& progress, double step_s, double tbt_slo_s) {
  if (std::isinf(tbt_slo_s)) return tbt_slo_s;
  return tbt_slo_s * (progress.tokens + progress.tokens_left) -
         (progress.seconds + progress.tokens_left * step_s);
}

bool goal_allows(const LayerwiseOptions& options, const LayerwiseView& view, std::size_t prompts) {
  double prefill_s = view.pending_prefill_s;
  for (const WaitingPrompt& prompt : view.waiting.first(prompts)) prefill_s += prompt.prefill_s;
  return prefill_s <= smallest_slack_s(options, view);
}

std::vector<std::uint64_t> plan_prefills(const LayerwiseOptions& options,
                                         const LayerwiseView& view) {
  const double slack_s = smallest_slack_s(options, view);
  std::uint64_t wanted = 0;  // blocks of all that wait
  for (const WaitingPrompt& prompt : view.waiting) wanted += prompt.blocks;
  const double hidden_bytes = offload_room_bytes(options, view.step_s, view.loaded_bytes);
  std::uint64_t free = view.free_blocks, free_host = view.free_host_blocks;
  double prefill_s = view.pending_prefill_s;
  std::vector<std::uint64_t> plan;
  for (const WaitingPrompt& prompt : view.waiting) {
    prefill_s += prompt.prefill_s;
    if (prefill_s > slack_s) break;
    std::uint64_t layers = fewest_device_layers(options, prompt.prefill_s, prompt.kv_bytes);
    if (options.kind == LayerwiseKind::kAuto && wanted != 0) {
      const double share = static_cast<double>(free) / static_cast<double>(wanted);
      const double fit = std::floor(share * static_cast<double>(options.layers));
      const auto room =
          static_cast<std::uint64_t>(std::min(fit, static_cast<double>(options.layers)));
      layers = std::max(layers, room);
    }
    if (std::isinf(options.tbt_slo_s) && view.step_s > 0 && prompt.kv_bytes > 0) {
      const double blocks = hidden_bytes / prompt.kv_bytes * static_cast<double>(prompt.blocks);
      free_host = std::min(free_host, static_cast<std::uint64_t>(std::min(blocks, 1e15)));
    }
    if (prompt.blocks > free_host) {
      layers =
          std::max(layers, divided_up((prompt.blocks - free_host) * options.layers, prompt.blocks));
    }
    const std::uint64_t blocks = divided_up(prompt.blocks * layers, options.layers);
    if (blocks > free) break;
    free -= blocks;
    free_host -= prompt.blocks - blocks;
    wanted -= prompt.blocks;
    plan.push_back(layers);
  }
  return plan;
}

double offload_room_bytes(const LayerwiseOptions& options, double step_s, double loaded_bytes) {
  const double most_s =
      std::isfinite(options.tbt_slo_s) ? std::max(step_s, options.tbt_slo_s) : step_s;
  return std::max(0.0, most_s * options.host_bytes_per_s - loaded_bytes);
}

std::vector<bool> choose_loads(const LayerwiseOptions& options,
                               std::span<const HostSequence> sequences, double computing_s) {
  std::vector<bool> chosen(sequences.size(), false);
  double load_s = 0;
  bool is_empty = computing_s == 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const double with_s = load_s + sequences[i].load_bytes / options.host_bytes_per_s;
    const bool is_urgent =
        sequences[i].slack_s >= 0 && sequences[i].slack_s < kUrgentSteps * options.tbt_slo_s;
    const double most_s = is_urgent && std::isfinite(options.tbt_slo_s)
                              ? std::max(computing_s, options.tbt_slo_s)
                              : computing_s;
    if (with_s > most_s && !is_empty) continue;
    is_empty = false;
    chosen[i] = true;
    load_s = with_s;
  }
  return chosen;
}

}  // namespace cachalot::sched
