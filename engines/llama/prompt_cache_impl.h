// What a PromptCache is made of; for prefill.cpp only.
#pragma once

#include <cachalot/opaque_client.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "blob_layout.h"
#include "prompt_cache.h"

namespace cachalot::llama {

struct PromptCache::Impl {
  Impl(llama_context* of, llama_seq_id scratch_seq, const PromptCacheOptions& given,
       BlobLayout blob_layout, std::string namespace_text, std::optional<OpaqueClient> attached);

  llama_pos position_of(std::size_t block) const {
    return static_cast<llama_pos>(block * options.block_tokens);
  }

  bool has_pool() const { return client && !is_gone; }
  std::size_t load_from_host(llama_seq_id seq, std::span<const BlockHash> hashes,
                             std::size_t first);
  std::size_t load_batch(llama_seq_id seq, std::span<const BlockHash> hashes, std::size_t first);
  OpaqueClient::Import import(llama_seq_id seq, std::span<const std::byte> blob, std::size_t block);
  bool drop_damaged(const BlockHash& hash);

  bool store_block(llama_seq_id seq, std::span<const BlockHash> hashes, std::size_t block);
  Status export_block(llama_seq_id seq, std::span<std::byte> room, std::size_t block);
  void give_up(const Error& error);

  StoredBlocks ask_storage(std::span<const BlockHash> hashes);
  std::uint64_t storage_deadline_ns(const StoredBlocks& stored) const;

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
  std::optional<OpaqueClient> client;  // none: without a pool
  std::shared_ptr<Handover> handover;  // null: none
  PromptCacheStatistics statistics;
  std::uint64_t rest_ns = 0;  // the last one; 0: the keeper answered since
  std::uint64_t rests_until_ns = 0;
  struct Dropped {
    BlockHash hash;
    std::uint64_t at_ns;
  };
  std::deque<Dropped> dropped;                   // damaged blocks, of the last minute
  std::atomic<std::uint64_t> asks_after_ns = 0;  // storage is left alone until then
  std::atomic<std::uint32_t> warned_of = 0;      // a bit for each code
  bool is_gone = false;                          // the pool's files were removed
  std::uint64_t next_look_ns = 0;
};

}  // namespace cachalot::llama
