// The unit of the deadlines in tests of transfers.
#pragma once

#include <cstdint>

namespace cachalot::transfer {

inline constexpr std::uint64_t kSecond = 1'000'000'000;  // nanoseconds

}  // namespace cachalot::transfer
