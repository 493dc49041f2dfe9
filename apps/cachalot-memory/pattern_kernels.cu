// What `cachalot alloc-replay --verify` writes into a GPU's memory and looks for there.
#include "replay/pattern/pattern_words.h"

// @param at     of 8 bytes
// @param wrong  not used; both kernels have the same parameters
extern "C" __global__ void __launch_bounds__(256)
    replay_write_pattern(std::uint64_t at, std::uint64_t bytes, std::uint64_t number,
                         cachalot::replay::Verify verify, unsigned long long* wrong) {
  const std::uint64_t words = cachalot::replay::pattern_words(bytes, verify);
  const std::uint64_t threads = std::uint64_t{gridDim.x} * blockDim.x;
  std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < words; i += threads) {
    const std::uint64_t offset = cachalot::replay::pattern_offset(i, bytes, verify);
    *reinterpret_cast<std::uint64_t*>(at + offset) = cachalot::replay::pattern_word(number, offset);
  }
}

// Adds to `wrong` how many words are not what was written.
extern "C" __global__ void __launch_bounds__(256)
    replay_count_wrong(std::uint64_t at, std::uint64_t bytes, std::uint64_t number,
                       cachalot::replay::Verify verify, unsigned long long* wrong) {
  const std::uint64_t words = cachalot::replay::pattern_words(bytes, verify);
  const std::uint64_t threads = std::uint64_t{gridDim.x} * blockDim.x;
  std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  unsigned long long count = 0;
  for (; i < words; i += threads) {
    const std::uint64_t offset = cachalot::replay::pattern_offset(i, bytes, verify);
    const std::uint64_t word = *reinterpret_cast<const std::uint64_t*>(at + offset);
    count += word != cachalot::replay::pattern_word(number, offset);
  }
  if (count != 0) atomicAdd(wrong, count);
}
