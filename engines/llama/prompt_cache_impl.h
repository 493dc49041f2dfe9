// What a PromptCache is made of; for prefill.cpp only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "blob_layout.h"
#include "block_hash/block_hash.h"
#include "memory/line.h"
#include "pool/pool.h"
#include "pool/reader/validated_read.h"
#include "prompt_cache.h"

namespace cachalot::llama {

struct PromptCache::Impl {
  Impl(llama_context* of, llama_seq_id scratch_seq, const PromptCacheOptions& given,
       BlobLayout blob_layout, std::string namespace_text, pool::Pool opened,
       pool::PoolClient attached);

  pool::DirectoryReader directory() const { return pool::DirectoryReader(pool.access()); }
  pool::ValidatedRead begin_read(std::span<const BlockHash> hashes, std::span<pool::Found> room) {
    return pool::ValidatedRead::look_up(pool.access(), hashes, client->namespace_id(), room, true);
  }
  llama_pos position_of(std::size_t block) const {
    return static_cast<llama_pos>(block * options.block_tokens);
  }

  enum class Import { kTaken, kDamaged, kNoRoom };
  std::size_t load_batch(llama_seq_id seq, std::span<const BlockHash> hashes, std::size_t first);
  Import import(llama_seq_id seq, const pool::Entry& entry, std::size_t block);
  void note_damage(const pool::Entry& entry, std::size_t block);
  const pool::Entry* damage_at(const BlockHash& hash) const;
  bool drop_damaged(const pool::Entry& entry);
  const std::byte* fetch(const pool::Entry& entry);
  std::byte* piece_of(std::uint32_t block) const;
  std::byte* buffer();

  bool store_block(llama_seq_id seq, std::span<const BlockHash> hashes, std::size_t block);
  Result<pool::Verdict> store_once(llama_seq_id seq, std::span<const BlockHash> hashes,
                                   std::size_t block);
  std::optional<std::uint64_t> export_to(std::uint32_t to, llama_seq_id seq, std::size_t block);
  void give_up(const Error& error);

  bool is_there();
  bool is_resting() const;
  void rest(const Error& error);
  void warn(const Error& error);

  llama_context* context;
  llama_memory_t memory;
  llama_seq_id scratch;
  PromptCacheOptions options;
  BlobLayout layout;
  std::string fingerprint;
  block_hash::NamespaceId space;
  pool::Pool pool;
  pool::PoolClient client;  // goes before the pool
  PromptCacheStatistics statistics;
  std::vector<memory::Line> lines;  // the buffer, if one was needed
  std::uint64_t rest_ns = 0;        // the last one; 0: the keeper answered since
  std::uint64_t rests_until_ns = 0;
  std::optional<pool::Entry> damage;  // the last block that load() ended at because of its bytes
  struct Dropped {
    BlockHash hash;
    std::uint64_t at_ns;
  };
  std::deque<Dropped> dropped;  // damaged blocks, of the last minute
  std::uint32_t warned_of = 0;  // a bit for each code
  bool is_gone = false;         // the pool's files were removed
  std::uint64_t next_look_ns = 0;
};

}  // namespace cachalot::llama
