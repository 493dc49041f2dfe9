#include "memory/read_back.h"

#include <atomic>

#include "memory/line.h"

namespace cachalot::memory {
namespace {

struct Written {
  std::uint64_t owner = 0;
  std::uintptr_t line = 0;
};

struct WrittenList {
  Written entries[32];
  std::size_t count = 0;
};

thread_local WrittenList written;

std::atomic<std::uint64_t> last_owner{0};

}  // namespace

ReadBack::ReadBack() : owner_(last_owner.fetch_add(1, std::memory_order_relaxed) + 1) {}

const void* ReadBack::note(const void* to, std::size_t bytes) const {
  if (bytes == 0) return nullptr;
  const std::uintptr_t line = reinterpret_cast<std::uintptr_t>(to) + bytes - kLineBytes;
  for (std::size_t i = 0; i < written.count; ++i) {
    Written& entry = written.entries[i];
    if (entry.owner != owner_ || entry.line / kStripeBytes != line / kStripeBytes) continue;
    entry.line = line;
    return nullptr;
  }
  constexpr std::size_t kCapacity = sizeof written.entries / sizeof written.entries[0];
  if (written.count == kCapacity) return reinterpret_cast<const void*>(line);
  written.entries[written.count++] = {owner_, line};
  return nullptr;
}

const void* ReadBack::next() const {
  for (std::size_t i = written.count; i-- > 0;) {
    if (written.entries[i].owner != owner_) continue;
    const std::uintptr_t line = written.entries[i].line;
    written.entries[i] = written.entries[--written.count];
    return reinterpret_cast<const void*>(line);
  }
  return nullptr;
}

}  // namespace cachalot::memory
