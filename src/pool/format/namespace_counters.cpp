#include "pool/format/namespace_counters.h"

namespace cachalot::pool {

void publish_namespace_counters(const Access& access, std::uint32_t area, std::uint32_t epoch,
                                std::uint32_t id, const NamespaceCounters& counters) {
  const std::uint64_t offset =
      access.layout.namespace_counters(area, id - 1, access.geometry.clients);
  if (offset == 0) return;
  CounterLine line{};
  line.values[0] = counters.live_blocks;
  line.values[1] = counters.quota_blocks;
  line.values[2] = counters.committed_blocks;
  line.values[3] = counters.evicted_blocks;
  line.sequence = epoch;
  access.region.publish(offset, line);
}

NamespaceCounters read_namespace_counters(const Access& access, std::uint32_t area,
                                          std::uint32_t epoch, std::uint32_t id) {
  const std::uint64_t offset =
      access.layout.namespace_counters(area, id - 1, access.geometry.clients);
  CounterLine line{};
  // A line of another epoch was left by an earlier keeper of the same area.
  if (offset == 0 || !access.region.read_as(offset, line) || line.sequence != epoch) return {};
  return {line.values[0], line.values[1], line.values[2], line.values[3]};
}

}  // namespace cachalot::pool
