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
#include "replay/pool/workload.h"

namespace cachalot::replay {

class Engine {
 public:
  // @param number  of this engine, below options.engines
  // @errors kNoSpace: no memory for its cache
  static Result<Engine> make(const ReplayOptions& options, const Workload& workload,
                             std::uint32_t number, HarnessState& harness, OpaqueClient& client);

  // Takes requests from harness.next_request until there are none. Request r of pass p has number p * requests + r.
  // @errors of the pool's client: the replay cannot go on
  Status run();

 private:
  Engine(const ReplayOptions& options, const Workload& workload, std::uint32_t number,
         HarnessState& harness, OpaqueClient& client, PagedCache cache);

  // Passes do not overlap: waits until all requests of the passes before have ended.
  void wait_for_pass(std::uint32_t pass);
  void wait_for_arrival(std::uint32_t pass, std::size_t request) const;
  Status serve(std::size_t request);
  // Has storage bring what the pool lacks. @return leading blocks in the pool now
  Result<std::size_t> fetch(std::span<const BlockHash> hashes, std::size_t found);
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
  void count_request(std::size_t request, std::size_t hits);

  const ReplayOptions* options_;
  const Workload* workload_;
  std::uint32_t number_;
  HarnessState* harness_;
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
