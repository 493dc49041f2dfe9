// What the processes of a replay share besides the pool: which engine takes which request, when to begin and
// to end, and what each of them counted. Not part of any protocol: it lies in memory of one machine.
#pragma once

#include <cachalot/result.h>

#include <atomic>
#include <cstdint>

#include "base/histogram.h"
#include "os/mapping.h"
#include "os/shared_file.h"
#include "pool/format/statistics.h"
#include "replay/pool/counters.h"
#include "replay/pool/options.h"

namespace cachalot::replay {

// What a process says before it ends; read after it has.
struct ProcessState {
  std::atomic<bool> is_ready{false};
  bool has_failed = false;
  Error error;
};

// The first wrong block that an engine met.
struct Fault {
  bool is_set = false;
  std::uint64_t request = 0;
  std::uint64_t block = 0;  // of the request
  std::uint64_t byte = 0;   // of the block
  std::uint64_t writer = 0;
};

// What an engine did in one pass through the trace.
struct EnginePass {
  ReplayCounters counters;
  base::Histogram lookup_ns, request_ns;
  std::uint64_t end_ns = 0;  // of its last request; 0: it had none
};

struct alignas(64) EngineState {
  ProcessState process;
  EnginePass passes[kMaxPasses];
  Fault fault;

  // Over all passes.
  std::uint64_t sum(ReplayCounter counter) const {
    std::uint64_t total = 0;
    for (const EnginePass& pass : passes) total += pass.counters[counter];
    return total;
  }
};

// What the storage of a host has counted, by the keeper's process at its end.
struct StorageCounters {
  std::uint64_t written_bytes = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t fetched_blocks = 0;
  std::uint64_t unused_blocks = 0;   // fetched, and evicted without a use
  std::uint64_t lost_blocks = 0;     // evicted from the pool before they were written
  std::uint64_t evicted_blocks = 0;  // of the storage
  std::uint64_t failed_blocks = 0;   // reads and writes
  std::uint64_t damaged_blocks = 0;
};

// Likewise what it has read from peers.
struct PeerCounters {
  std::uint64_t read_blocks = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t absent_blocks = 0;  // said to be there, and gone
  std::uint64_t failed_requests = 0;
};

// How far the news of which blocks a pool has, has come, in answer to HarnessState::news_round.
struct PeerNews {
  std::atomic<std::uint64_t> round{0};  // written last
  std::atomic<std::uint64_t> told{0}, heard{0}, untold{0};
};

struct alignas(64) HostState {
  // The next of the host's requests that no engine has taken, counted over all passes.
  std::atomic<std::uint64_t> next_request{0};
  std::atomic<bool> has_opened{false};  // its storage: the next keeper may
  ProcessState keeper;
  pool::KeeperCounters keeper_counters;  // the last, by the keeper itself
  StorageCounters storage;
  PeerCounters peers;
  PeerNews news;
  // With HostOptions::has_networks.
  std::atomic<int> network_pid{0};  // whose namespace it is
  std::atomic<bool> has_link{false};
};

struct HarnessState {
  // Requests that have ended; pairs with Engine::wait_for_turn().
  alignas(64) std::atomic<std::uint64_t> requests_done{0};
  // When each pass began, on the steady clock; 0: not yet.
  std::atomic<std::uint64_t> pass_start_ns[kMaxPasses]{};
  // When the engines begin, on the steady clock; 0: not yet.
  alignas(64) std::atomic<std::uint64_t> start_ns{0};
  // With HostOptions::is_in_order: asks all keepers for their PeerNews.
  alignas(64) std::atomic<std::uint64_t> news_round{0};
  std::atomic<bool> keepers_must_end{false};
  HostState hosts[kMaxHosts];
  EngineState engines[kMaxEngines];
};

// The state, in memory that forked children share with their parent.
class Harness {
 public:
  static Result<Harness> make();

  HarnessState& state() const { return *reinterpret_cast<HarnessState*>(mapping_.data()); }

 private:
  Harness(os::SharedFile file, os::Mapping mapping)
      : file_(std::move(file)), mapping_(std::move(mapping)) {}

  os::SharedFile file_;
  os::Mapping mapping_;
};

}  // namespace cachalot::replay
