// What an operator watches of the storage behind a pool. The process that has the storage counts it.
#pragma once

#include <cstdint>

#include "node/metrics/exposition.h"

namespace cachalot::node {

struct StorageFigures {
  bool is_up = false;
  // now
  std::uint64_t objects = 0, bytes = 0;
  std::uint64_t queued_blocks = 0, queued_fetches = 0;
  // since the keeper has it
  std::uint64_t written_blocks = 0, written_bytes = 0;
  std::uint64_t fetched_blocks = 0, fetched_bytes = 0, read_bytes = 0;
  std::uint64_t unused_blocks = 0;
  std::uint64_t evicted_blocks = 0;
  std::uint64_t lost_blocks = 0, skipped_blocks = 0, over_budget_blocks = 0;
  std::uint64_t missing_blocks = 0, damaged_blocks = 0;
  std::uint64_t asked_blocks = 0, learned_blocks = 0;
  std::uint64_t failed_reads = 0, failed_writes = 0;
  std::uint64_t outages = 0;
};

// Of the pools of other hosts (--peers).
struct PeerFigures {
  // now
  std::uint64_t peers = 0, known_blocks = 0, followers = 0;
  // since the keeper has them
  std::uint64_t got_blocks = 0, got_bytes = 0, absent_blocks = 0, failed_requests = 0;
  std::uint64_t served_blocks = 0, served_bytes = 0, refused_requests = 0, told_changes = 0;
};

void write_storage_metrics(Exposition& exposition, const StorageFigures& figures);
void write_peer_metrics(Exposition& exposition, const PeerFigures& figures);

}  // namespace cachalot::node
