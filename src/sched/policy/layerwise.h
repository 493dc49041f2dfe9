// Layer-wise KV: which part of a prompt's KV stays on the device while it is computed, and how many prompts may begin.
//
//   off   a prompt begins when the device has room for all of its KV; a request that loses its room computes again
//   swap  the same, but all KV of a request that loses its room goes to the host's memory, and back (request-wise)
//   on    a prompt begins when the device has room for the layers that must stay: KV of the others goes to the host's
//         memory while the next layers are computed, and comes back a layer ahead in decode, or for good when blocks
//         become free
//   auto  the same where memory is short: as many layers stay as the waiting prompts together leave room for
//
// With on and auto, KV goes to the host only as far as loading it hides behind a decode step. With a goal (tbt_slo_s),
// it may go as far as the goal allows, but prompts begin only while all that decode and can reach their goal still can,
// for a prompt's time is taken from them. A request that will miss its goal anyway does not count, unless it waits for
// its KV in the host's memory: then no prompt begins, or such requests would become more and more.
// @source LayerKV (arXiv 2410.00428), by public notes and a talk of its authors: no code was released, and the paper's
//         equations 1 to 4 are a reconstruction here. How long a request will decode is the caller's estimate.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot::sched {

enum class LayerwiseKind : std::uint8_t { kOff, kSwap, kOn, kAuto };

std::string layerwise_names(const char* separator = ", ");
// @errors kInvalidArgument: no such kind; the message lists those there are
Result<LayerwiseKind> parse_layerwise(std::string_view name);

struct LayerwiseOptions {
  LayerwiseKind kind = LayerwiseKind::kOff;
  std::uint64_t layers = 1;  // of the model
  std::uint64_t staging_layers =
      2;  // that stay always: the one that is computed and the one that comes next
  double host_bytes_per_s = std::numeric_limits<double>::infinity();  // each way
  double tbt_slo_s =
      std::numeric_limits<double>::infinity();  // mean of a request; infinite: no goal
};

// Layers that must stay so that copying the others takes no longer than computing the prompt (equation 4); at least
// the staging ones.
std::uint64_t fewest_device_layers(const LayerwiseOptions& options, double prefill_s,
                                   double kv_bytes);

// A request that decodes.
struct DecodeProgress {
  double tokens = 0;       // that came after the first
  double seconds = 0;      // since the first
  double tokens_left = 0;  // an estimate, or 0: then only what it is ahead of its goal counts
  bool is_hosted = false;  // a part of its KV is in the host's memory
};

// How long prompts may delay a request so that its mean still reaches the goal, if its other steps take `step_s`
// (equations 1 and 2). Negative: it will miss it anyway.
double prefill_slack_s(const DecodeProgress& progress, double step_s, double tbt_slo_s);

struct WaitingPrompt {
  double prefill_s = 0;
  double kv_bytes = 0;
  std::uint64_t blocks = 0;  // of all layers, those that it has to take
};

struct LayerwiseView {
  std::span<const DecodeProgress> decoding = {};
  double step_s = 0;                            // of a step that only decodes
  double pending_prefill_s = 0;                 // left of prompts that have begun
  double loaded_bytes = 0;                      // KV in the host's memory
  std::span<const WaitingPrompt> waiting = {};  // first come, first served
  std::uint64_t free_blocks = 0;                // on the device
  std::uint64_t free_host_blocks = std::numeric_limits<std::uint64_t>::max();
};

// Whether all that decode and can reach their goal still can if the first `prompts` of those that wait begin now.
bool goal_allows(const LayerwiseOptions& options, const LayerwiseView& view, std::size_t prompts);

// How many prompts begin now, the first ones, and how many layers of each stay on the device: blocks * layers /
// options.layers of them, rounded up, fit together. Only for on and auto.
// @cost linear in decoding + waiting
std::vector<std::uint64_t> plan_prefills(const LayerwiseOptions& options,
                                         const LayerwiseView& view);

// How much more KV of requests that decode may go to the host's memory for a prompt that waits: as much as loading
// hides behind a decode step, or keeps the goal.
// @param loaded_bytes  KV that is there already
double offload_room_bytes(const LayerwiseOptions& options, double step_s, double loaded_bytes);

// A request with KV in the host's memory that could decode in this step.
struct HostSequence {
  double load_bytes = 0;  // its KV there
  double slack_s = 0;     // of prefill_slack_s()
};

// Which of them decode in a step: in their order, while loading hides behind the step's computing; and beyond it while
// the step keeps the goal, those that would soon miss theirs otherwise (slack of less than 8 steps at the goal). At least one if nothing else is computed.
// @param computing_s  of the step without them; 0: nothing else is computed
std::vector<bool> choose_loads(const LayerwiseOptions& options,
                               std::span<const HostSequence> sequences, double computing_s);

}  // namespace cachalot::sched
