#include "tier/layerwise/host_chunks.h"

#include <cinttypes>
#include <new>

#include "base/check.h"
#include "base/huge_allocator.h"

namespace cachalot::tier::layerwise {

HostChunks::~HostChunks() {
  // Chunks that were not given back are a bug of the owner; their memory stays.
  for (std::byte* const chunk : free_) {
    base::HugeAllocator<std::byte>().deallocate(chunk, chunk_bytes_);
  }
}

Status HostChunks::prepare(std::uint64_t count) {
  if (count <= free_.size()) return {};
  const std::uint64_t missing = count - free_.size();
  if (most_chunks_ != 0 && missing > most_chunks_ - chunks_) {
    return Error::make(
        Code::kNoSpace,
        "layerwise: %" PRIu64 " bytes of host memory are missing, the limit is %" PRIu64,
        (missing - (most_chunks_ - chunks_)) * chunk_bytes_, most_chunks_ * chunk_bytes_);
  }
  try {
    free_.reserve(count);
    while (free_.size() < count) {
      free_.push_back(base::HugeAllocator<std::byte>().allocate(chunk_bytes_));
      chunks_ += 1;
    }
  } catch (const std::bad_alloc&) {
    return Error::make(Code::kNoSpace, "layerwise: no %" PRIu64 " bytes of host memory",
                       missing * chunk_bytes_);
  }
  return {};
}

std::byte* HostChunks::take() {
  CACHALOT_CHECK(!free_.empty());
  std::byte* const chunk = free_.back();
  free_.pop_back();
  return chunk;
}

}  // namespace cachalot::tier::layerwise
