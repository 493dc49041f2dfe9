// A request of a trace, whatever format it was read from.
#pragma once

#include <cstdint>
#include <vector>

namespace cachalot::trace {

inline constexpr double kMsPerSecond = 1000;

struct Request {
  double timestamp_ms = 0;
  std::uint64_t input_tokens = 0;
  std::uint64_t output_tokens = 0;
  // One for each block of the input, each standing for the whole prefix up to it. The last block may
  // be partial, and may be left out then.
  std::vector<std::uint64_t> hash_ids;
};

}  // namespace cachalot::trace
