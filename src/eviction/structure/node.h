// Dense numbers for the blocks a cache holds, so that accounting is arrays and not pointers.
#pragma once

#include <cstdint>

namespace cachalot::eviction {

// A number in [0, capacity_nodes) of whatever holds it; in a pool it is the block number.
using NodeId = std::uint32_t;

inline constexpr NodeId kNoNode = 0xffffffffu;      // no parent, no victim, end of a list
inline constexpr NodeId kAbsentNode = 0xfffffffeu;  // marks a record as unused; never a number
inline constexpr std::uint32_t kMaxNodes = 0xfffffffeu;

}  // namespace cachalot::eviction
