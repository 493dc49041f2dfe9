// What an archive is told: when blocks are written to storage, and its bounds.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>

namespace cachalot::node {

enum class WritePolicy {
  kThrough,    // every published block
  kSelective,  // a block that was used `selective_uses` times after it was published
  kBack,  // the least recently used blocks of a pool that is nearly full, before they are evicted
};

// "through", "selective", "back". @errors kInvalidArgument
Result<WritePolicy> parse_write_policy(const std::string& text);
const char* write_policy_name(WritePolicy policy);

struct ArchiveOptions {
  WritePolicy policy = WritePolicy::kThrough;
  std::uint32_t selective_uses = 2;
  // kBack: so many of 1,000 blocks of the capacity are kept in storage in advance, coldest first.
  std::uint32_t back_reserve_permille = 100;
  // Blocks that wait to be written. More are not archived: eviction never waits for storage.
  std::uint32_t queued_blocks = 65536;
  std::uint32_t queued_fetches = 1024;           // requests of at most 96 blocks
  std::uint64_t io_timeout_ns = 10'000'000'000;  // of one batch
};

// Each only grows, but for the first three.
struct ArchiveCounts {
  std::uint64_t queued_blocks, queued_fetches;
  bool is_up;
  std::uint64_t skipped_blocks;  // not written: the queue was full
  std::uint64_t lost_blocks;     // queued, and evicted before they were written
  std::uint64_t fetched_blocks, fetched_bytes;
  std::uint64_t unused_blocks;    // fetched, and evicted before any use
  std::uint64_t refused_fetches;  // requests: the queue was full, or the pool
};

}  // namespace cachalot::node
