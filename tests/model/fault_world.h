// The same simulated machines as pool_world.h, with deaths: clients and keepers crash or fall behind
// at any step, new processes take their places, and a keeper that slept wakes up in another's time.
//
// What is checked
//   - Every payload that is handed out, validated or pinned, has the bytes of its hash.
//   - No call fails in a way that a death does not explain.
//   - Nothing waits for ever: a budget of steps.
//   - In the end, when all clients have left and all that is dead is known to be dead, nothing is
//     granted, quarantined or in limbo, and the keeper's invariants hold: nothing leaked.
#pragma once

#include <cstdint>
#include <string>

#include "memory/coherence.h"
#include "testing/memory/adversary.h"

namespace cachalot::model {

struct FaultOptions {
  std::uint64_t seed = 1;
  memory::Mood mood = memory::Mood::kNormal;
  memory::Rule broken = memory::Rule::kNone;
  std::uint32_t operations = 600;  // of each client, all its lives together
  std::uint32_t crashes = 12;      // of clients
  std::uint32_t successions = 6;   // of keepers: half over dead ones, half over living ones
  // Each succession is of two keepers at the same moment, one on each host, between which no lock holds.
  bool two_keepers_at_once = false;
  std::uint32_t chains = 5;
  std::uint32_t capacity = 5;
  std::uint32_t slack = 9;
  std::uint32_t block_bytes = 640;
  std::uint32_t ring_damages =
      0;  // lines of mailboxes that change a bit, each the newest of its ring
  double stall_chance = 0.003;
  std::uint64_t stall_steps = 12'000;
  std::uint64_t suspect_steps = 20'000;    // of silence
  std::uint64_t patience_steps = 400'000;  // of a client's call
};

struct FaultResult {
  std::string fault;  // the first thing that was wrong; empty: nothing
  std::uint64_t operations = 0, hits = 0, pinned_hits = 0;
  std::uint64_t crashes = 0, successions = 0, damages = 0, suspicions = 0, reattachments = 0,
                steps = 0;
};

FaultResult run_fault_world(const FaultOptions& options);

}  // namespace cachalot::model
