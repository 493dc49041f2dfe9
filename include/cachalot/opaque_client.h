// Shares blocks whose bytes only the engine understands: for engines that hand out the KV of some tokens as
// one piece (llama.cpp's state of a sequence). Engines with a paged KV cache use client.h.
//
//   OpaqueOptions options{.pool = {"/dev/shm/kv"}, .fingerprint = "gemma-3-4b@1f0e/f16/64", .block_bytes = bytes};
//   Result<OpaqueClient> client = OpaqueClient::attach(options);
//   Result<std::size_t> hit = client->load(hashes, buffers);          // pool -> buffers
//   …compute the rest…
//   Result<Stored> stored = client->store(nullptr, hashes, buffers);  // buffers -> pool
//
// Invariants
//   1. A block counts as loaded only if its directory entry was the same before and after its bytes were
//      read and its checksum matched (where checksums are verified).
//   2. Copies go directly between the caller's memory and the pool. load_in_place() and store_in_place() need
//      no copy of the caller, either: they show it the block in the pool.
//
// @threads  any, simultaneously, except detach() and destruction. Arguments must not change during a call
#pragma once

#include <cachalot/client.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cachalot {

struct OpaqueOptions {
  std::vector<std::string> pool = {};  // the pool's path, or the paths of all its devices in order
  // Names all that the bytes of a block depend on: weights and their revision, quantisation, dtype, layout,
  // block size, engine version. It is the namespace: a client never receives blocks of another one.
  std::string fingerprint = {};
  std::uint64_t block_bytes = 0;   // of every block; at most those of the pool's blocks
  std::uint32_t block_tokens = 0;  // for hash_tokens()

  // As in ClientOptions.
  std::uint32_t host = 0;
  std::optional<std::uint32_t> slot = {};
  std::uint32_t grant_blocks = 64;
  std::optional<bool> checksums = {};
  bool pinned_reads = false;  // required for load_in_place()
  bool allow_foreign_pool = false;
  bool counts_prompts = false;
  std::uint64_t keeper_timeout_ns = 5'000'000'000;
  std::uint64_t recovery_ns = 2'000'000'000;
};

struct OpaqueLoadOptions {
  std::uint64_t timeout_ns = kNoTimeout;  // for the whole call
  // The next call loads more of this prompt. The eviction policy counts all of these calls as one use.
  bool goes_on = false;
};

class OpaqueClient {
 public:
  // @errors kInvalidArgument: an empty fingerprint, block_bytes of 0 or over those of the pool's blocks;
  //         else as Client::attach
  static Result<OpaqueClient> attach(const OpaqueOptions& options);
  OpaqueClient(OpaqueClient&&) noexcept;
  OpaqueClient& operator=(OpaqueClient&&) noexcept;
  ~OpaqueClient();
  // @errors as Client::detach
  Status detach();

  // Returns the hashes of all whole blocks of a prompt. `tokens` starts with the prompt's first token.
  std::vector<BlockHash> hash_tokens(std::span<const std::uint32_t> tokens) const;

  // Returns how many leading blocks are in the pool. @cost as Client::lookup
  Result<std::size_t> lookup(std::span<const BlockHash> hashes) const;
  // As Client::prefetch. If storage has fewer than `least_blocks` of them that are not in the pool, does nothing and
  // finds none in storage.
  Result<Prefetched> prefetch(std::span<const BlockHash> hashes, std::uint64_t wait_ns = 0,
                              std::size_t least_blocks = 0);
  // Whether blocks that a prefetch() found in storage are still on their way into the pool.
  // @param stored  all of those blocks
  // @errors kNoKeeper, kTimeout
  // @cost   one request to the keeper
  Result<bool> is_fetching(std::span<const BlockHash> stored);
  // As Client::has_storage.
  Result<bool> has_storage();
  // Blocks of the pool that wait to be written to the storage behind it; 0 without storage.
  // @errors kNoKeeper, kTimeout
  Result<std::uint64_t> storage_backlog();

