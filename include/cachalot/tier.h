// An engine's KV cache in tiers: pages in device memory (L1), host memory (L2), and behind them the pool, which may
// have storage (L3). The object owns the page numbers of L1, finds the longest prefix of a prompt in all tiers,
// brings it into L1 layer by layer, writes back what the engine computes, and evicts.
//
//   TieredCacheOptions options{.device = {.layout = "vllm_bknhc", .tensors = tensors, .pages = 4096},
//                              .shared = {.pool = {"/dev/shm/kv"}, .model = "Qwen3-32B@9216db57",
//                                         .geometry = geometry}, .host_ratio = 2.0};
//   Result<TieredCache> cache = TieredCache::make(options);
//   Result<RequestId> request = cache->open(prompt);             // match; fetch the rest from L3 into L2
//   cache->wait_ready(*request);                                 // or is_ready(), once a step
//   Result<TierStart> start = cache->start(*request);            // pages; L2 to L1 begins
//   for (layer …) { cache->wait_layer(*request, layer); …compute from token start->cached_tokens on… }
//   cache->commit(*request, prompt);                             // its KV is computed: share it
//   …cache->grow(*request, tokens); …decode…; cache->commit(*request, all);
//   cache->close(*request);
//
// A block is block_tokens tokens, in L1 one or more pages. Blocks are never split between tiers.
//
// Invariants
//   1. A page that a request was given stays its own, or stays as it is if it was found, until close().
//   2. start() counts only bytes that are in this process's memory: L3's answer is never trusted before its bytes
//      have arrived and were verified (client.h).
//   3. Calls wait for L3 only in wait_ready(), and without L2 in start() and grow(); for copies between L1 and L2 only
//      in start() and grow(), and where L1 is no GPU's in wait_layer().
//
// L1 is memory of this process, or of a GPU (device.cuda_device). Copies of a GPU's run on streams of the library: loads
// after the work that is on device.cuda_stream at start(), copies to L2 and L3 after the work that is on it at commit().
// Work on other streams is not seen. L2 then is page-locked. After a copy of the GPU's has failed all calls that give or
// take pages return kIo, and the tensors must stay until the process ends, because the copy may still write.
//
// @threads  any, simultaneously; calls of one request: one at a time
// @source   SGLang HiCache
#pragma once

#include <cachalot/client.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot {

// When computed blocks are written to the next tier.
enum class TierWrites {
  kThrough,    // at commit()
  kSelective,  // at the commit() that is the selective_uses-th use of the block
  kBack,       // when L1 evicts them
};

// When start() goes on with what has arrived from L3.
enum class PrefetchStop {
  kBestEffort,    // at once
  kWaitComplete,  // when all has arrived
  kTimeout,  // when all has arrived, or after timeout_base_ns + timeout_per_ki_token_ns for each 1024 tokens
};

struct PrefetchOptions {
  std::uint32_t threshold_tokens = 256;  // fewer tokens in L3 are not fetched
  PrefetchStop stop = PrefetchStop::kTimeout;
  std::uint64_t timeout_base_ns = 1'000'000'000;
  std::uint64_t timeout_per_ki_token_ns = 250'000'000;
};

// The time of a prefill of n tokens: a + b n + c n^2.
struct PrefillModel {
  double a_ns = 0, b_ns = 0, c_ns = 0;

  // Of tokens [cached, tokens), where the KV of the first ones is there.
  double cost_ns(std::uint64_t cached, std::uint64_t tokens) const;
};

// Lets the ranks of one engine instance agree on a number: all must use equally many cached tokens.
class RankGroup {
 public:
  virtual ~RankGroup() = default;
  // Every rank calls it with the same `round` and gets the same answer: the minimum of all values, or 0 where a
  // rank did not come before another one's timeout.
  // @param  round  never used before in this group; below 2^40. value: below 2^24
  // @errors kStale: this rank is 64 rounds behind the others
  virtual Result<std::uint64_t> minimum(std::uint64_t round, std::uint64_t value,
                                        std::uint64_t timeout_ns) = 0;
};
// A group whose ranks are threads of this process: one object for each rank.
std::vector<std::shared_ptr<RankGroup>> make_ranks(std::uint32_t ranks);
// A group whose ranks are processes of one machine, which meet in a small file of shared memory. The first rank
// makes it; the caller removes it, also before the ranks start anew.
// @errors kInvalidArgument: rank not below ranks, a file of another number of ranks, or one that this rank has joined
//         before; those of opening a file
Result<std::shared_ptr<RankGroup>> join_ranks(const std::string& path, std::uint32_t rank,
                                              std::uint32_t ranks);

