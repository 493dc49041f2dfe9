// Streams whose work is done when a test says so.
#pragma once

#include <algorithm>
#include <functional>
#include <map>

#include "gpu/stream_events.h"

namespace cachalot::device_memory {

class FakeEvents final : public gpu::StreamEvents {
 public:
  // All work that the stream has by now is done.
  void finish(gpu::StreamId stream) { finished_[stream] = last_; }
  // Whether the stream has nothing to do, so that its events are done when they are recorded.
  void set_idle(gpu::StreamId stream, bool is_idle) { idle_[stream] = is_idle; }
  // Called for a stream before its wait() returns: time to do its work.
  std::function<void(gpu::StreamId)> on_wait = [](gpu::StreamId) {};
  std::size_t alive() const { return streams_.size(); }
  int waits() const { return waits_; }
  Event recorded() const { return last_; }

  Result<Event> record(gpu::StreamId stream) override {
    streams_[++last_] = stream;
    return last_;
  }
  bool is_done(Event event) override {
    const gpu::StreamId stream = streams_.at(event);
    return idle_[stream] || finished_[stream] >= event;
  }
  Status wait(Event event) override {
    ++waits_;
    on_wait(streams_.at(event));
    Event& finished = finished_[streams_.at(event)];
    finished = std::max(finished, event);
    return {};
  }
  void drop(Event event) override { streams_.erase(event); }

 private:
  Event last_ = 0;
  std::map<Event, gpu::StreamId> streams_;  // of the events that are kept
  std::map<gpu::StreamId, Event> finished_;
  std::map<gpu::StreamId, bool> idle_;
  int waits_ = 0;
};

}  // namespace cachalot::device_memory
