// Memory for the KV of requests, as engines keep it; and what it should take by arithmetic alone.
//
//   kind     | a request has                                   | its memory is
//   vtensor  | a vTensor, one step ahead of its tokens         | chunks
//   static   | a slot with max_tokens, for good                | chunks
//   paged    | pages of 16 tokens, of all layers, by a table   | pages
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>

namespace cachalot::replay {

class KvMemory {
 public:
  struct Prompt {
    std::uint64_t tokens = 0;
    std::uint64_t total_tokens = 0;           // with all that it will generate
    std::span<const std::uint64_t> ids = {};  // of its whole blocks; empty: nothing is shared
  };

  virtual ~KvMemory() = default;

  // Memory for the prompt. @errors kNoSpace
  virtual Status begin(std::size_t slot, const Prompt& prompt) = 0;
  // The prompt is computed: its blocks can be shared.
  virtual Status computed(std::size_t /*slot*/, const Prompt& /*prompt*/) { return {}; }
  // Memory for one token more, so many in all.
  virtual Status grow(std::size_t slot, std::uint64_t tokens) = 0;
  virtual void end(std::size_t slot) = 0;
  // A decode step takes so long: what is done in the background fits, or is late.
  virtual void step(std::uint64_t /*step_ns*/) {}

  // What requests and recorded prefixes hold now.
  virtual std::uint64_t bytes() const = 0;
};

}  // namespace cachalot::replay
