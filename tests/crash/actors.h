// The processes that the harness kills: clients that store, look up, read and check every byte, and
// keepers that serve them. Each opens the pool for itself.
#pragma once

#include <cstdint>
#include <string>

#include "arena.h"
#include "memory/coherence.h"

namespace cachalot::crash {

struct Setting {
  std::string path;
  memory::DomainKind domain = memory::DomainKind::kCoherent;
  memory::Rule broken = memory::Rule::kNone;
  std::uint32_t block_bytes = 16384;
  std::uint32_t capacity = 48;
  std::uint32_t blocks = 48 + 4 * 16;
  std::uint32_t chains = 16;
  std::uint64_t suspect_after_ns = 30'000'000;
  bool only_keeper_kills = false;
};

inline constexpr std::uint32_t kDepth = 5;
inline constexpr std::uint32_t kMaxGrants = 16;

// What a child process does; the exit code says whether it ended as it should.
int run_client(const Setting& setting, Arena& arena, std::uint32_t client, std::uint64_t seed);
int run_keeper(const Setting& setting, Arena& arena, std::uint32_t desk);

}  // namespace cachalot::crash
