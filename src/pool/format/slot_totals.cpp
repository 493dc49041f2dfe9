#include "pool/format/slot_totals.h"

namespace cachalot::pool {
namespace {

constexpr std::uint32_t kCopies = 2;

std::uint64_t place_of(const Access& access, std::uint32_t slot, std::uint32_t copy,
                       std::uint32_t line) {
  return access.layout.client_totals(slot, copy) + line * memory::kLineBytes;
}

}  // namespace

SlotTotals SlotTotals::read(const Access& access, std::uint32_t slot) {
  SlotTotals totals;
  for (std::uint32_t line = 0; line < ClientCounters::kLines; ++line) {
    Newest& newest = totals.newest_[line];
    for (std::uint32_t copy = 0; copy < kCopies; ++copy) {
      CounterLine in{};
      if (!access.region.read_as(place_of(access, slot, copy, line), in)) continue;
      if (in.sequence <= newest.sequence) continue;
      newest = {copy, in.sequence};
      totals.values_.take_line(line, in);
    }
  }
  return totals;
}

void SlotTotals::publish(const Access& access, std::uint32_t slot, const ClientCounters& values) {
  values_ = values;
  for (std::uint32_t line = 0; line < ClientCounters::kLines; ++line) {
    Newest& newest = newest_[line];
    newest = {1 - newest.copy, newest.sequence + 1};
    access.region.publish(place_of(access, slot, newest.copy, line),
                          values_.line(line, newest.sequence));
  }
}

}  // namespace cachalot::pool
