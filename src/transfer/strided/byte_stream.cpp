#include "transfer/strided/byte_stream.h"

#include <algorithm>
#include <utility>

namespace cachalot::transfer {

ByteStream::ByteStream(Strided stream) : bytes_(stream.bytes()) {
  if (bytes_ > 0) sections_.push_back(std::move(stream));
}

Result<ByteStream> ByteStream::make(std::uint64_t turns, std::vector<Strided> sections) {
  if (turns == 0) {
    return Error::make(Code::kInvalidArgument, "a stream of 0 turns; expected at least 1");
  }
  if (sections.empty() || sections.size() > kMostSections) {
    return Error::make(Code::kInvalidArgument, "a stream of %zu sections; expected 1 to %zu",
                       sections.size(), kMostSections);
  }
  ByteStream stream;
  stream.turns_ = turns;
  for (std::size_t i = 0; i < sections.size(); ++i) {
    const std::uint64_t bytes = sections[i].bytes();
    if (bytes == 0 || bytes % turns != 0) {
      return Error::make(Code::kInvalidArgument,
                         "section %zu of a stream has %llu bytes; expected a multiple of its %llu "
                         "turns",
                         i, static_cast<unsigned long long>(bytes),
                         static_cast<unsigned long long>(turns));
    }
    if (__builtin_add_overflow(stream.bytes_, bytes, &stream.bytes_) || stream.bytes_ >> 63 != 0) {
      return Error::make(Code::kInvalidArgument, "a stream exceeds 63 bits in its size");
    }
  }
  stream.sections_ = std::move(sections);
  return stream;
}

std::uint64_t ByteStream::runs() const {
  std::uint64_t runs = 0;
  for (const Strided& section : sections_) runs += section.runs();
  return runs;
}

std::uint64_t ByteStream::lowest() const {
  std::uint64_t lowest = sections_.empty() ? 0 : sections_[0].lowest();
  for (const Strided& section : sections_) lowest = std::min(lowest, section.lowest());
  return lowest;
}

std::uint64_t ByteStream::end() const {
  std::uint64_t end = 0;
  for (const Strided& section : sections_) end = std::max(end, section.end());
  return end;
}

namespace {
const Strided kEmpty;
}  // namespace

ByteStreamCursor::ByteStreamCursor(const ByteStream& stream, std::uint64_t offset)
    : stream_(&stream), cursor_(kEmpty) {
  seek(offset);
}

void ByteStreamCursor::enter(std::size_t section, std::uint64_t turn, std::uint64_t skip) {
  const Strided& strided = stream_->sections()[section];
  const std::uint64_t share = strided.bytes() / stream_->turns();
  section_ = section;
  turn_ = turn;
  left_ = share - skip;
  cursor_ = StridedCursor(strided, turn * share + skip);
}

void ByteStreamCursor::seek(std::uint64_t offset) {
  offset_ = offset;
  if (offset >= stream_->bytes()) return;
  if (stream_->sections().size() == 1) {
    // Turns are seamless.
    cursor_ = StridedCursor(stream_->sections()[0], offset);
    left_ = stream_->bytes() - offset;
    return;
  }
  std::uint64_t rest = offset % stream_->turn_bytes();
  std::size_t section = 0;
  for (;; ++section) {
    const std::uint64_t share = stream_->sections()[section].bytes() / stream_->turns();
    if (rest < share) break;
    rest -= share;
  }
  enter(section, offset / stream_->turn_bytes(), rest);
}

Piece ByteStreamCursor::next(std::uint64_t most) {
  if (offset_ >= stream_->bytes()) return {};
  const Piece piece = cursor_.next(std::min(most, left_));
  offset_ += piece.bytes;
  left_ -= piece.bytes;
  if (left_ == 0 && offset_ < stream_->bytes()) {
    const bool last = section_ + 1 == stream_->sections().size();
    enter(last ? 0 : section_ + 1, last ? turn_ + 1 : turn_, 0);
  }
  return piece;
}

void copy_between(const ByteStream& from, const ByteStream& to, std::uint64_t offset,
                  std::uint64_t bytes) {
  copy_pieces(ByteStreamCursor(from, offset), ByteStreamCursor(to, offset), bytes);
}

}  // namespace cachalot::transfer
