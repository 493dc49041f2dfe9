#include "trace/file/line_reader.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <utility>

namespace cachalot::trace {
namespace {

constexpr std::size_t kFirstBytes = std::size_t{256} << 10;
constexpr std::size_t kMostBytes = LineReader::kMaxLineBytes + kFirstBytes;
constexpr std::size_t kNotFound = ~std::size_t{0};

std::size_t find_feed(const char* from, std::size_t bytes) {
  const void* feed = bytes == 0 ? nullptr : std::memchr(from, '\n', bytes);
  return feed == nullptr ? kNotFound
                         : static_cast<std::size_t>(static_cast<const char*>(feed) - from);
}

}  // namespace

Result<LineReader> LineReader::open(const std::string& path) {
  CACHALOT_TRY_ASSIGN(auto source, ByteSource::open_text(path));
  return over(std::move(source), path);
}

LineReader LineReader::over(std::unique_ptr<ByteSource> source, const std::string& path) {
  LineReader reader(std::move(source), path);
  reader.buffer_.resize(kFirstBytes + kPaddingBytes);
  return reader;
}

Result<LineReader::Found> LineReader::next() {
  ++line_number_;
  std::size_t searched = 0;
  for (;;) {
    const std::size_t feed =
        find_feed(buffer_.data() + begin_ + searched, end_ - begin_ - searched);
    if (feed != kNotFound) return take_line(searched + feed);
    searched = end_ - begin_;
    if (searched > kMaxLineBytes) return pass_over_line();
    CACHALOT_TRY_ASSIGN(const std::size_t bytes, fill());
    if (bytes > 0) continue;
    return searched == 0 ? Found::kEnd : take_line(searched);
  }
}

// Reads more behind end_, after making room for it; 0 at the end of the file.
Result<std::size_t> LineReader::fill() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  std::size_t room = buffer_.size() - kPaddingBytes;
  if (end_ == room) {
    room = std::min(room * 2, kMostBytes);
    buffer_.resize(room + kPaddingBytes);
  }
  CACHALOT_TRY_ASSIGN(const std::size_t bytes,
                      source_->read(std::span(buffer_).subspan(end_, room - end_)));
  end_ += bytes;
  return bytes;
}

// A device that never ends has no line feed either.
Result<LineReader::Found> LineReader::pass_over_line() {
  constexpr std::uint64_t kMostPassedOver = std::uint64_t{1} << 30;
  for (std::uint64_t passed_over = 0;;) {
    begin_ = end_ = 0;
    CACHALOT_TRY_ASSIGN(const std::size_t bytes, fill());
    passed_over += bytes;
    if (passed_over > kMostPassedOver) {
      return Error::make(Code::kBadInput,
                         "%s:%" PRIu64 ": no line feed in more than a GiB, expected lines of text",
                         shown_path_.c_str(), line_number_);
    }
    const std::size_t feed = find_feed(buffer_.data(), bytes);
    if (feed != kNotFound) begin_ = feed + 1;
    if (feed != kNotFound || bytes == 0) return Found::kTooLong;
  }
}

LineReader::Found LineReader::take_line(std::size_t bytes) {
  line_begin_ = begin_;
  line_bytes_ = bytes;
  begin_ = std::min(begin_ + bytes + 1, end_);  // the last line may lack its line feed
  return bytes > kMaxLineBytes ? Found::kTooLong : Found::kLine;
}

}  // namespace cachalot::trace
