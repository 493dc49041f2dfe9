#include "tier/radix/radix_key.h"

#include <algorithm>
#include <cstring>

namespace cachalot::tier {

std::string frame_extra(std::span<const std::string_view> parts) {
  std::string framed;
  for (const std::string_view part : parts) {
    const std::uint64_t size = part.size();
    char bytes[sizeof size];
    std::memcpy(bytes, &size, sizeof size);
    framed.append(bytes, sizeof bytes);
    framed.append(part);
  }
  return framed;
}

std::string frame_extra(std::initializer_list<std::string_view> parts) {
  return frame_extra(std::span(parts.begin(), parts.size()));
}

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

std::size_t common_elements(const RadixKey& one, const RadixKey& other, std::uint32_t page_tokens) {
  if (one.extra != other.extra || one.is_bigram != other.is_bigram) return 0;
  const std::size_t tokens = common_tokens(one.tokens, other.tokens);
  const std::size_t elements = tokens < one.shared_tokens() ? 0 : tokens - one.shared_tokens();
  return elements / page_tokens * page_tokens;
}

}  // namespace cachalot::tier
