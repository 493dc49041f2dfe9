// A byte stream whose bytes lie scattered in memory: nested loops instead of a list of addresses.
//
//   // Layer 3 of 2,048 pages, heads 4 to 7 of 8, as a stream in the order page, part, token, head:
//   Strided::make(at, {pages of `page_offsets`, 2 parts, 16 tokens, 4 heads}, head_bytes)
//
// The same stream on another machine lies in other memory, with other pages and more heads. Both sides describe
// their own memory only, and agree on the order. So a peer never names an address of the other one.
//
// 1. Byte i of the stream is at one address; the runs are visited in the order of the loops, the first axis slowest.
// 2. No size or address exceeds 63 bits.
// 3. Neighbouring runs are merged where make() can see it, so that a stream of whole pages has few runs.
#pragma once

#include <cachalot/result.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace cachalot::transfer {

// One loop. Step i is `offsets[i / per_offset] + (i % per_offset) * stride` bytes from the step of the loop around it;
// without offsets `i * stride`.
struct Axis {
  std::uint64_t count = 1;
  std::uint64_t stride = 0;
  // Places that no stride describes: pages by their ids, tensors by their addresses.
  std::vector<std::uint64_t> offsets = {};
  std::uint64_t per_offset = 1;  // steps inside one page

  bool operator==(const Axis&) const = default;
};

inline constexpr std::size_t kMostAxes = 6;

class Strided {
 public:
  Strided() = default;  // an empty stream

  // @param   base  address (or offset in a segment) of the first run when all steps are 0
  // @errors  kInvalidArgument: more than kMostAxes axes; a count of 0; offsets too few for the count; a size or an
  //          address beyond 63 bits
  static Result<Strided> make(std::uint64_t base, std::vector<Axis> axes, std::uint64_t run_bytes);
  // One run.
  static Strided flat(const void* at, std::uint64_t bytes);

  std::uint64_t bytes() const { return bytes_; }
  // Runs as they are visited, before neighbours are merged across pages.
  std::uint64_t runs() const { return run_bytes_ == 0 ? 0 : bytes_ / run_bytes_; }
  std::uint64_t run_bytes() const { return run_bytes_; }
  // All addresses are in [lowest(), end()).
  std::uint64_t lowest() const { return lowest_; }
  std::uint64_t end() const { return end_; }

  std::uint64_t base() const { return base_; }
  std::span<const Axis> axes() const { return axes_; }

 private:
  friend class StridedCursor;

  void merge();

  std::uint64_t base_ = 0, run_bytes_ = 0, bytes_ = 0;
  std::uint64_t lowest_ = 0, end_ = 0;
  std::vector<Axis> axes_;
};

// A contiguous piece of the stream.
struct Piece {
  std::uint64_t at = 0;
  std::uint64_t bytes = 0;
};

// Visits a stream from any byte on.
// @cost  some nanoseconds a run; a seek is a division for each axis
class StridedCursor {
 public:
  // The stream outlives the cursor.
  explicit StridedCursor(const Strided& stream, std::uint64_t offset = 0) : stream_(&stream) {
    seek(offset);
  }
  // @param offset  at most bytes()
  void seek(std::uint64_t offset);
  // The next bytes that lie together: at least 1, at most `most`. At the end of the stream: 0 bytes.
  Piece next(std::uint64_t most);
  std::uint64_t offset() const { return offset_; }

 private:
  void step();  // to the next run
  void place(std::size_t axis);

  const Strided* stream_;
  std::uint64_t offset_ = 0;  // in the stream
  std::uint64_t in_run_ = 0;  // bytes of the run that were taken
  std::uint64_t index_[kMostAxes] = {};
  std::uint64_t address_[kMostAxes + 1] = {};  // [a]: of the loops outside of axis a
};

// Copies `bytes` bytes from one stream to the other, both from `offset` on. Both are addresses of this process.
void copy_between(const Strided& from, const Strided& to, std::uint64_t offset,
                  std::uint64_t bytes);

// The loop of copy_between(), for cursors of any two kinds.
template <class From, class To>
void copy_pieces(From source, To target, std::uint64_t bytes) {
  Piece read, write;
  while (bytes > 0) {
    if (read.bytes == 0) read = source.next(bytes);
    if (write.bytes == 0) write = target.next(bytes);
    const std::uint64_t step = std::min(read.bytes, write.bytes);
    if (step == 0) return;  // the shorter stream has ended
    std::memcpy(reinterpret_cast<void*>(write.at), reinterpret_cast<const void*>(read.at), step);
    read = {read.at + step, read.bytes - step};
    write = {write.at + step, write.bytes - step};
    bytes -= step;
  }
}

}  // namespace cachalot::transfer
