// Tells how far the work of a stream has come.
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>

#include <cstdint>

#include "vmm/types.h"

namespace cachalot::vmm {

class StreamEvents {
 public:
  using Event = std::uint64_t;

  virtual ~StreamEvents() = default;
  // It will be asked about, and may be captured into a graph.
  virtual void note(Stream) {}
  // An event that is done when all work that the stream has by now is done.
  virtual Result<Event> record(Stream stream) = 0;
  virtual bool is_done(Event event) = 0;
  virtual Status wait(Event event) = 0;
  // Nobody asks for it any more.
  virtual void drop(Event event) = 0;
};

// Where calls return when their work is done, as on a CPU.
class ImmediateEvents final : public StreamEvents {
 public:
  Result<Event> record(Stream) override { return Event{0}; }
  bool is_done(Event) override { return true; }
  Status wait(Event) override { return {}; }
  void drop(Event) override {}
};

}  // namespace cachalot::vmm
