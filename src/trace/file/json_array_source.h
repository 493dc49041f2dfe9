// A JSON array of objects as lines, an element each: what reads JSON lines reads arrays through it.
//
// Bytes keep their number and order, so that nothing is held in memory: the array's brackets become blanks, the
// commas between its elements line feeds, and line feeds within an element blanks. What is inside an element is
// not judged here. Line k is element k, from 1.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <memory>
#include <string>

#include "trace/file/byte_source.h"

namespace cachalot::trace {

class JsonArraySource final : public ByteSource {
 public:
  // @param source  begins with blanks and '['
  // @param path    of the source, for messages
  JsonArraySource(std::unique_ptr<ByteSource> source, const std::string& path);

  // @errors as ByteSource; kBadInput: an array that does not end, text after it, an empty element
  Result<std::size_t> read(std::span<char> to) override;

 private:
  // False: the byte can't be where it is.
  bool take(char& byte);
  bool take_text(char& byte);
  bool take_close(char& byte);

  std::unique_ptr<ByteSource> source_;
  std::string shown_path_;
  std::uint64_t elements_ = 0;  // that have ended
  std::uint64_t depth_ = 0;     // of brackets; 0: before or after the array
  bool is_over_ = false;
  bool in_text_ = false, is_escaped_ = false;
  bool has_content_ = false;  // of the element
};

}  // namespace cachalot::trace
