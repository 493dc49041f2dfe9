#include "node/events/event_batch.h"

#include <utility>

namespace cachalot::events {

// Load and store reach the pool's memory, whatever it is made of: of vLLM's media ("GPU", "CPU", "STORAGE")
// that is the CPU's.
constexpr const char* kMedium = "CPU";

std::string digest_bytes(const BlockHash& hash) {
  std::string bytes;
  for (const std::uint64_t half : {hash.high, hash.low}) {
    for (int shift = 56; shift >= 0; shift -= 8) {
      bytes.push_back(static_cast<char>(half >> shift & 0xff));
    }
  }
  return bytes;
}

void EventBatch::add_hashes(std::span<const BlockHash> hashes) {
  writer_.text("block_hashes");
  writer_.array(hashes.size());
  for (const BlockHash& hash : hashes) writer_.bytes(digest_bytes(hash));
}

void EventBatch::add_stored(const StoredBlocks& stored) {
  ++count_;
  writer_.map(9);
  writer_.text("type");
  writer_.text("BlockStored");
  add_hashes(stored.hashes);
  writer_.text("parent_block_hash");
  if (stored.parent) {
    writer_.bytes(digest_bytes(*stored.parent));
  } else {
    writer_.nil();
  }
  writer_.text("token_ids");
  writer_.array(stored.tokens.size());
  for (const std::uint32_t token : stored.tokens) writer_.natural(token);
  writer_.text("block_size");
  writer_.natural(stored.block_tokens);
  writer_.text("lora_id");
  writer_.nil();
  writer_.text("medium");
  writer_.text(kMedium);
  writer_.text("lora_name");
  writer_.nil();
  writer_.text("locality");
  writer_.text(locality_);
}

void EventBatch::add_removed(std::span<const BlockHash> hashes) {
  ++count_;
  writer_.map(4);
  writer_.text("type");
  writer_.text("BlockRemoved");
  add_hashes(hashes);
  writer_.text("medium");
  writer_.text(kMedium);
  writer_.text("locality");
  writer_.text(locality_);
}

void EventBatch::add_cleared() {
  ++count_;
  writer_.map(1);
  writer_.text("type");
  writer_.text("AllBlocksCleared");
}

std::string EventBatch::take(double unix_s) {
  std::string payload;
  MsgpackWriter writer(payload);
  writer.array(3);
  writer.real(unix_s);
  writer.array(count_);
  payload += events_;
  writer.nil();  // no data-parallel rank
  events_.clear();
  count_ = 0;
  return payload;
}

}  // namespace cachalot::events
