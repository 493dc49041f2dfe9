#include "vmm/cuda/cuda_stream_events.h"

#include <cinttypes>

namespace cachalot::vmm {
namespace {

cuda::Stream stream_of(Stream stream) {
  return reinterpret_cast<cuda::Stream>(stream);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

// A driver that has ended took the events with it, and says so.
CudaStreamEvents::~CudaStreamEvents() {
  for (const Place& place : places_) driver_.event_destroy(place.event);
}

Status CudaStreamEvents::try_record(Place& place) {
  int state = 0;
  int result = driver_.stream_is_capturing(stream_of(place.stream), &state);
  if (result == cuda::kCaptureImplicit || (result == cuda::kSuccess && state != 0)) return {};
  if (result != cuda::kSuccess) return cuda::driver_error(driver_, result, "cuStreamIsCapturing");
  result = driver_.event_record(place.event, stream_of(place.stream));
  if (result != cuda::kSuccess) return cuda::driver_error(driver_, result, "cuEventRecord");
  place.is_recorded = true;
  return {};
}

Result<StreamEvents::Event> CudaStreamEvents::record(Stream stream) {
  if (unused_.empty()) {
    Place place;
    const int result = driver_.event_create(&place.event, cuda::kEventNoTiming);
    if (result != cuda::kSuccess) return cuda::driver_error(driver_, result, "cuEventCreate");
    unused_.push_back(places_.size());
    places_.push_back(place);
  }
  const Event event = unused_.back();
  Place& place = places_[event];
  place.stream = stream;
  place.is_recorded = false;
  CACHALOT_TRY(try_record(place));
  unused_.pop_back();
  return event;
}

bool CudaStreamEvents::is_done(Event event) {
  Place& place = places_[event];
  if (!place.is_recorded && (!try_record(place) || !place.is_recorded)) return false;
  return driver_.event_query(place.event) == cuda::kSuccess;
}

Status CudaStreamEvents::wait(Event event) {
  Place& place = places_[event];
  if (!place.is_recorded) CACHALOT_TRY(try_record(place));
  if (!place.is_recorded) {
    return Error::make(Code::kBusy,
                       "stream 0x%" PRIx64 " is being captured, expected to wait for its work",
                       place.stream);
  }
  const int result = driver_.event_synchronize(place.event);
  if (result == cuda::kSuccess) return {};
  return cuda::driver_error(driver_, result, "cuEventSynchronize");
}

}  // namespace cachalot::vmm
