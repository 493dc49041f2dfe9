// Words in messages for people: numbers with their nouns, and text of strangers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cachalot::base {

// "1 block", "65,536 blocks".
// @param many  the plural; empty: the noun and "s"
std::string counted(std::uint64_t number, std::string_view noun, std::string_view many = {});
// "65,536".
std::string grouped(std::uint64_t number);

// The text as one line for a terminal or a log, whatever bytes a name has: a control character becomes '?', a byte that is
// not UTF-8 becomes U+FFFD.
std::string printable(std::string_view text);

}  // namespace cachalot::base
