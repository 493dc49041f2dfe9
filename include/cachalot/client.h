// The API for inference engines: copies KV blocks between an engine's paged cache and a shared pool.
//
//   KvGeometry geometry = *KvGeometry::of_model("Qwen3-32B", DType::kBf16, 16);  // blocks of 16 tokens
//   ClientOptions options{.pool = {"/dev/shm/kv"}, .model = "Qwen3-32B@9216db57", .geometry = geometry};
//   Result<Client> client = Client::attach(options);
//   if (!client) std::puts(client.error().message);                       // as for all results
//   Result<CacheId> cache = client->register_cache({.layout = "vllm_bknhc", .tensors = tensors, .pages = 4096});
//   std::vector<BlockHash> hashes = client->hash_tokens(prompt);
//   Result<std::size_t> hit = client->load(*cache, hashes, pages);        // pool -> pages
//   …compute the rest…
//   Result<Stored> stored = client->store(*cache, nullptr, hashes, pages); // pages -> pool
//
// A block is the KV of block_tokens tokens in all layers of this rank. Its name is a chained hash, so a
// hit is always a prefix. The model, salt, geometry, block order and hash algorithm form the namespace:
// a client never receives blocks of another namespace.
//
// Invariants
//   1. A block counts as loaded only if its directory entry was the same before and after the read of its
//      bytes, and if its checksum matched (where checksums are verified). The pages after the counted blocks
//      may hold garbage: compute those blocks.
//   2. Copies go directly between pages and pool, without a buffer in between.
//
// Caches on a GPU (PagedCache::cuda_device): copies are launched on a stream. A call returns, or its
// completion arrives, after the copies have ended and are validated. kIo means that the GPU failed and
// a copy may stay in flight until the process ends. From then on
//   - keep the memory of all caches on this GPU: do not free it, do not use it for anything else
//   - no other client receives the blocks of the failed store
//   - calls on this GPU's caches fail
//   - unregister_cache() and detach() return kIo
// Before you free the memory of a GPU cache, end all layer loads and stores, then call unregister_cache() or
// detach(): only their result says for certain whether a copy failed. A dropped layer load, a completion that was
// never polled and a destructor report nothing.
// The caller keeps only the memory of its caches; the pool's mapping and all other GPU memory belong to the
// library. GPU caches have run on one kind of GPU (docs/gpu).
//
// Before attach(), a keeper must serve the pool: `cachalot serve`, or keeper.h inside a process. Engines of
// different layouts share blocks if their block order is the same. A block is visible to all clients when
// store() returns. After the death of a keeper a client attaches to the next one by itself.
//
// After detach(), calls that need the pool, including those of layer loads and stores, return
// kInvalidArgument ("detached"). geometry(), block_bytes(), hash_tokens(), statistics() and the completions
// of asynchronous calls stay available.
//
// @threads  any, simultaneously, except detach() and destruction. Calls of one LayerLoad or LayerStore:
//           one at a time. A lookup or load never waits for a store that waits for the keeper. Arguments
//           (hashes, pages, tokens) must not change during a call. A forked child must call attach():
//           its parent's client returns kUnsupported there
// @source   Beluga (arXiv 2511.20172) §5, §6
#pragma once

#include <cachalot/extra_key.h>
#include <cachalot/geometry.h>
#include <cachalot/hash.h>
#include <cachalot/result.h>
#include <cachalot/strides.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot {

inline constexpr std::uint32_t kMostThreads = 256;
inline constexpr std::uint32_t kMostGrantBlocks = 256;  // limit of one client

// For ClientOptions::record_requests: the call that counts as one request.
enum class RecordedCall { kLookup, kLoad };

struct ClientOptions {
  std::vector<std::string> pool = {};  // the pool's path, or the paths of all its devices in order

  // These form the namespace of the blocks.
  std::string model = {};  // weights and their revision
  // adapters, quantisation, engine version, a tenant's secret …
  std::string salt = {};
  KvGeometry geometry = {};  // of this rank
  std::string block_order =
      "layer_first";  // of a block in the pool; all orders: docs/extend/layout.md
  // Not 0: engines of different tensor parallelism share their blocks. The pool then holds each block in
  // pieces, one for each of `share_tp` equal groups of the model's KV heads (KvGeometry::head_group), and only the
  // pieces of a rank count for it. More groups: more engines can share, smaller pieces, longer lookups.
  // 0: only ranks with the same heads share. A latent has one group: its ranks share in any case.
  std::uint32_t share_tp = 0;
  HashAlgorithm hash = HashAlgorithm::kXxh3;
  // for vLLM's algorithms: PYTHONHASHSEED of its engines; "" if it is not set (kSha256Cbor only)
  std::string python_hash_seed = {};

