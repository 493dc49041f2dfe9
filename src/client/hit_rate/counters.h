// A client's statistics, counted by any thread.
#pragma once

#include <cachalot/client.h>

#include <atomic>

namespace cachalot::client {

// Relaxed: the numbers are informative, nothing is ordered by them.
struct Counters {
  using Count = std::atomic<std::uint64_t>;
  Count lookups = 0, looked_up_blocks = 0, hit_blocks = 0;
  Count loads = 0, loaded_blocks = 0, loaded_bytes = 0, copied_bytes = 0;
  Count stores = 0, stored_blocks = 0, stored_bytes = 0, duplicate_blocks = 0;
  Count stale_blocks = 0, damaged_blocks = 0;
  Count prompts = 0, prompt_blocks = 0;
  Count used_pool_blocks = 0, used_peer_blocks = 0, used_storage_blocks = 0;

  static void add(Count& count, std::uint64_t n) { count.fetch_add(n, std::memory_order_relaxed); }

  Statistics read() const {
    const auto now = [](const Count& count) { return count.load(std::memory_order_relaxed); };
    Statistics s{};
    s.lookups = now(lookups);
    s.looked_up_blocks = now(looked_up_blocks);
    s.hit_blocks = now(hit_blocks);
    s.loads = now(loads);
    s.loaded_blocks = now(loaded_blocks);
    s.loaded_bytes = now(loaded_bytes);
    s.copied_bytes = now(copied_bytes);
    s.stores = now(stores);
    s.stored_blocks = now(stored_blocks);
    s.stored_bytes = now(stored_bytes);
    s.duplicate_blocks = now(duplicate_blocks);
    s.stale_blocks = now(stale_blocks);
    s.damaged_blocks = now(damaged_blocks);
    s.prompts = now(prompts);
    s.prompt_blocks = now(prompt_blocks);
    s.used_pool_blocks = now(used_pool_blocks);
    s.used_peer_blocks = now(used_peer_blocks);
    s.used_storage_blocks = now(used_storage_blocks);
    return s;
  }
};

}  // namespace cachalot::client
