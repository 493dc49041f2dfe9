#include "pool/format/context_lines.h"

namespace cachalot::pool {

std::uint32_t context_room(const Access& access) {
  std::uint32_t room = 0;
  while (room < kMaxContexts && access.layout.context_line(0, room, access.geometry.clients) != 0)
    ++room;
  return room;
}

std::vector<ContextLine> read_contexts(const Access& access, std::uint32_t area,
                                       std::uint32_t epoch) {
  std::vector<ContextLine> found;
  const std::uint32_t room = context_room(access);
  for (std::uint32_t index = 0; index < room; ++index) {
    ContextLine line{};
    // A line of another epoch was left by an earlier keeper of the same area.
    if (access.region.read_as(access.layout.context_line(area, index, access.geometry.clients),
                              line) &&
        line.epoch == epoch && line.handle != 0) {
      found.push_back(line);
    }
  }
  return found;
}

}  // namespace cachalot::pool
