// The copies that bulk transfers are held against: memcpy, non-temporal stores and rep movsb, each
// with the flushes that a domain needs for the bytes to be seen, or to be those of the pool.
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "memory/coherence.h"

namespace cachalot::apps::bench {

enum class Copy : std::uint32_t { kMemcpy, kNonTemporal, kRepMovsb, kCount };
inline constexpr auto kCopies = static_cast<std::uint32_t>(Copy::kCount);
const char* copy_name(Copy copy);

// Into the pool: afterwards the bytes are on their way to memory, in order before what follows.
// @shape  to: 64-byte aligned; bytes: a multiple of 64
void copy_in(Copy copy, memory::DomainKind domain, void* to, const void* from, std::size_t bytes);
// Out of the pool.
void copy_out(Copy copy, memory::DomainKind domain, void* to, const void* from, std::size_t bytes);

// What the two are made of: a copy and nothing else, and flushes of the lines of a range.
void copy_plain(Copy copy, void* to, const void* from, std::size_t bytes);
void flush_lines(const void* at, std::size_t bytes);

// Random bytes. A processor may store zeros faster than anything else (Zen 5, non-temporal: 63 instead of 42 GB/s), and
// a new pool has nothing but zeros.
void fill_randomly(std::byte* at, std::uint64_t bytes);

// Private memory in huge pages, touched.
class PrivateMemory {
 public:
  // @errors kNoSpace
  static Result<PrivateMemory> make(std::uint64_t bytes);

  std::byte* at(std::uint64_t offset) const { return memory_.get() + offset; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  PrivateMemory(std::byte* memory, std::uint64_t bytes) : memory_(memory), bytes_(bytes) {}

  std::unique_ptr<std::byte, Free> memory_;
  std::uint64_t bytes_;
};

}  // namespace cachalot::apps::bench
