// For tests: memory as a kernel's instructions reach it. Local and shared memory know which of their bytes
// were written; what is read before that is an error. Global memory belongs to the test, by a function
// that says where the bytes of a device's address are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "ptx/violation.h"

namespace cachalot::ptx {

// Null: the device does not reach all of them.
using Reach = std::function<std::byte*(std::uint64_t address, std::uint64_t bytes)>;

inline void check_alignment(std::uint64_t address, std::uint64_t bytes) {
  if (address % bytes != 0) {
    fail(Wrong::kRule, "address %#llx is not a multiple of %llu",
         static_cast<unsigned long long>(address), static_cast<unsigned long long>(bytes));
  }
}

class GlobalMemory {
 public:
  explicit GlobalMemory(Reach reach) : reach_(std::move(reach)), known_(kKnown) {}

  // @throws Violation: kFault
  std::byte* at(std::uint64_t address, std::uint64_t bytes) {
    const std::uint64_t piece = address / kPieceBytes;
    Known& known = known_[piece % kKnown];
    const std::uint64_t skipped = address % kPieceBytes;
    if (skipped + bytes <= kPieceBytes) {
      if (known.piece == piece && known.host != nullptr) return known.host + skipped;
      known = {piece, reach_(piece * kPieceBytes, kPieceBytes)};
      if (known.host != nullptr) return known.host + skipped;
    }
    std::byte* const found = reach_(address, bytes);
    if (found == nullptr) {
      fail(Wrong::kFault, "address %#llx: the device does not reach %llu bytes there",
           static_cast<unsigned long long>(address), static_cast<unsigned long long>(bytes));
    }
    return found;
  }

 private:
  static constexpr std::uint64_t kPieceBytes = 256, kKnown = 4096;
  struct Known {
    std::uint64_t piece = 0;
    std::byte* host = nullptr;
  };
  Reach reach_;
  std::vector<Known> known_;  // what was found, so that it is not asked for again
};

// From `base` on.
class TrackedMemory {
 public:
  TrackedMemory(std::uint64_t base, std::uint64_t bytes, const char* name)
      : base_(base), name_(name), bytes_(bytes), written_(bytes) {}

  std::uint64_t size() const { return bytes_.size(); }
  std::uint64_t offset(std::uint64_t address, std::uint64_t bytes) const {
    if (address < base_ || address - base_ > size() || bytes > size() - (address - base_)) {
      fail(Wrong::kRule, "address %#llx: not all of %llu bytes are in %s memory, which has %llu",
           static_cast<unsigned long long>(address), static_cast<unsigned long long>(bytes), name_,
           static_cast<unsigned long long>(size()));
    }
    return address - base_;
  }
  void read(void* to, std::uint64_t address, std::uint64_t bytes) const {
    const std::uint64_t at = offset(address, bytes);
    check_hole(at, bytes);
    if (std::memchr(&written_[at], 0, bytes) != nullptr) {
      fail(Wrong::kRule, "address %#llx: nobody has written all of %llu bytes of %s memory there",
           static_cast<unsigned long long>(address), static_cast<unsigned long long>(bytes), name_);
    }
    std::memcpy(to, &bytes_[at], bytes);
  }
  void write(std::uint64_t address, const void* from, std::uint64_t bytes) {
    const std::uint64_t at = writable(address, bytes);
    std::memcpy(&bytes_[at], from, bytes);
    std::memset(&written_[at], 1, bytes);
  }
  // Its contents are unknown from here on.
  void forget(std::uint64_t address, std::uint64_t bytes) {
    std::memset(&written_[writable(address, bytes)], 0, bytes);
  }
  // Unused: it lies between two variables.
  void add_hole(std::uint64_t address, std::uint64_t bytes) {
    std::memset(&written_[offset(address, bytes)], kHole, bytes);
    has_holes_ = true;
  }

 private:
  static constexpr std::uint8_t kHole = 2;
  std::uint64_t writable(std::uint64_t address, std::uint64_t bytes) const {
    const std::uint64_t at = offset(address, bytes);
    check_hole(at, bytes);
    return at;
  }
  void check_hole(std::uint64_t at, std::uint64_t bytes) const {
    if (!has_holes_ || std::memchr(&written_[at], kHole, bytes) == nullptr) return;
    fail(Wrong::kRule, "address %#llx: %llu bytes there are not all of one variable in %s memory",
         static_cast<unsigned long long>(base_ + at), static_cast<unsigned long long>(bytes),
         name_);
  }

  std::uint64_t base_;
  const char* name_;
  std::vector<std::byte> bytes_;
  std::vector<std::uint8_t> written_;  // 1: yes; kHole
  bool has_holes_ = false;
};

}  // namespace cachalot::ptx