  std::uint32_t host = 0;  // this machine's number in the pool
  // client slot in the pool; default: a free slot of the host
  std::optional<std::uint32_t> slot = {};
  std::uint32_t copy_threads = 1;  // threads that share the copies of one call: 1 to kMostThreads
  // On which CPUs the copies of caches in this process's memory run, for machines with several sockets. "": anywhere.
  // "auto": near each device, as /sys and the place of its pages say; where they do not say, anywhere. "0=0-31;1=32-63":
  // device 0 of the pool by these CPUs, device 1 by those; all devices of `pool` are given. Each device has one of the
  // call's copy_threads at least; the caller's own CPUs stay as they are. A block belongs to the device of its first
  // byte. Devices that a pool got later belong to device 0.
  std::string copy_cpus = {};
  // threads that run asynchronous calls: 1 to kMostThreads
  std::uint32_t workers = 1;
  // Free blocks that this client holds in advance: 1 to kMostGrantBlocks. All clients together hold at
  // most half of the pool, so in a small pool each gets fewer.
  std::uint32_t grant_blocks = 64;
  // Writes and verifies checksums. Default: true in noncoherent pools, false in coherent ones.
  std::optional<bool> checksums = {};
  // For GPU copies of a noncoherent pool. Set it only if the pool's memory is mapped uncached and GPU writes do
  // not enter the host's caches (DDIO is off). Without it, the host flushes its caches around GPU copies.
  bool pool_bypasses_caches = false;
  bool pinned_reads = false;  // required for LayerOptions::pinned
  // true: also attaches to a pool whose files belong to neither this user nor root, or that every user may
  // write to. Every process that may write to a pool can change what this client loads.
  bool allow_foreign_pool = false;
  // Upper limits of each wait inside a call. CopyOptions::timeout_ns limits the whole call.
  std::uint64_t keeper_timeout_ns = 5'000'000'000;  // the keeper's answer, a pool in the making
  std::uint64_t recovery_ns = 2'000'000'000;        // store: waiting for the next keeper

  // Records requests into this file (trace_recorder.h). recorded_call kLookup: each lookup() is a request.
  // kLoad, for engines that do not look up: each load(), load_tokens(), load_async() and begin_load().
  // Input lengths are recorded in whole blocks, output lengths as 0; use a TraceRecorder for exact ones.
  std::string record_requests = {};
  RecordedCall recorded_call = RecordedCall::kLookup;

  // true: the caller counts each prompt with count_prompt(). false: lookups, prefetches and loads count them, as
  // Statistics says. For engines that look up in one process and load in another, whose prompts wait, or that take
  // blocks from other instances, too.
  bool counts_prompts = false;
};

enum class CacheId : std::uint32_t {};
using PageId = std::uint32_t;

// Memory that belongs to the engine.
struct Buffer {
  void* data = nullptr;
  std::uint64_t bytes = 0;
};

// A CUstream or cudaStream_t of the device's primary context. Null: the legacy default stream.
using CudaStream = void*;

// Where an engine's paged KV cache lies in memory. Give either `layout` or `strides`. Bytes do not show the order of a
// tensor's axes: where shapes are known, check them (tensor_shape.h).
struct PagedCache {
  std::string layout = {};           // one of layout_names()
  std::vector<Buffer> tensors = {};  // in the layout's order; tensors do not overlap
  std::uint32_t pages = 0;           // page ids are 0 to pages - 1
  std::uint32_t page_tokens = 0;     // a divisor of block_tokens; 0: a page is a block
  // from one page to the next; 0: as dense as the layout allows
  std::uint64_t page_stride_bytes = 0;
  // [0]: of keys, or of the latent. [1]: of values, or of the latent's rope part (ignored if it has none)
  std::optional<std::array<PartStrides, kParts>> strides = {};
  // CUDA's number of the GPU that has the tensors; none: they are in this process's memory
  std::optional<int> cuda_device = {};
  // GPU cache: the stream on which its copies run, unless a call names another
  CudaStream cuda_stream = nullptr;
};
// All known layouts. How to add one: docs/extend/layout.md.
std::vector<std::string> layout_names();

