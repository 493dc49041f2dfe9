#include "kv/cuda/driver_copies.h"

#include <algorithm>
#include <cstdio>

#include "kv/cuda/way.h"

namespace cachalot::kv {

DriverCopies::DriverCopies(const CudaDevice& device, gpu::Stream stream, Direction direction,
                           std::uint32_t at_once)
    : device_(device),
      stream_(stream),
      gathers_(direction == Direction::kGather),
      at_once_(at_once),
      next_at_once_(std::min(at_once, kFirstBatchCopies)) {}

void DriverCopies::add(const memory::Extent& pool, std::uint32_t tensor, std::uint64_t device) {
  const bool touches = run_.bytes != 0 && run_.at + run_.bytes == pool.at &&
                       run_tensor_ == tensor && run_device_ + run_.bytes == device;
  if (touches) {
    run_.bytes += pool.bytes;
    return;
  }
  close_run();
  run_ = pool;
  run_tensor_ = tensor;
  run_device_ = device;
}

Status DriverCopies::finish() {
  close_run();
  if (status_ && !bytes_.empty()) status_ = submit();
  return status_;
}

void DriverCopies::close_run() {
  while (status_ && run_.bytes != 0) {
    const PoolPart part = *device_.pool().find_part(run_);
    to_.push_back(gathers_ ? part.at : run_device_);
    from_.push_back(gathers_ ? run_device_ : part.at);
    bytes_.push_back(part.bytes);
    if (bytes_.size() >= next_at_once_) {
      status_ = submit();
      next_at_once_ = at_once_;
    }
    run_ = {run_.at + part.bytes, run_.bytes - part.bytes};
    run_device_ += part.bytes;
  }
}

Status DriverCopies::submit() {
  const gpu::Driver& driver = device_.driver();
  int result = gpu::kSuccess;
  std::size_t failed = gpu::kNoCopy;
  if (at_once_ == 0) {
    result = driver.copy(to_[0], from_[0], bytes_[0], stream_);
    failed = 0;
  } else {
    gpu::CopyAttributes attributes;
    if (!gathers_) attributes.order = gpu::kSourceAnyOrder;
    std::size_t first = 0;  // that has these attributes
    result = driver.copy_batch(to_.data(), from_.data(), bytes_.data(), bytes_.size(), &attributes,
                               &first, 1, &failed, stream_);
  }
  const Status status = result == gpu::kSuccess ? Status() : Status(error_of(result, failed));
  to_.clear();
  from_.clear();
  bytes_.clear();
  return status;
}

Error DriverCopies::error_of(int result, std::size_t failed) const {
  char call[48], what[160];
  if (at_once_ == 0) {
    std::snprintf(call, sizeof call, "cuMemcpyAsync");
  } else {
    std::snprintf(call, sizeof call, "cuMemcpyBatchAsync of %zu copies", bytes_.size());
  }
  if (failed >= bytes_.size()) return gpu::driver_error(device_.driver(), result, call);
  std::snprintf(what, sizeof what, "%s, copy %zu: %zu bytes from 0x%llx to 0x%llx", call, failed,
                bytes_[failed], from_[failed], to_[failed]);
  return gpu::driver_error(device_.driver(), result, what);
}

}  // namespace cachalot::kv