struct TieredCacheOptions {
  PagedCache device = {};  // L1
  // Names of the blocks, geometry, and L3: the pool may be empty, and attach_pool() called later.
  ClientOptions shared = {};

  // L2. At most one of the two; neither: no L2, and blocks go between L1 and the pool.
  double host_ratio = 0;                   // of L1's blocks; over 1, unless `exclusive`
  std::uint64_t host_bytes = 0;            // of this rank
  std::string host_layout = "page_first";  // host_layout_names()
  // L2 takes what L1 evicts, and gives up what L1 loads: both together keep most. Else L2 has copies of L1's blocks:
  // L1 evicts without a copy, and a load leaves its copy.
  bool exclusive = false;

  TierWrites writes = TierWrites::kThrough;
  std::uint32_t selective_uses = 2;
  // Of ranks with the same bytes (a latent, replicated heads) only the first writes to L3. Default: by the geometry.
  std::optional<bool> writes_shared = {};
  // To L3. Blocks beyond it are not written, and counted; so is what would keep more than a quarter of L1.
  std::uint64_t write_queue_bytes = std::uint64_t{256} << 20;

  PrefetchOptions prefetch = {};
  // Blocks of L2 and L3 are loaded only if that is faster than computing them. None: always loaded.
  std::optional<PrefillModel> prefill = {};
  std::uint32_t fetch_threads = 4;  // prompts that are fetched from L3 at the same time
  std::uint64_t shared_timeout_ns = 2'000'000'000;  // of one call to L3, of at most 16 blocks

  std::string device_order = "lru";  // of eviction: lru, lfu, fifo, slru, priority …
  std::string host_order = "lru";

  std::shared_ptr<RankGroup> ranks = {};  // null: one rank
  std::uint64_t rank_timeout_ns = 5'000'000'000;
};
std::vector<std::string> host_layout_names();

// One option of the tiers, for command lines, files and languages without these structs.
struct TierOption {
  const char* name;  // of set_tier_option()
  const char*
      sglang;  // the name of SGLang's flag or extra-config key, which is accepted, too; null: none
  const char* values;         // "through|selective|back", "SIZE", "SECONDS" …
  const char* default_value;  // as text
  const char* meaning;
};
std::span<const TierOption> tier_options();
// Sets what a name says, "host_ratio" for example. SGLang's values are accepted, too: write_through is through.
// @errors kInvalidArgument: no such option, or not one of its values; the message lists them
Status set_tier_option(TieredCacheOptions& options, std::string_view name, std::string_view value);

enum class RequestId : std::uint64_t {};

struct RequestOptions {
  std::string_view extra =
      {};  // separates equal tokens: an adapter, a salt, an image. Not empty: part of the name
  std::int32_t priority = 0;  // for eviction order "priority"
  // The same on all ranks, and never used before in the group. 0: requests are numbered from 1 in the order of open():
  // either all of a group's requests are numbered so, or none.
  std::uint64_t round = 0;
};

struct TierStart {
  std::uint64_t cached_tokens =
      0;  // need no computation; whole blocks, and fewer than the prompt's tokens
  std::uint64_t device_tokens = 0;  // of these: were in L1
  std::uint64_t host_tokens = 0;    // were in L2, or came there from L3
  std::uint64_t shared_tokens = 0;  // of these: came from L3 for this request
  std::vector<PageId> pages = {};   // for all tokens of the prompt
};

// What was found in L3 for a request.
struct TierFetch {
  bool is_done = true;
  std::uint64_t wanted_tokens = 0;  // were there
  std::uint64_t arrived_tokens = 0;
};

// tier_c.h has the same fields in this order.
struct TierStatistics {
  std::uint64_t requests, prompt_tokens, device_tokens, host_tokens,
      shared_tokens;  // found, by start()
  std::uint64_t device_blocks, free_device_blocks, host_blocks, free_host_blocks;
  std::uint64_t evicted_device_blocks, evicted_host_blocks, demoted_blocks;  // demoted: to L2
  std::uint64_t loaded_bytes, backed_up_bytes;                               // L2 to L1, L1 to L2
  std::uint64_t fetched_bytes,
      unused_fetched_bytes;                // L3 to L2; of these not used by their request
  std::uint64_t written_bytes;             // to L3, by this cache
  std::uint64_t unwritten_blocks;          // the queue was full, or L3 refused
  std::uint64_t fetches, skipped_fetches;  // skipped: below the threshold, or L2 is busy
  std::uint64_t recomputed_tokens;         // found, and faster to compute
  std::uint64_t ready_wait_ns, layer_wait_ns;
};

