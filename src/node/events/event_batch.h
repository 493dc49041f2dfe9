// A batch of KV events as vLLM 0.32 sends them (docs/formats/kv-events.md), all of one namespace.
//
// @threads one
#pragma once

#include <cachalot/hash.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "node/events/msgpack_writer.h"

namespace cachalot::events {

// Blocks of one chain that were stored.
struct StoredBlocks {
  std::span<const BlockHash> hashes;
  std::optional<BlockHash> parent;
  std::span<const std::uint32_t> tokens;  // of all blocks; empty: not known
  std::uint32_t block_tokens = 0;         // 0: not known
};

class EventBatch {
 public:
  // @param locality  "LOCAL" or "REMOTE": where the pool's memory is, seen from the keeper
  explicit EventBatch(const char* locality) : locality_(locality) {}

  void add_stored(const StoredBlocks& stored);
  void add_removed(std::span<const BlockHash> hashes);
  void add_cleared();

  bool is_empty() const { return count_ == 0; }
  std::size_t bytes() const { return events_.size(); }
  // The payload; the batch is empty again. @param unix_s  now
  std::string take(double unix_s);

 private:
  void add_hashes(std::span<const BlockHash> hashes);

  const char* locality_;
  std::string events_;
  MsgpackWriter writer_{events_};
  std::size_t count_ = 0;
};

// The 16 bytes of a hash in the order of the digest that it is the beginning of.
std::string digest_bytes(const BlockHash& hash);

}  // namespace cachalot::events
