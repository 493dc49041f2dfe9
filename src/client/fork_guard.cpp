#include "client/fork_guard.h"

#include <pthread.h>

#include <atomic>

namespace cachalot::client {
namespace {

// Relaxed: the child counts while it has one thread; starting a thread orders the count for it.
std::atomic<std::uint64_t> forks{0};

[[maybe_unused]] const int registered =
    pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

std::uint64_t fork_generation() {
  return forks.load(std::memory_order_relaxed);
}

}  // namespace cachalot::client
