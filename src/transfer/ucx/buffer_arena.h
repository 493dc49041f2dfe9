// Buffers of one size, in which bytes are packed before UCX sends them.
//
// 1. Memory comes in chunks of 2 MiB, aligned to 2 MiB, that never move. UCX registers whole chunks with an adapter.
// 2. A further chunk is only allocated while all buffers are in use: a peer that takes no bytes holds its buffers, and
//    must not stop the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace cachalot::transfer {

class BufferArena {
 public:
  static constexpr std::size_t kChunkBytes = 2 << 20;

  // @param buffer_bytes  divides kChunkBytes
  explicit BufferArena(std::size_t buffer_bytes) : buffer_bytes_(buffer_bytes) {}
  BufferArena(const BufferArena&) = delete;
  BufferArena& operator=(const BufferArena&) = delete;

  // The buffer that was used last: its lines are in the cache. @return null: no memory
  std::byte* take();
  void give(std::byte* buffer) { free_.push_back(buffer); }

  std::size_t buffer_bytes() const { return buffer_bytes_; }
  std::uint64_t bytes() const { return chunks_.size() * kChunkBytes; }

 private:
  struct Free {
    void operator()(std::byte* chunk) const;
  };

  const std::size_t buffer_bytes_;
  std::vector<std::unique_ptr<std::byte, Free>> chunks_;
  std::vector<std::byte*> free_;
};

}  // namespace cachalot::transfer