inline constexpr std::uint64_t kNoTimeout = ~std::uint64_t{0};
inline constexpr std::uint32_t kAllLayers = ~std::uint32_t{0};

struct CopyOptions {
  // For the whole call. Limits every wait, also the wait for the next keeper; copies check it after
  // every 16 blocks. 0: the first check returns kTimeout.
  std::uint64_t timeout_ns = kNoTimeout;
  // Load only: layers of this rank. Fewer than all: no checksum is verified, because checksums are of whole blocks.
  std::uint32_t first_layer = 0;
  std::uint32_t layers = kAllLayers;
  // GPU cache: the stream on which the copies run, after the work that was queued on it before the call. None:
  // the cache's.
  std::optional<CudaStream> cuda_stream = {};
  // store only: the token ids of the blocks, block_tokens for each; empty: none are kept. The pool keeps them
  // beside each block that this call writes, for `cachalot serve --kv-events`, if they fit into its notes
  // (`cachalot pool create --note-bytes`).
  std::span<const std::uint32_t> tokens = {};
};

struct LayerOptions {
  // GPU cache: the stream of the copies of all layers. None: the cache's.
  std::optional<CudaStream> cuda_stream = {};
  // Load only: while the load is open, the pool does not reuse the blocks that begin_load() found. The
  // engine may then use a layer before load_layer() returns: load_layer() verifies only the checksum. Results from
  // blocks that load_layer() does not count are void. Close pinned loads soon: they delay the reuse of all evicted
  // blocks.
  bool pinned = false;
};

struct Stored {
  std::size_t blocks = 0;  // leading blocks that are in the pool now
  std::size_t written =
      0;  // of these, blocks that this call wrote, or of which it wrote a head group
  // Set if not all blocks are in the pool. kNoSpace: the pool is full; kRefused: the parent is not in the pool.
  std::optional<Code> reason;
};

// How many blocks a prompt asked for, and where those that it used came from.
struct PromptBlocks {
  std::uint64_t asked = 0;         // whole blocks that the engine did not have itself
  std::uint64_t from_pool = 0;     // used: in the pool when the prompt came
  std::uint64_t from_peers = 0;    // used: from another instance by a transfer
  std::uint64_t from_storage = 0;  // used: the storage behind the pool brought them for this prompt
};

// Blocks are those of the pool: with share_tp, one for each head group. Those of prompts are blocks of block_tokens
// tokens, whatever the number of head groups.
//
// The hit rate is (used_pool_blocks + used_peer_blocks + used_storage_blocks) / prompt_blocks. Each prompt counts once:
//   lookup, prefetch  ask for their blocks. Asked for again before a load, or before a store of the last one: counted once
//   load              uses the blocks that it returns. If no lookup or prefetch asked for all of them, it asks for its blocks.
//                     If an earlier load of the prompt began at its first block, or later, it is of another, equal prompt
//   get of an object  asks for one block and uses it
// The last 64 prompts that were looked up are remembered. Loads from a first_layer other than 0 count nothing.
struct Statistics {
  // Each lookup and each load looks up its blocks, so a prompt may count here twice.
  std::uint64_t lookups, looked_up_blocks, hit_blocks;
  // A call that loads some layers or tokens is a load of its own: its blocks count again, its bytes are those that it
  // copied. A LayerLoad counts once, after its last layer. loaded_bytes: of the blocks that loads returned.
  std::uint64_t loads, loaded_blocks, loaded_bytes;
  std::uint64_t stores, stored_blocks, stored_bytes, duplicate_blocks;
  std::uint64_t stale_blocks;    // changed during the read, so not counted as loaded
  std::uint64_t damaged_blocks;  // wrong checksum
  std::uint64_t reattachments;
  // Between the pool and the engine's memory, in both directions, each layer when it is copied: also of blocks that did
  // not count in the end (changed during the read, already there, refused by the keeper).
  std::uint64_t copied_bytes;
  std::uint64_t prompts, prompt_blocks;
  std::uint64_t used_pool_blocks, used_peer_blocks, used_storage_blocks;
  // Of copies from and to GPU caches, by the way that they went: a kernel's loads and stores, a kernel's bulk transfers,
  // the driver's copies in batches, single ones. docs/design/cuda.md says which way a copy goes.
  std::uint64_t gpu_threads_bytes, gpu_bulk_bytes, gpu_batch_bytes, gpu_copy_engine_bytes;
};

