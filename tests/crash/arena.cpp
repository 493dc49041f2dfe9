#include "arena.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <new>

namespace cachalot::crash {
namespace {

Desk* own_desk = nullptr;

void on_fail_point(base::FailPoint point) {
  Desk& desk = *own_desk;
  // Partner: order(), which writes the word last.
  if (desk.point.load(std::memory_order_acquire) != static_cast<std::uint32_t>(point)) return;
  if (desk.countdown.fetch_sub(1, std::memory_order_relaxed) != 1) return;
  // An order is withdrawn by the same word: it is either carried out, or not.
  auto ordered = static_cast<std::uint32_t>(point);
  if (!desk.point.compare_exchange_strong(ordered, 0, std::memory_order_relaxed)) return;
  const auto action = static_cast<Action>(desk.action.load(std::memory_order_relaxed));
  desk.reached.store(1, std::memory_order_release);
  if (action == Action::kKill) kill(getpid(), SIGKILL);
  if (action == Action::kStop) kill(getpid(), SIGSTOP);
}

}  // namespace

void Arena::fault(const char* format, ...) {
  if (faults.fetch_add(1) != 0) return;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(first_fault, sizeof first_fault, format, arguments);
  va_end(arguments);
}

Arena* make_arena() {
  void* const memory =
      mmap(nullptr, sizeof(Arena), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  return new (memory) Arena;
}

void obey(Desk& desk) {
  own_desk = &desk;
  base::fail_point_handler.store(on_fail_point);
}

}  // namespace cachalot::crash
