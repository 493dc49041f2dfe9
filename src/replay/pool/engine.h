// One engine of a replay: takes requests as they arrive, reads of each what the pool has, checks
// it, "computes" the rest and stores it. What it does in between, a real engine would do as well.
//
// Invariants
//   1. A request's blocks are a prefix of hits, then missing ones. A hit is a block that was found,
//      read and valid after reading; a block that was not ends the prefix.
//   2. All commits of a request are answered before the next request is looked up.
//
// @threads one; an Engine belongs to one process, its state may be read by others
#pragma once

#include <cachalot/opaque_client.h>
#include <cachalot/result.h>

#include <cstdint>
#include <span>
#include <vector>

#include "replay/pool/harness.h"
#include "replay/pool/paged_cache.h"
#include "replay/pool/source_marks.h"
#include "replay/pool/workload.h"

namespace cachalot::replay {

// What an engine is to do. All that it refers to outlives the engine.
struct EngineTask {
  const ReplayOptions& options;
  const Workload& workload;
  std::uint32_t number;                   // of this engine, below options.all_engines()
  std::span<const std::size_t> requests;  // of its host, in the order of the trace
  const SourceMarks* marks;               // null: all that is fetched has one source

  std::uint32_t host() const { return number / options.engines; }
};

class Engine {
 public:
  // @errors kNoSpace: no memory for its cache
  static Result<Engine> make(const EngineTask& task, HarnessState& harness, OpaqueClient& client);

  // Takes requests of its host until there are none. Request i of the host in pass p has number p * requests + i.
  // @errors of the pool's client: the replay cannot go on
  Status run();

 private:
  Engine(const EngineTask& task, HarnessState& harness, OpaqueClient& client, PagedCache cache);

  // Passes do not overlap: waits until all requests of the passes before have ended. In order: also those before this one.
  void wait_for_turn(std::uint32_t pass, std::size_t request);
  void wait_for_arrival(std::uint32_t pass, std::size_t request) const;
  Status serve(std::size_t request);
  // Has storage and peers bring what the pool lacks. @return leading blocks in the pool now
  Result<std::size_t> fetch(std::span<const BlockHash> hashes, std::size_t found);
  // Where a block that was fetched came from.
  BlockSource source_of(const BlockHash& hash) const;
  // Engines of a replay compute nothing, so they may be faster than any storage: they wait for it.
  Status wait_for_storage();
  // Reads the first `found` blocks of a request. @return how many are hits
  Result<std::size_t> read_hits(std::size_t request, std::size_t found);
  // Reads blocks [first, first + count). @param goes_on  not the request's last ones @return how many are hits
  Result<std::size_t> read_batch(std::size_t request, std::size_t first, std::size_t count,
                                 bool goes_on);
  void check_block(std::size_t request, std::size_t block, const std::byte* bytes);
  // Stores the blocks of a request from `hits` on.
  Status store_missing(std::span<const BlockHash> hashes, std::size_t hits);
  // @return how many of `hashes` stand in the pool now
  Result<std::size_t> store_batch(const BlockHash* parent, std::span<const BlockHash> hashes);
  // Until all hosts know what this one has stored and evicted.
  Status wait_for_news();
  // Asks the keepers once. @return whether they do
  bool is_news_known();
  void count_request(std::size_t request, std::size_t hits);

  EngineTask task_;
  const ReplayOptions* options_;
  const Workload* workload_;
  HarnessState* harness_;
  HostState* host_;
  EngineState* state_;
  EnginePass* pass_;  // of state_, the one in work
  OpaqueClient* client_;
  PagedCache cache_;
  std::uint32_t read_blocks_, store_blocks_;  // of one batch
  std::uint64_t computed_blocks_ = 0;
  // Of the batch in work, reused from request to request.
  std::vector<std::byte*> slots_;
};

}  // namespace cachalot::replay
