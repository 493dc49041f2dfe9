// Host memory for the KV of offloaded layers: chunks of one size, reused when their request has ended, so that in steady
// state no page is touched for the first time.
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cachalot::tier::layerwise {

class HostChunks {
 public:
  // @param most_chunks  0: no limit
  HostChunks(std::uint64_t chunk_bytes, std::uint64_t most_chunks)
      : chunk_bytes_(chunk_bytes), most_chunks_(most_chunks) {}
  ~HostChunks();
  HostChunks(const HostChunks&) = delete;
  HostChunks& operator=(const HostChunks&) = delete;

  // Makes sure that `count` calls of take() succeed. @errors kNoSpace: nothing has changed
  Status prepare(std::uint64_t count);
  // Precondition: prepare() promised it.
  std::byte* take();
  void give(std::byte* chunk) { free_.push_back(chunk); }

  // Of all chunks, free ones too.
  std::uint64_t bytes() const { return chunks_ * chunk_bytes_; }

 private:
  const std::uint64_t chunk_bytes_;
  const std::uint64_t most_chunks_;
  std::uint64_t chunks_ = 0;
  std::vector<std::byte*> free_;
};

}  // namespace cachalot::tier::layerwise
