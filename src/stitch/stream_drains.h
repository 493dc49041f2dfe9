// How far the streams have come whose freed memory another stream would like to have.
//
// A free needs no event. Only when memory of stream A is wanted by another stream an event is
// recorded on A, and once it is done, everything that A had freed by then is safe for every stream.
//
// @threads one at a time
#pragma once

#include <cstdint>
#include <unordered_map>

#include "gpu/stream_events.h"

namespace cachalot::stitch {

class StreamDrains {
 public:
  explicit StreamDrains(gpu::StreamEvents& events) : events_(events) {}
  ~StreamDrains();

  // Memory that the stream freed with a number up to the result is not touched by its work any more.
  // @param frees  the number of the last free so far
  // @param wait   until that covers all of them
  Result<std::uint64_t> safe_up_to(gpu::StreamId stream, std::uint64_t frees, bool wait);

 private:
  struct Drain {
    bool is_recorded = false;
    gpu::StreamEvents::Event event = 0;
    std::uint64_t mark = 0;  // what the event covers
    std::uint64_t safe = 0;  // what earlier events have covered
  };
  Status look(Drain& drain, bool wait);

  gpu::StreamEvents& events_;
  std::unordered_map<gpu::StreamId, Drain> drains_;
};

}  // namespace cachalot::stitch
