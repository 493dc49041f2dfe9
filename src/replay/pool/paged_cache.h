// An engine's own memory for KV: slots of one block each, taken in turn, so that a slot was last
// used long ago and a block that is read lands in memory that no cache holds, as in a real engine.
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>

#include "os/mapping.h"
#include "os/shared_file.h"

namespace cachalot::replay {

class PagedCache {
 public:
  // All of it is there afterwards: no page fault is counted as latency.
  // @errors kNoSpace
  static Result<PagedCache> make(std::uint64_t block_bytes, std::uint32_t slots) {
    std::uint64_t bytes = 0;
    if (__builtin_mul_overflow(block_bytes, std::uint64_t{slots}, &bytes)) {
      return Error::make(Code::kInvalidArgument, "an engine's cache: %u blocks exceed 2^64 bytes",
                         slots);
    }
    CACHALOT_TRY_ASSIGN(const os::SharedFile file,
                        os::SharedFile::create("memfd:cachalot-engine-cache", bytes));
    CACHALOT_TRY_ASSIGN(os::Mapping mapping, file.map({.populate = true}));
    return PagedCache(std::move(mapping), block_bytes, slots);
  }

  // Good until as many others have been taken as there are slots.
  std::byte* take() {
    std::byte* const slot = mapping_.data() + next_ * block_bytes_;
    next_ = next_ + 1 == slots_ ? 0 : next_ + 1;
    return slot;
  }

  std::uint32_t slots() const { return slots_; }

 private:
  PagedCache(os::Mapping mapping, std::uint64_t block_bytes, std::uint32_t slots)
      : mapping_(std::move(mapping)), block_bytes_(block_bytes), slots_(slots) {}

  os::Mapping mapping_;
  std::uint64_t block_bytes_;
  std::uint32_t slots_;
  std::uint32_t next_ = 0;
};

}  // namespace cachalot::replay
