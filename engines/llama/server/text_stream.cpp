#include "text_stream.h"

#include <algorithm>
#include <utility>

namespace cachalot::llama {
namespace {

constexpr const char* kReplacement = "\xef\xbf\xbd";

// How much of the end of `text` is the beginning of `stop`, and not all of it.
std::size_t begun_stop(std::string_view text, std::string_view stop) {
  for (std::size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (text.ends_with(stop.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

void Utf8Assembler::take(unsigned char byte, std::string& out) {
  if (missing_ > 0) {
    if (byte >= low_ && byte <= high_) {
      begun_ += static_cast<char>(byte);
      low_ = 0x80;
      high_ = 0xbf;
      if (--missing_ == 0) out += std::exchange(begun_, {});
      return;
    }
    out += finish();
  }
  if (byte < 0x80) {
    out += static_cast<char>(byte);
  } else if (byte >= 0xc2 && byte <= 0xf4) {
    missing_ = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
    // No longer forms than needed, no surrogates, nothing above U+10FFFF.
    low_ = byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : 0x80;
    high_ = byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : 0xbf;
    begun_ = static_cast<char>(byte);
  } else {
    out += kReplacement;
  }
}

std::string Utf8Assembler::add(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) take(static_cast<unsigned char>(byte), out);
  return out;
}

std::string Utf8Assembler::finish() {
  if (missing_ == 0) return {};
  missing_ = 0;
  begun_.clear();
  return kReplacement;
}

std::string TextStream::release() {
  std::size_t stop_at = std::string::npos, undecided = 0;
  for (const std::string& stop : stops_) {
    stop_at = std::min(stop_at, held_.find(stop));
    undecided = std::max(undecided, begun_stop(held_, stop));
  }
  if (stop_at != std::string::npos) {
    is_stopped_ = true;
    return std::exchange(held_, {}).substr(0, stop_at);
  }
  std::string free = held_.substr(0, held_.size() - undecided);
  held_.erase(0, free.size());
  return free;
}

std::string TextStream::add(std::string_view bytes) {
  if (is_stopped_) return {};
  held_ += characters_.add(bytes);
  return release();
}

std::string TextStream::finish() {
  if (is_stopped_) return {};
  held_ += characters_.finish();
  std::string rest = release();
  return rest + std::exchange(held_, {});
}

}  // namespace cachalot::llama