// What prefetch() has found.
struct Prefetched {
  std::size_t in_pool = 0;     // leading blocks that are in the pool now
  std::size_t in_storage = 0;  // blocks after them that storage has
  // Storage that other hosts write, too, has not answered yet whether it has more: ask again.
  bool is_asking = false;
};

// A block that stays in the pool, with its prefix, until a time.
struct Context {
  std::uint64_t handle = 0;
  std::uint64_t expires_unix_s = 0;
  std::size_t blocks = 0;  // of the prefix
};

// Identifies an asynchronous call.
enum class Token : std::uint64_t {};
struct Completion {
  bool is_done = false;
  Status status;                    // kCancelled, or as the synchronous call
  std::size_t blocks = 0;           // loaded, or in the pool; also after kTimeout and kCancelled
  std::optional<Code> reason = {};  // store: as Stored::reason
};

class Client {
 public:
  // --- Attach -----------------------------------------------------------------------------------

  // @errors kInvalidArgument: a wrong geometry, share_tp does not fit it, or block_bytes() is larger than a block of
  //         the pool; kNoKeeper; kBusy: all slots are in use, or held for clients that stopped answering;
  //         kNotFound, kPermission, kNotAPool, kBadInput: the pool cannot be opened
  static Result<Client> attach(const ClientOptions& options);
  // A moved-from client may only be assigned to or destroyed.
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;  // first detaches the old client, as the destructor does
  // Waits for all calls in flight, including queued asynchronous calls, then detaches. Cancel asynchronous
  // calls first to avoid the wait. If layer stores are still in flight on a GPU, waits up to
  // keeper_timeout_ns, then detaches without notifying the keeper: end those first.
  ~Client();
  // Detaches as the destructor does. Another client may then take the slot, even before this object is destroyed.
  // @errors kNoKeeper, kTimeout: the keeper did not answer; the slot is free anyway.
  //         kBusy: copies did not end within keeper_timeout_ns. The slot becomes free when they have ended
  //         and detach() is called again, or when this object and its layer stores are destroyed.
  //         kIo: a GPU failed, see above. The slot is free, unless a store's copy failed
  Status detach();

  const KvGeometry& geometry() const;
  std::uint64_t block_bytes() const;  // of a block in the pool: with share_tp, of one head group

  // Returns the hashes of all whole blocks of a prompt. `tokens` starts with the prompt's first token.
  // `extra_keys`: of the first blocks; later blocks have none.
  std::vector<BlockHash> hash_tokens(std::span<const std::uint32_t> tokens,
                                     std::span<const ExtraKeys> extra_keys = {}) const;

  // --- Caches -----------------------------------------------------------------------------------

  // Registers the memory that an engine's pages are in. Keep it mapped until unregister_cache() returns; if
  // that returns kIo, until the process ends.
  // @errors kInvalidArgument: an unknown layout; a layout that does not fit the geometry or the tensors;
  //         both or neither of layout and strides; strides that reach outside a tensor or map two elements
  //         to one byte; tensors that overlap or are not on the given GPU. On a GPU also kUnsupported: no driver,
  //         no GPU, or no kernels for it in this library; kNoSpace, kPermission: the pool cannot be
  //         page-locked
  // @cost   the first cache on a GPU: loads the kernels and page-locks the whole pool. The pool stays locked
  //         until the client and its layer loads and stores are destroyed
  Result<CacheId> register_cache(const PagedCache& cache);
  // Waits for the calls that use the cache. Does not wait for open layer loads and stores, because the
  // caller may own them.
  // @errors kNotFound; kBusy: a layer load or store of this cache is open; kIo: the GPU failed, see above.
  //         The cache is unregistered, but keep its memory
  Status unregister_cache(CacheId cache);

  // --- Load and store ---------------------------------------------------------------------------

  // Returns how many leading blocks are in the pool.
  // @cost about 1.3 directory lines per block and head group of the rank, overlapped; no RPC
  Result<std::size_t> lookup(std::span<const BlockHash> hashes) const;

