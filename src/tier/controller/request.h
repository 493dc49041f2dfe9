// What a controller knows of an open request, and of its fetch from L3.
#pragma once

#include <cachalot/tier.h>

#include <memory>
#include <string>
#include <vector>

#include "tier/controller/load_job.h"
#include "tier/radix/radix_tree.h"

namespace cachalot::tier {

// @threads under the controller's mutex, except what does not change after it was made
struct Fetch {
  std::vector<Token> tokens;  // the whole blocks of the prompt
  std::string extra;
  std::vector<BlockHash> hashes;  // of these blocks
  std::uint32_t first_block = 0;  // those before were in L1 or L2
  std::uint64_t opened_ns = 0;

  std::uint32_t wanted_blocks = 0;   // found in L3, of those from first_block on
  std::uint32_t stored_blocks = 0;   // the last ones of these: they come from storage
  std::uint32_t arrived_blocks = 0;  // in L2; without L2: in the pool
  std::uint32_t used_blocks = 0;     // by start()
  NodeId locked = kNoNode;           // in L2: the last block that arrived
  bool is_found = false;             // wanted_blocks is known
  bool stops = false;                // start() or close() was called
  bool is_done = false;
  bool is_released = false;  // its request has used what it could
  bool is_counted = false;   // in unused_fetched_bytes

  RadixKey key(std::uint32_t blocks, std::uint32_t block_tokens) const {
    return RadixKey{.tokens = tokens, .extra = extra}.first(std::size_t{blocks} * block_tokens);
  }
};

struct Request {
  std::vector<Token> tokens;
  std::string extra;
  std::int32_t priority = 0;
  std::uint64_t round = 0;
  std::uint64_t opened_ns = 0;
  NodeId locked_device = kNoNode;
  NodeId locked_host = kNoNode;
  std::shared_ptr<Fetch> fetch;  // null: none

  bool is_started = false;
  bool is_committed = false;
  std::uint32_t shared_blocks = 0;  // that others may find: cached, or committed
  // Of L1, for the request's blocks in order; and whether the slot is the request's own or the tree's.
  std::vector<Slot> slots;
  std::vector<bool> is_own;
  std::vector<std::shared_ptr<LoadJob>> loads;  // of its cached blocks

  RadixKey key() const { return {.tokens = tokens, .extra = extra}; }
};

}  // namespace cachalot::tier
