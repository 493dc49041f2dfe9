#include "base/words.h"

#include "base/utf8.h"

namespace cachalot::base {
namespace {

// Of one character: C0, DEL, C1.
bool is_control(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
  return character.size() == 2 && byte(0) == 0xc2 && byte(1) < 0xa0;
}

}  // namespace

std::string grouped(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3;) {
    at -= 3;
    text.insert(at, ",");
  }
  return text;
}

std::string counted(std::uint64_t number, std::string_view noun, std::string_view many) {
  std::string text = grouped(number) + " ";
  if (number == 1) return text += noun;
  return many.empty() ? (text += noun) += "s" : text += many;
}

std::string printable(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const std::size_t bytes = utf8_character_bytes(text);
    const std::string_view character = text.substr(0, bytes == 0 ? 1 : bytes);
    if (bytes == 0) {
      line += "\xef\xbf\xbd";
    } else if (is_control(character)) {
      line += '?';
    } else {
      line += character;
    }
    text.remove_prefix(character.size());
  }
  return line;
}

}  // namespace cachalot::base
