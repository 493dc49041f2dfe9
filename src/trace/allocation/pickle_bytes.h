// The bytes of a pickle, taken from the front. What is taken was there: nothing is read beyond the end.
#pragma once

#include <cachalot/result.h>

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace cachalot::trace {

// @errors of all: kBadInput, the file is cut or damaged
class PickleBytes {
 public:
  explicit PickleBytes(std::span<const char> bytes) : bytes_(bytes) {}

  std::size_t at() const { return at_; }
  std::size_t left() const { return bytes_.size() - at_; }

  Status expect(std::uint64_t count) const {
    if (count <= left()) [[likely]]
      return {};
    return Error::make(Code::kBadInput,
                       "%zu bytes are left, expected %" PRIu64 ": the file is cut or damaged",
                       left(), count);
  }

  Result<std::string_view> take(std::uint64_t count) {
    CACHALOT_TRY(expect(count));
    const std::string_view taken(bytes_.data() + at_, static_cast<std::size_t>(count));
    at_ += taken.size();
    return taken;
  }

  // Little-endian; at most eight bytes.
  Result<std::uint64_t> take_unsigned(std::size_t width) {
    CACHALOT_TRY_ASSIGN(const std::string_view digits, take(width));
    std::uint64_t number = 0;
    for (std::size_t i = width; i-- > 0;) {
      number = number << 8 | static_cast<unsigned char>(digits[i]);
    }
    return number;
  }

  // Without its line feed.
  Result<std::string_view> take_line() {
    const std::string_view rest(bytes_.data() + at_, left());
    const std::size_t feed = rest.find('\n');
    if (feed == std::string_view::npos) {
      return Error::make(Code::kBadInput, "a line has no end: the file is cut or damaged");
    }
    at_ += feed + 1;
    return rest.substr(0, feed);
  }

 private:
  std::span<const char> bytes_;
  std::size_t at_ = 0;
};

}  // namespace cachalot::trace
