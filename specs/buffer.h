// A host's write-combining buffer: non-temporal stores wait here and drain in any order, but a
// group that order() has closed drains before what was stored after it. A store to a line that
// waits in the open group takes its place.
#pragma once

#include "model.h"

namespace cachalot::specs {

inline int pending(const Buffer& buffer) {
  int count = 0;
  while (count < kPending && buffer.lines[count].line != 0) ++count;
  return count;
}

inline bool has_room(const Buffer& buffer, int lines) {
  return pending(buffer) + lines <= kPending;
}

// complete() waits for this.
inline bool is_drained(const Buffer& buffer) {
  return buffer.lines[0].line == 0;
}

// @pre has_room(buffer, 1)
void store(Buffer& buffer, std::uint8_t line, std::uint16_t value);
void order(Buffer& buffer);
bool may_drain(const Buffer& buffer, int index);
Pending take(Buffer& buffer, int index);
// True if the store may be the last one that was issued: nothing was stored behind its group.
bool is_in_last_group(const Buffer& buffer, int index);

}  // namespace cachalot::specs
