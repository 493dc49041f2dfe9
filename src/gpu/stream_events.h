// Tells how far the work of a stream has come.
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>

#include <cstdint>

namespace cachalot::gpu {

// A queue of work on the device, done in its order. 0: the default stream; on CUDA the value of a CUstream.
using StreamId = std::uint64_t;

class StreamEvents {
 public:
  using Event = std::uint64_t;

  virtual ~StreamEvents() = default;
  // It will be asked about, and may be captured into a graph.
  virtual void note(StreamId) {}
  // An event that is done when all work that the stream has by now is done.
  virtual Result<Event> record(StreamId stream) = 0;
  virtual bool is_done(Event event) = 0;
  virtual Status wait(Event event) = 0;
  // No caller asks for it any more.
  virtual void drop(Event event) = 0;
};

// Where calls return when their work is done, as on a CPU.
class ImmediateEvents final : public StreamEvents {
 public:
  Result<Event> record(StreamId) override { return Event{0}; }
  bool is_done(Event) override { return true; }
  Status wait(Event) override { return {}; }
  void drop(Event) override {}
};

}  // namespace cachalot::gpu
