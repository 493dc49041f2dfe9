// What a replay writes into a block (replay/pattern/pattern_words.h), and its writer.
//
// @threads any, on blocks of their own
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>

#include "replay/pattern/pattern_words.h"

namespace cachalot::replay {

void write_pattern(std::byte* at, std::uint64_t bytes, std::uint64_t number, Verify verify);

// @return how many of the numbers written are not there any more
std::uint64_t count_wrong(const std::byte* at, std::uint64_t bytes, std::uint64_t number,
                          Verify verify);

// The writer of patterns, which also counts what is left of them, in memory that is the process's or not. When a
// call returns, nothing touches the block any more.
class PatternMemory {
 public:
  virtual ~PatternMemory() = default;
  // @shape  at: of 8 bytes @errors of the device
  virtual Status write(std::uint64_t at, std::uint64_t bytes, std::uint64_t number,
                       Verify verify) = 0;
  virtual Result<std::uint64_t> count_wrong(std::uint64_t at, std::uint64_t bytes,
                                            std::uint64_t number, Verify verify) = 0;
};

// Memory at addresses of this process.
class OwnMemory final : public PatternMemory {
 public:
  Status write(std::uint64_t at, std::uint64_t bytes, std::uint64_t number, Verify verify) override;
  Result<std::uint64_t> count_wrong(std::uint64_t at, std::uint64_t bytes, std::uint64_t number,
                                    Verify verify) override;
};

}  // namespace cachalot::replay
