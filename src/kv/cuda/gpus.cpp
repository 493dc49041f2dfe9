#include "kv/cuda/gpus.h"

#include <cinttypes>
#include <string>

namespace cachalot::kv {

StreamMark::~StreamMark() {
  if (gpu_ == nullptr || gpu_->is_lost()) return;
  const CudaDevice::Entered entered(*gpu_->device_);
  gpu_->device_->driver().event_destroy(event_);
}

// The driver finishes a destroyed stream's work before it frees the stream.
StreamLoan::~StreamLoan() {
  if (gpu_ == nullptr) return;
  if (!is_empty_ && !gpu_->is_lost()) {
    const CudaDevice::Entered entered(*gpu_->device_);
    gpu_->device_->driver().stream_destroy(stream_);
    return;
  }
  const std::lock_guard lock(gpu_->mutex_);
  gpu_->idle_.push_back(stream_);
}

Result<gpu::Stream> StreamBehind::stream() {
  if (!loan_) {
    CACHALOT_TRY_ASSIGN(StreamLoan loan, gpu_.borrow_behind(mark_));
    loan_.emplace(std::move(loan));
  }
  return loan_->stream();
}

Gpu::~Gpu() {
  if (is_lost()) {
    keep_until_exit(std::move(device_));
    keep_until_exit(std::make_shared<std::vector<gpu::Stream>>(std::move(idle_)));
    return;
  }
  const CudaDevice::Entered entered(*device_);
  for (const gpu::Stream stream : idle_) device_->driver().stream_destroy(stream);
}

// A copy that touches other memory would make the GPU unusable for the whole process.
Status Gpu::check_memory(const void* at, std::uint64_t bytes) const {
  const CudaDevice::Entered entered(*device_);
  CACHALOT_TRY(entered.status());
  const auto first = reinterpret_cast<std::uintptr_t>(at);
  for (const std::uintptr_t byte : {first, first + bytes - 1}) {
    int device = -1;
    const int result = device_->driver().pointer_attribute(&device, gpu::kPointerDevice, byte);
    if (result == gpu::kSuccess && device == ordinal_) continue;
    const std::string is = result == gpu::kSuccess ? "is on device " + std::to_string(device)
                                                   : "is nothing that CUDA knows";
    return Error::make(Code::kInvalidArgument,
                       "%" PRIu64 " bytes at %p: byte 0x%" PRIxPTR
                       " %s, expected memory of device %d",
                       bytes, at, byte, is.c_str(), ordinal_);
  }
  return {};
}

Status Gpu::check_released() const {
  if (!is_lost()) return {};
  return Error::make(Code::kIo,
                     "cuda: %s failed in a copy, which may still be under way: keep the memory of "
                     "all caches on it "
                     "until this process ends",
                     device_->name().c_str());
}

Status Gpu::check(gpu::Stream stream) const {
  if (is_lost()) {
    return Error::make(Code::kIo, "cuda: %s failed in an earlier copy, expected one that works",
                       device_->name().c_str());
  }
  const CudaDevice::Entered entered(*device_);
  CACHALOT_TRY(status_of_refusal(entered.status()));
  int state = 0;
  const int result = device_->driver().stream_is_capturing(stream, &state);
  if (result == gpu::kCaptureImplicit || (result == gpu::kSuccess && state != 0)) {
    return Error::make(Code::kInvalidArgument,
                       "stream: %p is being captured into a graph, expected one that runs", stream);
  }
  return status_of_refusal(device_->check(result, "cuStreamIsCapturing"));
}

Result<StreamMark> Gpu::mark(gpu::Stream stream) const {
  const CudaDevice::Entered entered(*device_);
  CACHALOT_TRY(status_of_refusal(entered.status()));
  gpu::Event event = nullptr;
  CACHALOT_TRY(status_of_refusal(device_->check(
      device_->driver().event_create(&event, gpu::kEventNoTiming), "cuEventCreate")));
  StreamMark mark(this, event);
  CACHALOT_TRY(status_of_refusal(
      device_->check(device_->driver().event_record(event, stream), "cuEventRecord")));
  return mark;
}

Status Gpu::follow(gpu::Stream stream, const StreamMark& mark) const {
  const CudaDevice::Entered entered(*device_);
  CACHALOT_TRY(status_of_refusal(entered.status()));
  return status_of_refusal(device_->check(
      device_->driver().stream_wait_event(stream, mark.event_, 0), "cuStreamWaitEvent"));
}

Result<StreamLoan> Gpu::borrow_behind(const StreamMark& mark) {
  gpu::Stream stream = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      stream = idle_.back();
      idle_.pop_back();
    }
  }
  if (stream == nullptr) {
    const CudaDevice::Entered entered(*device_);
    CACHALOT_TRY(status_of_refusal(entered.status()));
    const Result<gpu::Stream> made = device_->make_stream();
    if (!made) return error_of_refusal(made.error());
    stream = *made;
  }
  StreamLoan loan(this, stream);
  CACHALOT_TRY(follow(stream, mark));
  return loan;
}

Result<Gpu*> Gpus::find_or_open(int ordinal) {
  const std::lock_guard opening(opening_);
  const auto found = gpus_.find(ordinal);
  if (found != gpus_.end()) return found->second.get();
  CACHALOT_TRY_ASSIGN(std::unique_ptr<CudaDevice> device, open_(ordinal));
  // If a later piece fails, the device's destructor unregisters the earlier ones.
  if (gpus_.empty()) {
    for (std::byte* const base : pool_.bases) {
      CACHALOT_TRY(device->register_pool(base, pool_.bytes_each));
    }
    for (const Range& range : more_) CACHALOT_TRY(device->register_pool(range.at, range.bytes));
  } else {
    CACHALOT_TRY(device->share_pool(gpus_.begin()->second->device()));
  }
  auto gpu = std::make_unique<Gpu>(ordinal, std::move(device));
  const std::lock_guard lock(mutex_);
  return gpus_.emplace(ordinal, std::move(gpu)).first->second.get();
}

Status Gpus::add_pool(std::byte* at, std::uint64_t bytes) {
  const std::lock_guard opening(opening_);
  if (!gpus_.empty()) {
    CudaDevice& first = gpus_.begin()->second->device();
    CACHALOT_TRY(first.register_pool(at, bytes));
    for (auto next = std::next(gpus_.begin()); next != gpus_.end(); ++next) {
      const Status shared = next->second->device().share_last(first);
      if (shared) continue;
      while (next != gpus_.begin()) (void)(--next)->second->device().unregister_pool(at);
      return shared;
    }
  }
  more_.push_back({at, bytes});
  return {};
}

Status Gpus::check_released() {
  const std::lock_guard lock(mutex_);
  for (const auto& [ordinal, gpu] : gpus_) CACHALOT_TRY(gpu->check_released());
  return {};
}

WayBytes Gpus::way_bytes() {
  const std::lock_guard lock(mutex_);
  WayBytes all;
  for (const auto& [ordinal, gpu] : gpus_) {
    const WayBytes one = gpu->device().way_bytes();
    all.threads += one.threads;
    all.bulk += one.bulk;
    all.batch += one.batch;
    all.copy_engine += one.copy_engine;
  }
  return all;
}

// The list is never destroyed: its elements may be in use after all static destructors.
void keep_until_exit(std::shared_ptr<void> kept) {
  static std::mutex mutex;
  static auto* const all = new std::vector<std::shared_ptr<void>>;
  const std::lock_guard lock(mutex);
  all->push_back(std::move(kept));
}

}  // namespace cachalot::kv
