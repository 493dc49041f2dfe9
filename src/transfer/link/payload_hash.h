// XXH3-64 of a payload, in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "transfer/strided/byte_stream.h"

namespace cachalot::transfer {

class PayloadHash {
 public:
  PayloadHash();
  ~PayloadHash();
  void reset();
  void add(const void* bytes, std::size_t count);
  // [offset, offset + bytes) of a stream in this process's memory.
  void add(const ByteStream& stream, std::uint64_t offset, std::uint64_t bytes);
  std::uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Of one range of a stream.
std::uint64_t hash_of(const ByteStream& stream, std::uint64_t offset, std::uint64_t bytes);

}  // namespace cachalot::transfer