class TieredCache {
 public:
  // @errors kInvalidArgument: host_ratio not over 1 (0.1 where exclusive), both sizes, unknown layout or order, tensors
  //         that are not on device.cuda_device, pieces of a block that are no multiples of 64 bytes (on a GPU);
  //         those of Client::register_cache and Client::attach; kNoSpace: the machine has less memory, or cannot
  //         page-lock it
  // @cost   takes L2's memory; with a GPU page-locks it, 25 to 40 ms a GiB
  static Result<TieredCache> make(const TieredCacheOptions& options);
  TieredCache(TieredCache&&) noexcept;
  TieredCache& operator=(TieredCache&&) noexcept;
  // Ends writes and fetches that wait, then detaches.
  ~TieredCache();

  // --- L3 while serving -------------------------------------------------------------------------
  // @errors kBusy: attached already; as Client::attach
  Status attach_pool(std::span<const std::string> pool);
  // Ends fetches and writes in flight. Open requests go on with what has arrived. @errors kNotFound: none is attached
  Status detach_pool();
  bool has_pool() const;

  void set_prefetch(const PrefetchOptions& prefetch);
  // @errors kInvalidArgument: selective_uses below 2, or kBack without L2
  Status set_writes(TierWrites writes, std::uint32_t selective_uses = 2);

  // --- Requests ---------------------------------------------------------------------------------
  // Finds the prompt's longest prefix in L1 and L2, keeps it there, and begins to fetch what L3 has of the rest.
  // @errors kInvalidArgument: no tokens
  Result<RequestId> open(std::span<const std::uint32_t> prompt, const RequestOptions& options = {});
  // Whether start() would not wait for L3, by PrefetchOptions::stop.
  // @errors kNotFound: no such request
  Result<bool> is_ready(RequestId request) const;
  // Waits until is_ready(), or so long. @return is_ready()
  Result<bool> wait_ready(RequestId request, std::uint64_t timeout_ns = kNoTimeout);
  Result<TierFetch> fetch_of(RequestId request) const;
  // Of open(), or of the last commit().
  Result<std::uint64_t> prompt_tokens(RequestId request) const;
  // Ends the fetch, takes pages for the whole prompt, and begins to load what is in L2. With ranks: agrees on
  // cached_tokens. Without L2: loads from the pool. On a GPU the thread has put all work with pages of closed requests
  // on device.cuda_stream before.
  // @errors kNoSpace: L1 is full of pages of open requests; close one, and start again; kNotFound; as RankGroup;
  //         kIo: a copy of the GPU's failed; kInvalidArgument: device.cuda_stream is being captured
  Result<TierStart> start(RequestId request);
  // Returns when `layer` of all cached tokens is in L1. On a GPU: when its copy is on a stream, and device.cuda_stream
  // follows it: what is put there from now on sees the layer. What runs elsewhere has to wait for that stream.
  // @errors kInvalidArgument: not started, no such layer, or device.cuda_stream is being captured; kIo: a copy of the
  //         GPU's failed. One that fails after this call is said by commit() or the next start()
  Status wait_layer(RequestId request, std::uint32_t layer);
  // Takes pages until they are enough for so many tokens. @return all pages of the request
  // @errors kNoSpace: as start()
  Result<std::vector<PageId>> grow(RequestId request, std::uint64_t tokens);
  // The KV of `tokens` is computed and in the request's pages; on a GPU, by work that is on device.cuda_stream. Whole blocks are found by others from now on, and
  // written to the next tiers. The pages of these blocks must not change until close().
  // @errors kInvalidArgument: not started; more tokens than pages; the tokens do not begin with the whole blocks that
  //         were cached or committed before
  Status commit(RequestId request, std::span<const std::uint32_t> tokens);
  // Ends a request, also one that was not started. Its pages may be evicted.
  Status close(RequestId request);

  // Waits until all blocks that were committed are in the tiers they are written to, or so long.
  // @errors kTimeout
  Status flush(std::uint64_t timeout_ns = kNoTimeout);
  // Forgets everything in L1 and L2. @errors kBusy: a request is open
  Status clear();

  TierStatistics statistics() const;
  // Checks the tree and the books of all tiers, for tests. O(blocks)
  bool is_valid() const;

  struct Impl;
  explicit TieredCache(std::unique_ptr<Impl> impl);  // the library's

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace cachalot
