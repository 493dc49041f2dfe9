// How a body goes to the disk and comes from it. A write takes the leading whole pages straight from the caller's memory, as far
// as its pieces are aligned; the rest goes through a buffer of whole pages. A read fills the buffer, and nothing else.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "storage/object.h"

namespace cachalot::storage {

class BodyPieces {
 public:
  // What O_DIRECT asks of addresses and lengths, on every file system that we know.
  static constexpr std::uint64_t kAlign = 4096;

  // One that is read.
  explicit BodyPieces(std::uint64_t bytes) : rest_bytes_(bytes) {
    if (rest_bytes_ != 0) pieces_.push_back({nullptr, buffer_bytes()});
  }
  // One that is written.
  BodyPieces(std::span<const Bytes> pieces, std::uint64_t bytes) : rest_bytes_(bytes) {
    for (const Bytes& piece : pieces) {
      if (reinterpret_cast<std::uintptr_t>(piece.data()) % kAlign != 0) break;
      const std::uint64_t whole = piece.size() / kAlign * kAlign;
      if (whole != 0) pieces_.push_back({const_cast<std::byte*>(piece.data()), whole});
      direct_bytes_ += whole;
      if (whole != piece.size()) break;
    }
    rest_bytes_ -= direct_bytes_;
    if (rest_bytes_ != 0) pieces_.push_back({nullptr, buffer_bytes()});
  }

  std::uint64_t buffer_bytes() const { return (rest_bytes_ + kAlign - 1) / kAlign * kAlign; }
  // @param buffer  of buffer_bytes(), aligned; it outlives the transfer
  void use_buffer(std::byte* buffer) {
    buffer_ = buffer;
    if (rest_bytes_ != 0) pieces_.back().iov_base = buffer;
  }
  std::byte* buffer() const { return buffer_; }
  std::span<iovec> pieces() { return pieces_; }

  // Before a write: fills the buffer with the rest, and zeros.
  void fill_buffer(std::span<const Bytes> pieces) {
    std::byte* to = buffer_;
    std::uint64_t direct = direct_bytes_;
    for (const Bytes& piece : pieces) {
      const std::uint64_t skipped = std::min<std::uint64_t>(direct, piece.size());
      direct -= skipped;
      if (skipped == piece.size()) continue;
      std::memcpy(to, piece.data() + skipped, piece.size() - skipped);
      to += piece.size() - skipped;
    }
    std::fill(to, buffer_ + buffer_bytes(), std::byte{0});
  }
  // After a read: copies the body out. @return what comes after the pieces
  const std::byte* empty_buffer(std::span<const Room> pieces) const {
    const std::byte* from = buffer_;
    for (const Room& piece : pieces) {
      if (!piece.empty()) std::memcpy(piece.data(), from, piece.size());
      from += piece.size();
    }
    return from;
  }

 private:
  std::vector<iovec> pieces_;
  std::uint64_t direct_bytes_ = 0, rest_bytes_;
  std::byte* buffer_ = nullptr;
};

}  // namespace cachalot::storage
