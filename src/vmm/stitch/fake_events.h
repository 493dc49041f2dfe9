// Streams whose work is done when a test says so.
#pragma once

#include <algorithm>
#include <functional>
#include <map>

#include "vmm/stream_events.h"

namespace cachalot::vmm {

class FakeEvents final : public StreamEvents {
 public:
  // All work that the stream has by now is done.
  void finish(Stream stream) { finished_[stream] = last_; }
  // Called for a stream that somebody waits for, before wait() returns: time to do its work.
  std::function<void(Stream)> on_wait = [](Stream) {};
  std::size_t alive() const { return streams_.size(); }
  int waits() const { return waits_; }
  Event recorded() const { return last_; }

  Result<Event> record(Stream stream) override {
    streams_[++last_] = stream;
    return last_;
  }
  bool is_done(Event event) override { return finished_[streams_.at(event)] >= event; }
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
  std::map<Event, Stream> streams_;  // of the events that are kept
  std::map<Stream, Event> finished_;
  int waits_ = 0;
};

}  // namespace cachalot::vmm