  // Brings the blocks of a chain that are not in the pool, but in the storage behind it (`cachalot serve
  // --storage`), into the pool: for all clients. Without storage it is a lookup. Storage that other hosts write, too
  // (Redis, S3), is asked for what it did not have when it was listed.
  // @param   wait_ns  0: waits neither for answers nor for blocks; they come later. Else returns when they have come, when
  //                   no more will come, or after this time
  // @errors  kNoKeeper, kTimeout: the keeper does not answer. At most 200 ms beyond wait_ns are spent on that
  // @cost    a request to the keeper for each 96 blocks that are not in the pool
  Result<Prefetched> prefetch(std::span<const BlockHash> hashes, std::uint64_t wait_ns = 0);

  // Whether blocks that a prefetch() found in storage are still on their way into the pool.
  // @param stored  all of those blocks
  // @errors as prefetch()
  // @cost   one request to the keeper
  Result<bool> is_fetching(std::span<const BlockHash> stored);

  // Whether storage is behind the pool, and in use now. @errors as prefetch()
  Result<bool> has_storage();

  // Keeps a block of the pool, and with it its prefix, until the time ends: it is not evicted for room and does not expire.
  // Also after the keeper has changed, and after this client has detached.
  // @param   last  of the prefix
  // @errors  kNotFound: it is not in the pool; kNoSpace: contexts keep half of the pool, or as much as the namespace's
  //          quota (`cachalot serve --quota`) allows, or 1,024 are there; kInvalidArgument: more than 366 days;
  //          kUnsupported: the blocks of this rank have several head groups; kNoKeeper, kTimeout
  // @cost    one request to the keeper
  Result<Context> create_context(const BlockHash& last, std::uint64_t seconds);
  // The time counts from now. @errors kNotFound: this namespace has none with the handle, or its time has ended
  Result<Context> renew_context(std::uint64_t handle, std::uint64_t seconds);
  // Its blocks may be evicted again, unless another context keeps them. @errors as renew_context()
  Status drop_context(std::uint64_t handle);

  // Says that a session, as that of an agent, will use this prefix again: its blocks are evicted last, until the time
  // ends or the session retains another prefix. A bias and no promise: they go when there is nothing else, or when later
  // sessions retain more than half of the pool. The next keeper does not know it.
  // @param   session  any text; the same in all processes
  // @param   last     of the prefix
  // @param   seconds  0: the session retains nothing any more
  // @return  blocks of the prefix, those of each head group counted
  // @errors  kNotFound: it is not in the pool; kNoSpace: it is more than half of the pool; kInvalidArgument: more than
  //          366 days; kNoKeeper, kTimeout
  // @cost    one request to the keeper for each head group
  Result<std::size_t> retain(std::string_view session, const BlockHash& last,
                             std::uint64_t seconds);

