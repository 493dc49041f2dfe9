// Where characters of UTF-8 end: text of strangers goes into formats that allow nothing else.
#pragma once

#include <cstddef>
#include <string_view>

namespace cachalot::base {

// The length of the UTF-8 character at the start of `text`, which is not empty; 0: it is none.
inline std::size_t utf8_character_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const unsigned second = byte(1);
  // Longer than needed, a surrogate, beyond U+10FFFF.
  const bool is_wrong = (lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
                        (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f);
  return is_wrong ? 0 : bytes;
}

}  // namespace cachalot::base
