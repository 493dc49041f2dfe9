// Belady's optimum: what a cache that knows the future would hit. No policy can do better.
//
// The block that is asked for again last goes, or is not stored at all if that is the new one. References
// are logged while the trace is read, then looked at from the end: at each reference, when the same block
// is next asked for.
//
// In a tree it is the same: a block is never asked for without its parent before it, so the parent's next
// use comes first, and a block that goes has no child left; the path of the request in hand is nearer than
// the block that would drive it out. So `stream` and `leaf` have one optimum, and it is prefix-closed.
// @source Belady: A study of replacement algorithms for a virtual-storage computer, IBM Systems Journal 1966
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>
#include <string>

#include "cache_sim/spill_vector.h"

namespace cachalot::cache_sim {

// @threads one at a time
class Belady {
 public:
  struct Hits {
    std::uint64_t blocks = 0;
    std::uint64_t prefix = 0;
    std::uint64_t tokens = 0;  // sum of min(prefix of a request * block_tokens, its input tokens)
  };

  // @errors as SpillFile::make
  static Result<Belady> make(const std::string& directory);

  // Logs one request.
  // @shape  path: numbers of its blocks, root first
  // @errors kUnsupported: more than 2^32 - 2 references; as SpillFile::reserve
  // @cost   4 bytes a reference and 16 a request, in the file
  Status add(std::span<const std::uint32_t> path, std::uint64_t input_tokens);

  // Looks for the next uses, once all requests are in: 4 bytes a reference more in the file, and 4 bytes
  // of memory for each of the `distinct_blocks`.
  Status look_ahead(std::uint32_t distinct_blocks);

  // After look_ahead(). capacity_blocks > 0. The first `warmup_requests` are stored but not counted.
  // @cost O(log capacity) a reference; 28 bytes of memory a block of the capacity, 4 a distinct block
  Hits hits(std::uint64_t capacity_blocks, std::uint64_t block_tokens,
            std::uint64_t warmup_requests = 0) const;

 private:
  struct Request {
    std::uint64_t input_tokens;
    std::uint32_t blocks;
    std::uint32_t padding;
  };
  static constexpr std::uint32_t kNever = 0xffffffffu;

  Belady(SpillVector<std::uint32_t> log, SpillVector<std::uint32_t> next_use,
         SpillVector<Request> requests)
      : log_(std::move(log)), next_use_(std::move(next_use)), requests_(std::move(requests)) {}

  SpillVector<std::uint32_t> log_;       // block numbers, request after request
  SpillVector<std::uint32_t> next_use_;  // of each reference: which later one is of the same block
  SpillVector<Request> requests_;
};

}  // namespace cachalot::cache_sim
