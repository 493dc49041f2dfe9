// Where a reply of Redis ends, found as its bytes come and before a parser allocates for what they announce.
//
//   "*2\r\n$1\r\n0\r\n*0\r\n"   an array of two: a string of one byte, an array of none
//
// @threads one at a time
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cachalot::storage {

// What a command may be answered with.
struct ReplyBounds {
  std::uint64_t elements = 0;      // of all its arrays
  std::uint64_t bytes = 64 << 10;  // of all its strings and lines
};

class ReplyScan {
 public:
  enum class Found { kMore, kEnd, kBeyond };

  explicit ReplyScan(const ReplyBounds& bounds) : bounds_(bounds) {}

  // Takes the reply's next bytes. What comes after its end is left.
  // @param taken  how many of `bytes` belong to it
  // @return kBeyond: it announces more than its bounds, or is no reply
  Found take(std::string_view bytes, std::size_t& taken);

 private:
  bool take_line();

  ReplyBounds bounds_;
  std::uint64_t values_ = 1;   // still to come
  std::uint64_t skipped_ = 0;  // bytes of a string, and its line end, still to come
  std::uint64_t elements_ = 0, bytes_ = 0;
  std::string line_;  // as far as it has come
};

}  // namespace cachalot::storage