  // Copies the longest prefix that is in the pool into the engine's pages. Of n pages per block, block i goes
  // to pages[i * n] … pages[i * n + n - 1].
  // @shape   pages: [hashes * pages per block], all different
  // @return  how many leading blocks are loaded; later pages may have been overwritten.
  //          After kTimeout, Error::detail is this number: these blocks were read and validated in time
  //          and need not be computed
  // @errors  kInvalidArgument: a page or layer out of range, a page twice, sizes that do not match;
  //          kNotFound: no such cache; kTimeout; kUnsupported: in a forked child. On a GPU also
  //          kInvalidArgument: the stream is being captured; kNoSpace: no memory on the GPU; kInternal: the
  //          driver refused, no copy is in flight; kIo: see above
  Result<std::size_t> load(CacheId cache, std::span<const BlockHash> hashes,
                           std::span<const PageId> pages, const CopyOptions& options = {});
  // Loads only some tokens of each block, for sparse attention. tokens[i]: the ranges of block i, ascending
  // and disjoint; no ranges: the whole block. Ranges have no checksum: checksums are of whole blocks.
  Result<std::size_t> load_tokens(CacheId cache, std::span<const BlockHash> hashes,
                                  std::span<const PageId> pages,
                                  std::span<const std::span<const TokenRange>> tokens,
                                  const CopyOptions& options = {});
  // Loads the tokens that each KV head of each layer has chosen for itself, for sparse attention: bytes of no other
  // token are read. Neighbours in the pool that are neighbours in the pages, too, are one copy: heads that chose the same
  // token, tokens of one head, keys and values. Rows have no checksum: checksums are of whole blocks. The call counts as a
  // load (Statistics), so an engine that calls it in each decode step sets ClientOptions::counts_prompts; it is not
  // recorded (record_requests).
  // @shape   tokens: [layers * heads of this rank], for the first layer of `options` head 0, head 1, …, then for the next
  //          layer: each a list of tokens, counted from the first token of hashes[0], ascending, all different; an
  //          empty list: none. A latent has one head.
  //          pages: kOwn: as for load(); all other tokens of the pages stay as they are. kPacked: as many as the longest
  //          list needs, all different, whatever the number of hashes: token i of a list goes to token
  //          i % page_tokens of pages[i / page_tokens], in its layer and head
  // @return  how many leading blocks are valid. Rows of tokens in later blocks are void, and may or may not be written
  // @errors  as load(); kInvalidArgument: a number of lists that does not fit, a token outside of the blocks, a list
  //          that does not ascend, too few pages for a list
  // @threads as load()
  // @cost    a look at each token of the lists and at each list for each block, a lookup of all hashes; on a CPU some
  //          40 ns a row of 256 bytes that lies alone: a quarter of the tokens takes as long as whole blocks
  // @source  Beluga (arXiv 2511.20172) §7.3, experiment 10
  Result<std::size_t> load_head_tokens(CacheId cache, std::span<const BlockHash> hashes,
                                       std::span<const PageId> pages,
                                       std::span<const std::span<const std::uint32_t>> tokens,
                                       TokenPlace place = TokenPlace::kOwn,
                                       const CopyOptions& options = {});
  // Copies a chain of blocks from the engine's pages into the pool and publishes them. Blocks that are in
  // the pool already are not copied, except those that this client's loads found damaged: they are replaced.
  // A page may be given twice, because it is only read.
  // @param   parent  the block before the first one; null if the chain starts a prompt
  // @errors  as load(); kNoKeeper, kTimeout: the last blocks may or may not be in the pool. After kTimeout,
  //          Error::detail is how many leading blocks are in the pool
  Result<Stored> store(CacheId cache, const BlockHash* parent, std::span<const BlockHash> hashes,
                       std::span<const PageId> pages, const CopyOptions& options = {});

  // --- Layers -----------------------------------------------------------------------------------

  // Load or store layer by layer, to overlap copies with computation. Both objects may outlive the client.
  // An open one keeps its cache registered. A load is open until all layers are loaded, or no block is valid,
  // or the object is destroyed. A store is open until finish() or until the object is destroyed. A moved-from
  // object may only be assigned to or destroyed.
  class LayerLoad {
   public:
    LayerLoad(LayerLoad&&) noexcept;
    LayerLoad& operator=(LayerLoad&&) noexcept;
    ~LayerLoad();
    std::size_t blocks() const;  // leading blocks that are still valid
    // GPU cache: launches the copy of a layer on the load's stream and returns. Other caches: does nothing.
    // Later work on that stream may use the layer. Unless the load is pinned: do not sample tokens from its
    // results before load_layer() has said how many blocks are valid.
    // If it fails, it has launched no copy. Work that was queued after this call has then read old pages: discard
    // the results of that work, even if load_layer() succeeds later.
    // @errors kInvalidArgument: no such layer; the layer was started and not loaded since; all are loaded
    Status start_layer(std::uint32_t layer);
    // Copies the layer, or waits for the copy that start_layer() launched. Then checks the directory
    // entries; after the last layer also the checksums.
    // @return how many leading blocks are valid; results computed from later blocks are void
    // @errors kInvalidArgument: no such layer; kNotFound: all layers were loaded and the cache was
    //         unregistered since
    // @cost   reads the blocks once more for the checksum, if layers are loaded out of order or the block
    //         order does not keep each layer in one piece
    Result<std::size_t> load_layer(std::uint32_t layer);

