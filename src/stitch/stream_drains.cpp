#include "stitch/stream_drains.h"

namespace cachalot::stitch {

StreamDrains::~StreamDrains() {
  for (auto& [stream, drain] : drains_) {
    if (drain.is_recorded) events_.drop(drain.event);
  }
}

Status StreamDrains::look(Drain& drain, bool wait) {
  if (!drain.is_recorded) return {};
  if (wait) CACHALOT_TRY(events_.wait(drain.event));
  if (!wait && !events_.is_done(drain.event)) return {};
  events_.drop(drain.event);
  drain.is_recorded = false;
  drain.safe = drain.mark;
  return {};
}

Result<std::uint64_t> StreamDrains::safe_up_to(gpu::StreamId stream, std::uint64_t frees,
                                               bool wait) {
  Drain& drain = drains_[stream];
  CACHALOT_TRY(look(drain, wait));
  if (!drain.is_recorded && drain.safe < frees) {
    CACHALOT_TRY_ASSIGN(drain.event, events_.record(stream));
    drain.is_recorded = true;
    drain.mark = frees;
    CACHALOT_TRY(look(drain, wait));
  }
  return drain.safe;
}

}  // namespace cachalot::stitch
