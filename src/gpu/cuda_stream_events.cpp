#include "gpu/cuda_stream_events.h"

#include <cinttypes>

namespace cachalot::gpu {
namespace {

Stream stream_of(StreamId stream) {
  return reinterpret_cast<Stream>(stream);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

// A driver that has ended took the events with it, and says so.
CudaStreamEvents::~CudaStreamEvents() {
  for (const Place& place : places_) driver_.event_destroy(place.event);
}

bool CudaStreamEvents::is_captured(StreamId stream) const {
  int state = 0;
  const int result = driver_.stream_is_capturing(stream_of(stream), &state);
  return result == kCaptureImplicit || (result == kSuccess && state != 0);
}

bool CudaStreamEvents::is_gone(StreamId stream, int result) const {
  // 201: what a driver 580 says of a destroyed stream while the caller's context is fine (H200).
  if (result != kInvalidHandle && result != kContextIsDestroyed && result != kInvalidContext)
    return false;
  Context of_stream = nullptr, current = nullptr;
  if (driver_.stream_context(stream_of(stream), &of_stream) != kSuccess) return true;
  if (result != kInvalidContext || driver_.context_get_current(&current) != kSuccess) return false;
  // It is of the caller's context, and cannot be used: the driver reads what is left of it.
  return of_stream == nullptr || of_stream == current;
}

Status CudaStreamEvents::try_record(Place& place) {
  int state = 0;
  int result = driver_.stream_is_capturing(stream_of(place.stream), &state);
  if (result == kCaptureImplicit || (result == kSuccess && state != 0)) return {};
  const char* call = "cuStreamIsCapturing";
  if (result == kSuccess) {
    result = driver_.event_record(place.event, stream_of(place.stream));
    call = "cuEventRecord";
  }
  if (is_gone(place.stream, result)) return wait_for_device(place);
  if (result != kSuccess) return driver_error(driver_, result, call);
  place.is_recorded = true;
  return {};
}

Status CudaStreamEvents::wait_for_device(Place& place) {
  if (may_capture_ && may_capture_()) return {};
  for (const StreamId stream : known_) {
    if (is_captured(stream)) return {};
  }
  const int result = driver_.context_synchronize();
  if (result >= kFirstOfCapture && result <= kLastOfCapture) return {};
  if (result != kSuccess) return driver_error(driver_, result, "cuCtxSynchronize");
  place.is_recorded = place.is_covered = true;
  return {};
}

Result<StreamEvents::Event> CudaStreamEvents::record(StreamId stream) {
  if (unused_.empty()) {
    Place place;
    const int result = driver_.event_create(&place.event, kEventNoTiming);
    if (result != kSuccess) return driver_error(driver_, result, "cuEventCreate");
    unused_.push_back(places_.size());
    places_.push_back(place);
  }
  const Event event = unused_.back();
  Place& place = places_[event];
  place.stream = stream;
  place.is_recorded = place.is_covered = false;
  CACHALOT_TRY(try_record(place));
  unused_.pop_back();
  return event;
}

bool CudaStreamEvents::is_done(Event event) {
  Place& place = places_[event];
  if (!place.is_recorded && (!try_record(place) || !place.is_recorded)) return false;
  return place.is_covered || driver_.event_query(place.event) == kSuccess;
}

Status CudaStreamEvents::wait(Event event) {
  Place& place = places_[event];
  if (!place.is_recorded) CACHALOT_TRY(try_record(place));
  if (!place.is_recorded) {
    return Error::make(Code::kBusy,
                       "stream 0x%" PRIx64
                       " is being captured, or was destroyed and another one is captured: expected "
                       "to wait for its work",
                       place.stream);
  }
  if (place.is_covered) return {};
  const int result = driver_.event_synchronize(place.event);
  if (result == kSuccess) return {};
  return driver_error(driver_, result, "cuEventSynchronize");
}

}  // namespace cachalot::gpu
