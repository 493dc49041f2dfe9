// How far a GPU's streams have come, by events of the driver.
//
// 1. Events are kept and recorded again: creating one costs more than recording it.
// 2. Nothing is recorded on a stream that is being captured into a graph: that would become part of the
//    graph, and say nothing about now. Such an event is recorded later, when a caller asks for it and the
//    capture is over; it then covers more than it has to.
// 3. An event that the driver cannot tell about is not done; wait() has the error.
// 4. A stream that its program has destroyed may still work, and cannot be asked. It has ended when the whole
//    device has: that is waited for when its event is recorded or asked for. A capture does not survive that, so it
//    is put off while a stream that was noted is captured, while the owner says that others may be, and where
//    the driver refuses. A stream of another context is no such stream. A destroyed one whose handle the
//    driver has given to a new one cannot be told from it, here as in PyTorch.
//
// @threads one at a time, with the device's context current (DeviceScope)
// @cost    record: two calls of the driver; is_done: one; of a destroyed stream either may be a wait for the device
// @source  CUDA driver API reference: events, stream capture
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "gpu/driver.h"
#include "gpu/stream_events.h"

namespace cachalot::gpu {

class CudaStreamEvents final : public StreamEvents {
 public:
  // @param may_capture  whether a stream may be captured now although it was not noted; none: never
  explicit CudaStreamEvents(const Driver& driver, std::function<bool()> may_capture = {})
      : driver_(driver), may_capture_(std::move(may_capture)) {}
  ~CudaStreamEvents() override;
  CudaStreamEvents(const CudaStreamEvents&) = delete;
  CudaStreamEvents& operator=(const CudaStreamEvents&) = delete;

  void note(StreamId stream) override { known_.push_back(stream); }
  // @param  stream  the value of a CUstream of the device
  // @errors of the driver
  Result<Event> record(StreamId stream) override;
  bool is_done(Event event) override;
  // @errors kBusy: the stream is being captured, so that no thread can wait for it; of the driver
  Status wait(Event event) override;
  void drop(Event event) override { unused_.push_back(event); }

  // That exist, in use or not.
  std::size_t events() const { return places_.size(); }

 private:
  struct Place {
    gpu::Event event = nullptr;
    StreamId stream = 0;
    bool is_recorded = false;
    bool is_covered = false;  // the whole device was waited for
  };
  // Records it unless the stream is being captured.
  Status try_record(Place& place);
  bool is_captured(StreamId stream) const;
  bool is_gone(StreamId stream, int result) const;
  Status wait_for_device(Place& place);

  const Driver& driver_;
  const std::function<bool()> may_capture_;
  std::vector<Place> places_;  // an Event is an index
  std::vector<Event> unused_;
  std::vector<StreamId> known_;
};

}  // namespace cachalot::gpu
