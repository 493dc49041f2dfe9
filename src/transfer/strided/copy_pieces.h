// The loop of copy_between(), for cursors of any two kinds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "transfer/strided/strided.h"

namespace cachalot::transfer {

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
