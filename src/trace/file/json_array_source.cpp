#include "trace/file/json_array_source.h"

#include <utility>

namespace cachalot::trace {

JsonArraySource::JsonArraySource(std::unique_ptr<ByteSource> source, const std::string& path)
    : source_(std::move(source)), shown_path_(shown_path(path)) {}

Result<std::size_t> JsonArraySource::read(std::span<char> to) {
  CACHALOT_TRY_ASSIGN(const std::size_t bytes, source_->read(to));
  if (bytes == 0 && !to.empty() && !is_over_) {
    return Error::make(Code::kBadInput, "%s: the array does not end, expected ] after element %llu",
                       shown_path_.c_str(), static_cast<unsigned long long>(elements_ + 1));
  }
  for (char& byte : to.subspan(0, bytes)) {
    if (take(byte)) continue;
    if (is_over_) {
      return Error::make(Code::kBadInput,
                         "%s: text after the array of %llu elements, expected none",
                         shown_path_.c_str(), static_cast<unsigned long long>(elements_));
    }
    return Error::make(Code::kBadInput,
                       "%s: element %llu: expected an object before the next comma or ]",
                       shown_path_.c_str(), static_cast<unsigned long long>(elements_ + 1));
  }
  return bytes;
}

bool JsonArraySource::take(char& byte) {
  if (in_text_) return take_text(byte);
  switch (byte) {
    case ' ':
    case '\t':
      return true;
    case '\r':
    case '\n':
      byte = ' ';
      return true;
    case ']':
    case '}':
      return take_close(byte);
    default:
      break;
  }
  if (is_over_) return false;
  if (depth_ == 0) {
    depth_ = 1;
    byte = ' ';
    return true;
  }
  if (byte == ',' && depth_ == 1) {
    if (!has_content_) return false;
    byte = '\n';
    ++elements_;
    has_content_ = false;
    return true;
  }
  has_content_ = true;
  in_text_ = byte == '"';
  depth_ += byte == '[' || byte == '{' ? 1 : 0;
  return true;
}

bool JsonArraySource::take_text(char& byte) {
  const bool is_plain = std::exchange(is_escaped_, false);
  if (is_plain) return true;
  is_escaped_ = byte == '\\';
  in_text_ = byte != '"';
  return true;
}

bool JsonArraySource::take_close(char& byte) {
  if (is_over_ || depth_ == 0) return false;
  if (depth_ > 1) {
    --depth_;
    return true;
  }
  // Only an array without elements has nothing before its end.
  if (byte != ']' || (!has_content_ && elements_ > 0)) return false;
  byte = '\n';
  depth_ = 0;
  is_over_ = true;
  elements_ += has_content_ ? 1 : 0;
  return true;
}

}  // namespace cachalot::trace