   private:
    friend class Client;
    struct Impl;
    explicit LayerLoad(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
  };
  class LayerStore {
   public:
    LayerStore(LayerStore&&) noexcept;
    LayerStore& operator=(LayerStore&&) noexcept;
    ~LayerStore();  // blocks of an unfinished store are not published
    // GPU cache: launches the copy of a layer on the store's stream, after the work that computes it, and
    // returns. Other caches: does nothing. Do not write the pages before store_layer() or finish() returns.
    // @errors kInvalidArgument: no such layer; the layer was started or stored already
    Status start_layer(std::uint32_t layer);
    // Copies the layer, or waits for the copy that start_layer() launched. The blocks get a checksum (where
    // checksums are written) only if layers are stored in order and the block order keeps each layer in one
    // piece.
    Status store_layer(std::uint32_t layer);
    // Waits for started layers, then publishes the blocks. Call it once.
    // @errors kInvalidArgument: a layer is missing, or the store was finished before; kStale: another
    //         keeper has taken over since begin_store(), store again
    Result<Stored> finish();

   private:
    friend class Client;
    struct Impl;
    explicit LayerStore(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
  };
  // @errors as load(). Pinned: kUnsupported: ClientOptions::pinned_reads is not set; kNoKeeper, kTimeout:
  //         the keeper has changed, and the client could not attach to the next one
  Result<LayerLoad> begin_load(CacheId cache, std::span<const BlockHash> hashes,
                               std::span<const PageId> pages, const LayerOptions& options = {});
  // Starts a store of at most 32 blocks, and of at most 128 blocks of the pool (share_tp).
  // @errors as store(); kUnsupported: in this block order, a layer of a block is not a multiple of 64 bytes
  Result<LayerStore> begin_store(CacheId cache, const BlockHash* parent,
                                 std::span<const BlockHash> hashes, std::span<const PageId> pages,
                                 const LayerOptions& options = {});

  // --- Async ------------------------------------------------------------------------------------

  // Start load() or store() on a worker thread and return at once. Hashes and page ids are copied. Do not
  // touch the pages themselves before the completion. On a GPU the copies run after the work that is on
  // the stream at the call; work added to any stream later must not touch the pages before the completion.
  Result<Token> load_async(CacheId cache, std::span<const BlockHash> hashes,
                           std::span<const PageId> pages, const CopyOptions& options = {});
  Result<Token> store_async(CacheId cache, const BlockHash* parent,
                            std::span<const BlockHash> hashes, std::span<const PageId> pages,
                            const CopyOptions& options = {});
  // Return the completion. It is returned once; then the token is unknown.
  // @errors kNotFound: no such token; wait(): kTimeout
  Result<Completion> poll(Token token);
  Result<Completion> wait(Token token, std::uint64_t timeout_ns = kNoTimeout);
  // Stops the call before its next block. The call still completes, with kCancelled.
  Status cancel(Token token);

  // --- Objects ----------------------------------------------------------------------------------

  // For connectors that use keys and address lists instead of pages. An object is the concatenation of its
  // parts and lies in one block. All parts must be in registered buffers.
  // With share_tp above 1 there are none (kUnsupported), because ranks with other heads would have the same keys.
  // @errors kInvalidArgument: null, a size that is not 1 to 2^56 bytes, or overlap with a registered buffer
  Status register_buffer(void* data, std::uint64_t bytes);
  Status unregister_buffer(void* data);
  // An object that this client's gets found damaged is not present, and its next put replaces it.
  // @shape present: [keys]
  Status exists(std::span<const std::string_view> keys, std::span<bool> present) const;
  // @return bytes stored; 0 if the key exists already
  // @errors kNoSpace; as store()
  Result<std::uint64_t> put(std::string_view key, std::span<const Buffer> parts);
  // @return bytes read
  // @errors kNotFound; kCorrupt: wrong checksum; kInvalidArgument: the parts do not have the object's size, or overlap
  Result<std::uint64_t> get(std::string_view key, std::span<const Buffer> parts);

  // --- Statistics -------------------------------------------------------------------------------

  // Counts a prompt; nothing if it asked for no block.
  // @errors kInvalidArgument: ClientOptions::counts_prompts is not set, or more blocks were used than asked for
  Status count_prompt(const PromptBlocks& prompt);
  Statistics statistics() const;
  // The names of the pool's namespaces, in the order in which they were opened: each one's model and geometry.
  // For messages to people, for example why a pool has no hits. A name longer than 416 bytes is cut off. In a forked
  // child: none.
  std::vector<std::string> namespaces() const;

  // Internal: use attach().
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace cachalot
