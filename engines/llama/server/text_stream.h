// From the bytes of tokens to text that may be sent: whole characters only, and nothing that a stop
// string may still swallow.
//
// A token's bytes may end inside a character, and a stop string may begin in one token and end in
// another: what is not decided yet is held back until it is. Bytes that are no UTF-8 become U+FFFD,
// one for each maximal part of a character (Unicode 15, 3.9).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cachalot::llama {

// Bytes in any portions; characters out.
class Utf8Assembler {
 public:
  // The characters that are complete now.
  std::string add(std::string_view bytes);
  // U+FFFD where a character was begun and not completed.
  std::string finish();

 private:
  void take(unsigned char byte, std::string& out);

  std::string begun_;                       // the bytes of a character that is not complete
  int missing_ = 0;                         // how many more it takes
  unsigned char low_ = 0x80, high_ = 0xbf;  // what the next byte may be
};

class TextStream {
 public:
  // @param stops  none of them empty
  explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // The bytes of the next token; what may be sent now. Nothing more after a stop string was found.
  std::string add(std::string_view bytes);
  // The rest, when no more tokens come.
  std::string finish();
  bool is_stopped() const { return is_stopped_; }

 private:
  std::string release();

  std::vector<std::string> stops_;
  Utf8Assembler characters_;
  std::string held_;  // characters that may be the beginning of a stop string
  bool is_stopped_ = false;
};

}  // namespace cachalot::llama
