#include "sched/policy/decode_choice.h"

namespace cachalot::sched {

double predicted_tbt(const TimingModel& timing, std::uint64_t sequences,
                     std::uint64_t context_tokens) {
  return timing.step_seconds({}, {.sequences = sequences, .context_tokens = context_tokens});
}

DecodeChoice choose_decode(std::span<const DecodeView> decode, const TimingModel& timing,
                           const DecodeRequest& request) {
  DecodeChoice best;
  bool best_has_room = false;
  for (std::size_t i = 0; i < decode.size(); ++i) {
    const DecodeView& view = decode[i];
    if (!view.accepts || request.reserved_tokens > view.capacity_tokens) continue;
    const bool has_room = view.reserved_tokens <= view.capacity_tokens - request.reserved_tokens;
    const double tbt_s =
        predicted_tbt(timing, view.sequences + 1, view.context_tokens + request.context_tokens);
    const bool is_better = !best.exists() || (has_room && !best_has_room) ||
                           (has_room == best_has_room && tbt_s < best.tbt_s);
    if (!is_better) continue;
    best = DecodeChoice{i, tbt_s, predicted_tbt(timing, view.sequences, view.context_tokens)};
    best_has_room = has_room;
  }
  return best;
}

}  // namespace cachalot::sched