  // Copies the longest prefix that is in the pool: block i to to[i].
  // @shape   to: [hashes], each with room for block_bytes; none overlap
  // @return  how many leading blocks are loaded; later memory may have been overwritten
  // @errors  as Client::load
  Result<std::size_t> load(std::span<const BlockHash> hashes, std::span<std::byte* const> to,
                           const OpaqueLoadOptions& options = {});
  // Copies a chain of blocks into the pool and publishes them, as Client::store. Block i is at from[i].
  // @shape from: [hashes], each of block_bytes
  Result<Stored> store(const BlockHash* parent, std::span<const BlockHash> hashes,
                       std::span<const std::byte* const> from,
                       std::uint64_t timeout_ns = kNoTimeout);

  // --- In place ---------------------------------------------------------------------------------

  // The caller's answer to a block: kTaken: continue; kDamaged: these are not the bytes of such a block;
  // kRefused: end here.
  enum class Import { kTaken, kDamaged, kRefused };
  // Shows block i, whose checksum has matched. The bytes are in the pool where the block is one piece of
  // memory there, else in a buffer of the client. They do not change before the callback returns.
  using Importer = std::function<Import(std::size_t i, std::span<const std::byte> bytes)>;
  struct Imported {
    std::size_t blocks = 0;   // leading blocks that were taken and count
    std::size_t revoked = 0;  // blocks that were taken and do not count: the caller drops them
    bool is_damaged = false;  // the next block is in the pool with wrong bytes
  };
  // Takes the longest prefix that is in the pool, block by block, under one pin: keep it short.
  // @errors kUnsupported: without pinned_reads; else as Client::begin_load of pinned blocks
  Result<Imported> load_in_place(std::span<const BlockHash> hashes, const Importer& importer);

  // Fills block i. An error ends the store, and the store returns it: the blocks before its batch of 16 are in
  // the pool. The bytes are in the pool where the block is one piece of
  // memory there and the pool is coherent, else in a buffer of the client.
  using Exporter = std::function<Status(std::size_t i, std::span<std::byte> room)>;
  // As store(). @errors those of the exporter, too
  Result<Stored> store_in_place(const BlockHash* parent, std::span<const BlockHash> hashes,
                                const Exporter& exporter);

  // --- Care -------------------------------------------------------------------------------------

  // Removes a block in which this client found wrong bytes, and all blocks after it, from the pool; does
  // nothing if another block has taken its place since. store() does so by itself for the blocks that it stores.
  // @return whether no block of this name is in the pool now: store it again
  // @errors kNoKeeper, kTimeout, kBusy
  Result<bool> drop_damaged(const BlockHash& hash);
  // Whether the last load_in_place() of this block found wrong bytes. The last 64 blocks are remembered.
  bool is_damaged(const BlockHash& hash) const;

  // False: the next call that needs the keeper attaches again first, which may take keeper_timeout_ns.
  bool is_attached() const;
  // @errors kStale, kNotFound …: another pool, or none, is at the pool's path
  Status check_pool() const;

  // Claims on the computation of blocks: of several processes of one machine that need a new block one
  // computes it, and the others take it from the pool. A claim ends with its process. It is advice only. A
  // process must not wait while it holds a claim.
  // @threads one at a time
  class Claims {
   public:
    Claims(Claims&&) noexcept;
    Claims& operator=(Claims&&) noexcept;
    ~Claims();
    // Claims the leading blocks that no other process has claimed. @return how many; 0: another process
    // computes the first one
    std::size_t claim(std::span<const BlockHash> hashes);
    // Gives up the oldest claims, after their blocks were stored or will never be.
    void release(std::size_t claims = 1);
    void release_all() { release(count()); }
    std::size_t count() const;

   private:
    friend class OpaqueClient;
    struct Impl;
    explicit Claims(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
  };
  // @errors kPermission: the pool's file cannot be opened for writing
  Result<Claims> open_claims() const;

  // As Client::count_prompt.
  Status count_prompt(const PromptBlocks& prompt);
  Statistics statistics() const;

 private:
  struct Impl;
  explicit OpaqueClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cachalot
