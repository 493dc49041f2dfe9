#include "device_memory/memfd/memory_gauge.h"

#include <algorithm>
#include <cinttypes>

#include "base/clock.h"

namespace cachalot::device_memory {
namespace {

constexpr std::uint64_t kTrustNs = 100'000'000;

std::uint64_t minus(std::uint64_t a, std::uint64_t b) {
  return a - std::min(a, b);
}

}  // namespace

Status MemoryGauge::begin(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t now_ns = base::SteadyClock::read();
  if (bytes > allowed_bytes_ || now_ns - looked_ns_ > kTrustNs) {
    const os::AvailableMemory found = look_();
    const std::uint64_t left = minus(minus(found.bytes, spare_bytes_), making_bytes_);
    if (bytes > left) {
      Error error = Error::make(Code::kNoSpace,
                                "create: %" PRIu64 " bytes wanted; %.80s has %" PRIu64
                                " left, of which %" PRIu64 " are spared for others",
                                bytes, found.limited_by.c_str(), minus(found.bytes, making_bytes_),
                                spare_bytes_);
      error.detail = left;
      return error;
    }
    looked_ns_ = now_ns;
    allowed_bytes_ = std::max(bytes, left / 8);
  }
  allowed_bytes_ -= bytes;
  making_bytes_ += bytes;
  return {};
}

void MemoryGauge::end(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  making_bytes_ -= bytes;
}

}  // namespace cachalot::device_memory
