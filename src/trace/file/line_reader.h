// A text file as lines, whether it is gzip or not, in memory that a JSON parser may read beyond.
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "trace/file/byte_source.h"

namespace cachalot::trace {

// @threads one at a time
// @cost    no allocation but to hold the longest line
class LineReader {
 public:
  static constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20;
  static constexpr std::size_t kPaddingBytes = 64;  // readable behind every line

  enum class Found { kLine, kTooLong, kEnd };

  // @errors as ByteSource::open
  static Result<LineReader> open(const std::string& path);
  // @param path  of the source, for messages
  static LineReader over(std::unique_ptr<ByteSource> source, const std::string& path);

  // Goes to the next line. kTooLong: it has more than kMaxLineBytes and was passed over.
  // @errors as ByteSource::read; kBadInput: "file:line: …", a line that does not end
  Result<Found> next();

  // Without its line feed; valid until next().
  std::string_view line() const { return {buffer_.data() + line_begin_, line_bytes_}; }
  // Counted from 1.
  std::uint64_t line_number() const { return line_number_; }

 private:
  LineReader(std::unique_ptr<ByteSource> source, const std::string& path)
      : source_(std::move(source)), shown_path_(shown_path(path)) {}

  Result<std::size_t> fill();
  Result<Found> pass_over_line();
  Found take_line(std::size_t bytes);

  std::unique_ptr<ByteSource> source_;
  std::string shown_path_;
  std::vector<char> buffer_;  // [begin_, end_) is read and not yet passed; padding behind
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::size_t line_begin_ = 0;
  std::size_t line_bytes_ = 0;
  std::uint64_t line_number_ = 0;
};

}  // namespace cachalot::trace
