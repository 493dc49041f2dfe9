// Sizes as people write them, on the command line and in the environment.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string_view>

namespace cachalot::base {

// "65536", "64KiB", "1.5GiB", "4MB" (powers of ten without the i); up to EiB and EB.
// @param  name  of the flag or variable, for the message
// @errors kInvalidArgument, also where the bytes do not fit 63 bits
Result<std::uint64_t> parse_byte_size(const char* name, std::string_view text);

}  // namespace cachalot::base
