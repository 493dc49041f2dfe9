// Which rank fetches what from which: the plan of a transfer between two instances of one model whose ranks divide it
// differently.
//
//   CACHALOT_TRY_ASSIGN(PairPlan plan, plan_pair(prefill_ranks, decode_ranks));
//   for (const Fetch& fetch : plan.fetches_of(my_rank)) ...
//   plan.expected_transfers(my_rank)     // how many fetches a source rank serves before it can release the KV
//
// A *fetch* moves the layers and heads that one source rank and one destination rank have in common. Heads are split
// and merged while they are copied: each side describes its own part of the fetch as a stream (kv_stream.h).
//
// 1. Every byte of a destination rank comes from exactly one fetch, or from one copy within its machine.
// 2. Of sources that hold the same bytes, none serves more than one fetch above its fair share.
// 3. The plan depends on its arguments only: both sides compute the same one.
// 4. Nothing is counted from the number of ranks. A source rank whose count is 0 has nothing to wait for.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>
#include <vector>

#include "geometry/kv_geometry.h"
#include "transfer/pair/range.h"

namespace cachalot::transfer {

// One rank of an instance.
struct Rank {
  KvGeometry geometry;
  Range layers = {};          // of the model; {0, 0}: all stages have as many layers as this one
  std::uint64_t machine = 0;  // equal for ranks that can copy from each other's memory
};

// What a rank has of the model.
struct RankBox {
  Range layers, heads;            // a latent is one head
  std::uint32_t replicas = 1;     // ranks of its tensor-parallel group with the same heads
  std::uint32_t model_heads = 0;  // of all ranks

  bool operator==(const RankBox&) const = default;
};

// @errors kInvalidArgument: as KvGeometry::check(); layers that are not as many as the geometry's
Result<RankBox> box_of(const Rank& rank);

struct Fetch {
  std::uint32_t source = 0, destination = 0;    // indexes into the ranks given
  Range layers, heads;                          // of the model
  Range source_layers, source_heads;            // in the source's numbering
  Range destination_layers, destination_heads;  // in the destination's
  std::uint64_t token_bytes = 0;                // of one token

  bool operator==(const Fetch&) const = default;
};

struct PairOptions {
  // Of the destination ranks of one machine that hold the same bytes one fetches; the others copy from it.
  bool once_per_machine = false;
  // Which of equal ranks is first. With the number of the request, say, all sources have the same load in the long
  // run. Equal on both sides.
  std::uint64_t turn = 0;
};

class PairPlan {
 public:
  // By destination, then by layer and head.
  std::span<const Fetch> fetches() const { return fetches_; }
  std::span<const Fetch> fetches_of(std::uint32_t destination) const;
  // Copies between destination ranks of a machine, after the fetches of the rank that `source` names.
  std::span<const Fetch> copies() const { return copies_; }
  std::span<const Fetch> copies_of(std::uint32_t destination) const;

  // Fetches that a source rank serves.
  std::uint32_t expected_transfers(std::uint32_t source) const;
  // Bytes that a source rank sends for each token.
  std::uint64_t token_bytes_from(std::uint32_t source) const;

 private:
  friend Result<PairPlan> plan_pair(std::span<const Rank>, std::span<const Rank>,
                                    const PairOptions&);

  std::vector<Fetch> fetches_, copies_;
};

// @errors kInvalidArgument: no ranks; unlike models (attention, heads, head_dim, latent, layers or dtype: names both
//         values); ranks of an instance that overlap in part; bytes of a destination that no source has
// @threads any
// @cost    microseconds; once for a pair of instances, or for each value of `turn`
Result<PairPlan> plan_pair(std::span<const Rank> sources, std::span<const Rank> destinations,
                           const PairOptions& options = {});

}  // namespace cachalot::transfer
