// The payloads of pool blocks as pieces of memory for storage.
//
// In a coherent pool the pieces are the pool's memory itself: nothing is copied. Elsewhere the bytes go through a
// buffer and the domain, because the kernel reads and writes memory by plain cached accesses (rules R2, R3).
//
// @threads one at a time
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "pool/reader/validated_read.h"
#include "storage/backend.h"

namespace cachalot::node {

class PoolPayloads {
 public:
  explicit PoolPayloads(const pool::Access& access)
      : access_(access), is_direct_(access.geometry.domain == memory::DomainKind::kCoherent) {}

  // Of a run of blocks that were found. Verifies the pool's checksums, where blocks have one and verify is set.
  // Valid until the next call.
  void read(pool::ValidatedRead& read);
  std::span<const storage::Bytes> payload(std::size_t i) const { return pieces_[i]; }

  // Room for payloads of these lengths in granted blocks. Valid until the next call.
  struct Target {
    std::uint32_t block;
    std::uint32_t length;
  };
  void begin_write(std::span<const Target> targets);
  std::span<const storage::Room> room(std::size_t i) const { return rooms_[i]; }
  // Completes block i in the pool after its room was filled: pads its last line, and brings it to the pool.
  // @return the XXH3-64 of its whole lines
  std::uint64_t finish_write(std::size_t i);

 private:
  std::byte* staged(std::size_t i) { return staging_.get() + i * staging_stride_; }
  void reserve_staging(std::size_t blocks);

  const pool::Access& access_;
  const bool is_direct_;
  std::vector<std::vector<storage::Bytes>> pieces_;
  std::vector<std::vector<storage::Room>> rooms_;
  std::vector<Target> targets_;
  std::uint64_t staging_stride_ = 0;
  std::size_t staging_blocks_ = 0;
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> staging_;
};

}  // namespace cachalot::node
