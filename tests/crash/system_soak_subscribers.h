// The subscribers of KV events of a system soak: some that never read, and one that asks for a replay again and again.
#pragma once

#include <atomic>
#include <cstdint>

namespace cachalot::crash {

// Shared with the process that watches them.
struct SubscriberBoard {
  std::atomic<std::uint64_t> replays{0}, late_replays{0}, slowest_ns{0};
};

// Does not return.
int run_subscribers(SubscriberBoard& board, std::uint16_t events_port, std::uint16_t replay_port);

}  // namespace cachalot::crash
