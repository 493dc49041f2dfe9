// What a replay writes into a block, so that memory which two blocks share, or which was lost, shows:
// every 8 bytes are a number made of the block's own number and their place in it.
//
// @threads any, on blocks of their own
#pragma once

#include <cstddef>
#include <cstdint>

namespace cachalot::replay {

enum class Verify : std::uint8_t {
  kOff,
  kSample,  // the first and last bytes and eight in each 4 KiB: what mapping mistakes can change
  kFull,
};

void write_pattern(std::byte* at, std::uint64_t bytes, std::uint64_t number, Verify verify);

// @return how many of the numbers written are not there any more
std::uint64_t count_wrong(const std::byte* at, std::uint64_t bytes, std::uint64_t number,
                          Verify verify);

}  // namespace cachalot::replay
