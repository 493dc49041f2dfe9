#include "storage/redis/reply_scan.h"

#include <algorithm>
#include <charconv>

namespace cachalot::storage {

namespace {

constexpr std::size_t kMostLineBytes = 64 << 10;

}  // namespace

ReplyScan::Found ReplyScan::take(std::string_view bytes, std::size_t& taken) {
  taken = 0;
  while (values_ != 0) {
    const std::string_view rest = bytes.substr(taken);
    if (rest.empty()) return Found::kMore;
    if (skipped_ != 0) {
      const std::uint64_t some = std::min<std::uint64_t>(skipped_, rest.size());
      skipped_ -= some;
      taken += some;
      if (skipped_ == 0) --values_;
      continue;
    }
    const std::size_t end = rest.find('\n');
    const std::string_view part = rest.substr(0, end == std::string_view::npos ? end : end + 1);
    taken += part.size();
    bytes_ += part.size();
    if (bytes_ > bounds_.bytes || line_.size() + part.size() > kMostLineBytes)
      return Found::kBeyond;
    line_ += part;
    if (end == std::string_view::npos) return Found::kMore;
    if (!take_line()) return Found::kBeyond;
    line_.clear();
  }
  return Found::kEnd;
}

// @return false: it is beyond the bounds, or no line of a reply
bool ReplyScan::take_line() {
  const char kind = line_[0];
  if (kind == '+' || kind == '-' || kind == ':') {
    --values_;
    return true;
  }
  std::int64_t count = 0;
  const char* const end = line_.data() + line_.size();
  const auto [stop, failed] = std::from_chars(line_.data() + 1, end, count);
  if ((kind != '$' && kind != '*') || failed != std::errc() || end - stop != 2 || *stop != '\r' ||
      count < -1) {
    return false;
  }
  const auto announced = static_cast<std::uint64_t>(count);
  if (count == -1) {
    --values_;  // null
  } else if (kind == '$') {
    if (announced > bounds_.bytes - bytes_) return false;
    bytes_ += announced;
    skipped_ = announced + 2;
  } else {
    if (announced > bounds_.elements - elements_) return false;
    elements_ += announced;
    values_ += announced - 1;
  }
  return true;
}

}  // namespace cachalot::storage
