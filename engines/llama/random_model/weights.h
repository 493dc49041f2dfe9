// Weights that a seed makes: the same bits on every machine, so that two machines that generate a
// model have the same one, and its blocks may meet in a pool.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace cachalot::llama {

// Roughly normal numbers of mean 0 and the given deviation: sums of four uniform ones, which takes
// no function of the mathematics library, whose last bits differ.
// @param name  of the tensor: each has numbers of its own
void fill_random(std::span<float> weights, std::uint64_t seed, std::string_view name,
                 float deviation);

}  // namespace cachalot::llama
