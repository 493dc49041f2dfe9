// One direction of a mailbox: a ring of lines with one writer and one reader and nothing shared
// between them but the lines themselves.
//
// There is no head, tail or credit word. Line number s (from 1) lies in slot s mod n; the reader
// knows which number it expects next and takes the line when that number checks. The writer must
// not be more than n lines ahead of what it knows to have been read: the user of a ring counts
// that credit (rpc/channel.h).
//
// Invariants
//   1. A slot is written by one process only (R1).
//   2. A line is taken once, in order of its number, and only if its CRC (over pool, place,
//      incarnation and content) is right (R5). If the writer's stores can tear, it is taken
//      only after a second, equal read: the reader asks for that with Confirmation.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "memory/sealed_region.h"

namespace cachalot::rpc {

class RingWriter {
 public:
  RingWriter() = default;
  // @param lines  a power of two
  RingWriter(const memory::SealedRegion& region, std::uint64_t offset, std::uint32_t lines)
      : region_(region), offset_(offset), mask_(lines - 1) {
    CACHALOT_CHECK(lines != 0 && (lines & mask_) == 0);
  }

  // Gives the line its number (its first 8 bytes) and seals it; flush() writes it, with its
  // neighbours: one call to the domain for many lines.
  std::uint64_t stage(const memory::Line& line) {
    if (staged_ == kMostStaged) flush();
    memory::Line& out = lines_[staged_++];
    out = line;
    out.words[0] = next_;
    region_.seal(out, place(next_));
    return next_++;
  }
  // @return false if nothing was staged
  bool flush() {
    if (staged_ == 0) return false;
    const std::uint64_t first = next_ - staged_;
    // Two runs where the ring's end lies between them.
    const auto before_end =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(staged_, mask_ + 1 - (first & mask_)));
    region_.domain().write_lines(region_.at(place(first)), lines_, before_end);
    if (before_end != staged_) {
      region_.domain().write_lines(region_.at(offset_), lines_ + before_end, staged_ - before_end);
    }
    staged_ = 0;
    return true;
  }
  std::uint64_t write(const memory::Line& line) {
    const std::uint64_t sequence = stage(line);
    flush();
    return sequence;
  }

  std::uint64_t next() const { return next_; }

 private:
  static constexpr std::uint32_t kMostStaged = 32;

  std::uint64_t place(std::uint64_t sequence) const {
    return offset_ + (sequence & mask_) * memory::kLineBytes;
  }

  memory::SealedRegion region_;
  std::uint64_t offset_ = 0;
  std::uint64_t mask_ = 0;
  std::uint64_t next_ = 1;
  std::uint32_t staged_ = 0;
  memory::Line lines_[kMostStaged] = {};
};

class RingReader {
 public:
  RingReader() = default;
  RingReader(const memory::SealedRegion& region, std::uint64_t offset, std::uint32_t lines)
      : region_(region), offset_(offset), mask_(lines - 1) {
    CACHALOT_CHECK(lines != 0 && (lines & mask_) == 0);
  }

  // Address of the i-th line after the next expected one.
  const void* address(std::uint32_t i) const { return region_.at(place(expected_ + i)); }

  // How many of `count` lines, read from address(0), address(1), …, are the expected ones.
  std::uint32_t accept(const memory::Line* lines, std::uint32_t count) const {
    std::uint32_t good = 0;
    while (good < count && is_expected(lines[good], good)) ++good;
    return good;
  }

  bool is_expected(const memory::Line& line, std::uint32_t i) const {
    return line.words[0] == expected_ + i && region_.checks(line, place(expected_ + i));
  }

  std::uint64_t expected() const { return expected_; }
  void advance(std::uint32_t lines) { expected_ += lines; }

 private:
  std::uint64_t place(std::uint64_t sequence) const {
    return offset_ + (sequence & mask_) * memory::kLineBytes;
  }

  memory::SealedRegion region_;
  std::uint64_t offset_ = 0;
  std::uint64_t mask_ = 0;
  std::uint64_t expected_ = 1;
};

}  // namespace cachalot::rpc
