// A keeper and two clients, the production code of memory, rpc and pool, on simulated hosts whose
// caches are not coherent: one thread, one seed, and everything checked that a wrong step would
// make wrong.
//
// What is checked
//   - Every payload that a client is handed has the bytes that belong to its hash.
//   - No payload fails its checksum while its entry stands (that would be damaged memory).
//   - A block that stays published is found within a bounded number of looks.
//   - No client is told that it does not hold what it holds; no request arrives malformed.
//   - No operation fails; nothing waits for ever (a step budget, not a time-out).
//   - At the end the keeper's own invariants hold.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "memory/coherence.h"
#include "testing/memory/adversary.h"

namespace cachalot::model {

struct WorldOptions {
  std::uint64_t seed = 1;
  memory::Mood mood = memory::Mood::kNormal;
  memory::Rule broken = memory::Rule::kNone;
  std::uint32_t operations = 1000;  // of each client
  std::uint32_t devices = 1;
  std::uint32_t chains = 6;    // of 5 blocks each
  std::uint32_t capacity = 9;  // in blocks, and a few more that are granted or rest
  std::uint32_t slack = 5;
  std::uint32_t pause = 400;      // most turns that an engine lets pass between lookup and read
  double stall_chance = -1;       // of a host at a switch; below 0: the mood's
  std::uint64_t stall_steps = 0;  // at most; 0: the mood's
  std::uint32_t block_bytes = 640;
  bool checksums = true;  // written and verified; without, R6 stands alone
};

enum class Operation { kPut, kLookup, kGet, kEvict, kAttach };
inline constexpr int kOperations = 5;

struct WorldResult {
  std::string fault;  // the first thing that was wrong; empty: nothing
  std::uint64_t done[kOperations] = {};
  std::uint64_t hits = 0, stale_reads = 0, evictions = 0, steps = 0;
  std::uint64_t fingerprint = 0;

  std::uint64_t operations() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t count : done) sum += count;
    return sum;
  }
};

WorldResult run_world(const WorldOptions& options);

const char* rule_name(memory::Rule rule);
// Its letters and digits: a part of a test's name.
std::string rule_identifier(memory::Rule rule);

}  // namespace cachalot::model
