#include "tier/radix/radix_key.h"

#include <algorithm>
#include <cstring>

namespace cachalot::tier {

// Whole stretches by memcmp, which uses the widest loads of the machine; then the last one by tokens.
std::size_t common_tokens(std::span<const Token> one, std::span<const Token> other) {
  constexpr std::size_t kStretch = 256;
  const std::size_t size = std::min(one.size(), other.size());
  std::size_t same = 0;
  while (same < size) {
    const std::size_t stretch = std::min(kStretch, size - same);
    if (std::memcmp(one.data() + same, other.data() + same, stretch * sizeof(Token)) != 0) break;
    same += stretch;
  }
  while (same < size && one[same] == other[same]) ++same;
  return same;
}

}  // namespace cachalot::tier
