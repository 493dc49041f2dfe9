// What an inference engine links: it moves KV blocks between the engine's paged cache and a pool that
// many engines share.
//
//   ClientOptions options{.pool = {"/dev/shm/kv"}, .model = "Qwen3-32B@9216db57", .geometry = geometry};
//   Result<Client> client = Client::attach(options);
//   Result<CacheId> cache = client->register_cache({.layout = "vllm_bknhc", .tensors = tensors, .pages = 4096});
//   std::vector<BlockHash> hashes = client->hash_tokens(prompt);
//   Result<std::size_t> hit = client->load(*cache, hashes, pages);        // pool -> pages
//   …compute the rest…
//   Result<Stored> stored = client->store(*cache, nullptr, hashes, pages); // pages -> pool
//
// A block is block_tokens tokens in all layers of this rank, named by its chained hash: a hit is always
// a prefix. Blocks of clients whose model, salt, geometry, block order or hash algorithm differ are in
// other namespaces and are never handed out.
//
// Invariants
//   1. A block counts as loaded only if its directory entry was the same before and after its bytes
//      were read, and its checksum matched where checksums are verified. What load() did not count
//      may have been written over partly: compute it.
//   2. Copies go straight between pages and pool; there is no buffer in between.
//
// Caches may be on GPUs (PagedCache::cuda_device). Copies are then launched on a stream, and a call returns,
// or a completion comes, when they are done and validated. After kIo nothing is known of a copy: it may be
// under way until the process ends. Until then
//   - the memory of all caches on this GPU has to be kept: not freed, and used for nothing else. Whoever did
//     not hear of the copy (of a layer load that was dropped, a call whose completion nobody asked for) hears it
//     of unregister_cache() and detach(), which say kIo for as long as it is so. Destructors say nothing: who
//     gives memory away that a GPU's cache was in asks one of these two before, when its layer loads and
//     stores have ended
//   - the blocks of a store are kept from everybody
//   - calls on this GPU's caches fail
// What is the library's (the pool's mapping, what it has on the GPU) it keeps by itself. Nothing of this has
// run on a GPU yet.
//
// After detach() every call that needs the pool, also one of a layer load or store, is refused with
// kInvalidArgument ("detached"); what does not (geometry, block_bytes, hash_tokens, statistics, and what
// became of calls that went on by themselves) is still answered.
//
// @threads  any, all of them at once, but for detach() and destruction; calls of one LayerLoad or
//           LayerStore one at a time. Reads take no lock that a write waits under. What a call is given
//           (hashes, pages, tokens) must not change while it runs
// @source   Beluga (arXiv 2511.20172) §5, §6
#pragma once

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
inline constexpr std::uint32_t kMostGrantBlocks = 256;  // that a keeper lets one client hold

// Which call of a client stands for a request, for recording.
enum class RecordedCall { kLookup, kLoad };

struct ClientOptions {
  std::vector<std::string> pool = {};  // its path, or those of all its devices in order

  // What the bytes of a block depend on, all of it part of the namespace.
  std::string model = {};  // weights and their revision
  // adapters, quantisation, engine version, a tenant's secret …
  std::string salt = {};
  KvGeometry geometry = {};  // of this rank
  std::string block_order =
      "layer_first";  // of a block in the pool; docs/extend/layout.md has the others
  HashAlgorithm hash = HashAlgorithm::kXxh3;
  std::string python_hash_seed = {};  // of vLLM's algorithms

  std::uint32_t host = 0;  // this machine's number in the pool
  // of the client table; default: a free one of the host
  std::optional<std::uint32_t> slot = {};
  std::uint32_t copy_threads = 1;  // that share the copies of one call: 1 to kMostThreads
  // threads for calls that do not wait: 1 to kMostThreads
  std::uint32_t workers = 1;
  // Pool blocks to hold in advance: 1 to kMostGrantBlocks; fewer where the pool is small, of which all
  // its clients together hold half at the most.
  std::uint32_t grant_blocks = 64;
  std::optional<bool> checksums = {};  // default: in noncoherent pools
  // Of a noncoherent pool that GPUs copy from and into: its memory is mapped past the host's caches, and what
  // a GPU writes does not go into them (DDIO is off). Else the host flushes around their copies.
  bool pool_bypasses_caches = false;
  bool pinned_reads = false;  // LayerOptions::pinned will be used
  // Both are bounded by what is left of a call's own time.
  std::uint64_t keeper_timeout_ns = 5'000'000'000;  // of any wait for the keeper's answer
  std::uint64_t recovery_ns = 2'000'000'000;        // how long a store waits for a next keeper

  // A file that requests are recorded in (trace_recorder.h): of each lookup(), with all hashes of a prompt,
  // or where an engine loads without looking up, of each load(), load_tokens(), load_async(), begin_load().
  // The input counts as whole blocks, the output as 0: with a TraceRecorder of one's own both are exact.
  std::string record_requests = {};
  RecordedCall recorded_call = RecordedCall::kLookup;
};

// Number of a registered cache.
enum class CacheId : std::uint32_t {};
// Number of a page in an engine's paged cache.
using PageId = std::uint32_t;

// Memory of the engine.
struct Buffer {
  void* data = nullptr;
  std::uint64_t bytes = 0;
};

// A stream of a GPU: a CUstream or cudaStream_t of the device's primary context. Null: the legacy default one.
using CudaStream = void*;

// One engine's paged KV cache, as it lies in memory.
struct PagedCache {
  std::string layout = {};           // a name of layout_names(); empty if strides are given
  std::vector<Buffer> tensors = {};  // in the order that the layout states; no two share a byte
  std::uint32_t pages = 0;           // page ids are below
  std::uint32_t page_tokens = 0;     // 0: a page is a block; else a divisor of block_tokens
  // from one page to the next; 0: as dense as the layout allows
  std::uint64_t page_stride_bytes = 0;
  // Instead of a layout: where keys and values lie, or the latent and its rope part (ignored if it has none).
  std::optional<std::array<PartStrides, kParts>> strides = {};
  // The GPU that the tensors are on, by CUDA's number of it; none: they are in this process's memory.
  std::optional<int> cuda_device = {};
  // of a GPU's cache: where its copies go, if a call names no other
  CudaStream cuda_stream = nullptr;
};
// The layouts that are known, docs/extend/layout.md says how to add one.
std::vector<std::string> layout_names();

inline constexpr std::uint64_t kNoTimeout = ~std::uint64_t{0};
inline constexpr std::uint32_t kAllLayers = ~std::uint32_t{0};

struct CopyOptions {
  // For the whole call, whatever it waits for: looked at between portions of 16 blocks, and bounding each
  // wait, also for a keeper that is gone. 0 has passed already.
  std::uint64_t timeout_ns = kNoTimeout;
  std::uint32_t first_layer = 0;  // load only: of this rank
  std::uint32_t layers = kAllLayers;
  // Of a GPU's cache: the copies come behind what is on this stream when the call is made. None: the cache's.
  std::optional<CudaStream> cuda_stream = {};
};

struct LayerOptions {
  // Of a GPU's cache: the copies of all layers come behind what is on this stream. None: the cache's.
  std::optional<CudaStream> cuda_stream = {};
  // Load only: the blocks that begin_load() found are kept for as long as the load is open, so what is computed
  // from a layer may leave the step before load_layer() has counted it; but its checksum is verified there.
  // What the pool evicts meanwhile it cannot use again, so a load should not be open for long.
  bool pinned = false;
};

// What became of a store.
struct Stored {
  std::size_t blocks = 0;      // leading blocks that are in the pool now
  std::size_t written = 0;     // of these, how many this call wrote
  std::optional<Code> reason;  // why not all: kNoSpace; kRefused: the parent is not in the pool
};

struct Statistics {
  std::uint64_t lookups, looked_up_blocks, hit_blocks;
  std::uint64_t loads, loaded_blocks, loaded_bytes;
  std::uint64_t stores, stored_blocks, stored_bytes, duplicate_blocks;
  std::uint64_t stale_blocks;    // changed while they were read, and were not counted as loaded
  std::uint64_t damaged_blocks;  // whose checksum did not match
  std::uint64_t reattachments;
};

// A call that goes on by itself.
enum class Token : std::uint64_t {};
struct Completion {
  bool is_done = false;
  Status status;                    // kTimeout, kCancelled, or as the call that waits
  std::size_t blocks = 0;           // loaded, or in the pool; also after kTimeout and kCancelled
  std::optional<Code> reason = {};  // of a store: as Stored's
};

class Client {
 public:
  // @errors kInvalidArgument: the geometry, a block that does not fit the pool's; kNoKeeper; kBusy: all
  //         slots have clients that are attached, or are held for some that fell silent, at once; as
  //         opening a pool
  static Result<Client> attach(const ClientOptions& options);
  // One that was moved from may only be assigned to or destroyed.
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;  // who was here detaches, as at its end
  // Waits for the calls under way, those that go on by themselves too, queued or not, and detaches. Who
  // does not want to wait for these cancels them first. With layers of a store under way on a GPU it waits
  // for keeper_timeout_ns, and leaves without a word (kBusy): end those first.
  ~Client();
  // The same, and the slot is free: for another client, though this object and layer loads of it are kept.
  // @errors kNoKeeper, kTimeout: nobody answered, the slot is free all the same; kBusy: copies do not end
  //         within keeper_timeout_ns, the slot is not free until they have and it is called again, or this
  //         object and its layer stores are gone; kIo: see above. The slot is free all the same, unless the
  //         copy was a store's
  Status detach();

  const KvGeometry& geometry() const;
  std::uint64_t block_bytes() const;

  // The hashes of all whole blocks of a prompt, from its first token on.
  std::vector<BlockHash> hash_tokens(std::span<const std::uint32_t> tokens) const;

  // Memory of the engine that pages are in. It must stay mapped until unregister_cache(), which may say kIo:
  // then until the process ends.
  // @errors kInvalidArgument: an unknown layout, one that does not fit the geometry or the tensors,
  //         a layout as well as strides or neither, strides that leave a tensor or let two elements share a byte,
  //         tensors that overlap, or are not on the GPU that was named. Of a GPU: kUnsupported: no driver,
  //         no GPU, or no kernels for it in this library; kNoSpace, kPermission: the pool cannot be page-locked
  // @cost   the first one on a GPU: loading the kernels, and page-locking the whole pool. It stays so until the
  //         client and its layer loads and stores are destroyed
  Result<CacheId> register_cache(const PagedCache& cache);
  // Waits for the calls that use it. A layer load or store is not waited for: its owner may be who calls.
  // @errors kNotFound; kBusy: a layer load or store of this cache is open; kIo: its GPU failed in a copy. It is
  //         unregistered, and its memory has to be kept, see above
  Status unregister_cache(CacheId cache);

  // How many leading blocks are in the pool. @cost about 1.3 lines a block, overlapped; no RPC
  Result<std::size_t> lookup(std::span<const BlockHash> hashes) const;

  // Copies the longest prefix that is in the pool into the engine's pages, block i to pages[i]; where
  // a block is several pages, to as many from i times that number on.
  // @shape   pages: [hashes times pages a block], all different
  // @return  how many leading blocks are loaded; the pages behind may have been written over.
  //          After kTimeout the error's detail is this number: these blocks were read and validated in
  //          time, and need not be computed
  // @errors  kInvalidArgument: a page or layer out of range, a page twice, sizes that differ; kNotFound:
  //          no such cache; kTimeout; kUnsupported: in a forked child. Of a GPU's cache: kInvalidArgument: the
  //          stream is being captured; kNoSpace: the GPU has no memory; kInternal: the driver refused, and
  //          nothing is under way; kIo: see above
  Result<std::size_t> load(CacheId cache, std::span<const BlockHash> hashes,
                           std::span<const PageId> pages, const CopyOptions& options = {});
  // Only some tokens of each block, for sparse attention: ranges tokens[i] of block i, ascending and
  // disjoint, or none for the whole block. Not covered by a checksum, which is of whole blocks.
  Result<std::size_t> load_tokens(CacheId cache, std::span<const BlockHash> hashes,
                                  std::span<const PageId> pages,
                                  std::span<const std::span<const TokenRange>> tokens,
                                  const CopyOptions& options = {});
  // Copies blocks from the engine's pages into the pool and publishes them: a chain whose first block
  // follows `parent`, or starts a prompt. What is there already is not copied. A page may be given
  // twice here: it is only read.
  // @errors  as load(); kNoKeeper, kTimeout: nothing is known of the fate of the last blocks. After
  //          kTimeout the error's detail is how many leading blocks are in the pool
  Result<Stored> store(CacheId cache, const BlockHash* parent, std::span<const BlockHash> hashes,
                       std::span<const PageId> pages, const CopyOptions& options = {});

  // Layer by layer, so that copies and computation overlap. Either may end after its client. One that was
  // moved from may only be assigned to or destroyed. Either is open, and keeps its cache registered, until
  // it is destroyed, or has no use for the cache any more: every layer is loaded, or no block is right any
  // more; the store is finished.
  class LayerLoad {
   public:
    LayerLoad(LayerLoad&&) noexcept;
    LayerLoad& operator=(LayerLoad&&) noexcept;
    ~LayerLoad();
    std::size_t blocks() const;  // that are there still
    // Of a GPU's cache: launches the copy of a layer on the load's stream, and returns. What comes behind it on
    // that stream may use the layer; but not before load_layer() has said how many blocks are right may
    // anything that was computed from it leave the step, unless the load is pinned. Does nothing for other
    // caches. After an error nothing was launched: load_layer() would copy then, and count what kernels that
    // were put on the stream before have not seen.
    // @errors kInvalidArgument: no such layer, one that was started and not loaded since, all are loaded
    Status start_layer(std::uint32_t layer);
    // Copies the layer, or waits for the copy that was started.
    // @return how many leading blocks are right in this layer: what was computed from those behind
    //         is void. Checked by the directory after every layer, and by the checksum when every
    //         layer is there
    // @cost   where layers come out of order, or the block order does not keep each in one piece, the
    //         checksum takes reading the blocks once more
    // @errors kInvalidArgument: no such layer; kNotFound: the cache was unregistered since the load was complete
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
    ~LayerStore();  // what was not finished is not published
    // Of a GPU's cache: launches the copy of a layer on the store's stream, behind what computes it, and
    // returns. Its pages must not be written before store_layer() or finish() has waited for it. Does nothing
    // for other caches. @errors kInvalidArgument: no such layer, one that was started or stored already
    Status start_layer(std::uint32_t layer);
    // Copies the layer, or waits for the copy that was started.
    // The blocks carry a checksum, where checksums are written, if layers come in order and the block order
    // keeps each in one piece.
    Status store_layer(std::uint32_t layer);
    // Once. Waits for layers that were started. @errors kInvalidArgument: a layer is missing, or it was finished already; kStale: the keeper
    //         changed meanwhile, store again
    Result<Stored> finish();

   private:
    friend class Client;
    struct Impl;
    explicit LayerStore(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
  };
  // @errors kUnsupported: pinned, and ClientOptions::pinned_reads was not set; kNoKeeper, kTimeout: pinned, and
  //         the client has to attach again
  Result<LayerLoad> begin_load(CacheId cache, std::span<const BlockHash> hashes,
                               std::span<const PageId> pages, const LayerOptions& options = {});
  // At most 32 blocks. @errors kUnsupported: a layer of a block is not whole lines in this order
  Result<LayerStore> begin_store(CacheId cache, const BlockHash* parent,
                                 std::span<const BlockHash> hashes, std::span<const PageId> pages,
                                 const LayerOptions& options = {});

  // As load() and store(), by another thread. Hashes and pages are copied; the pages themselves must
  // not be touched until the completion. On a GPU they come behind what the stream has when they are called,
  // and nothing that is put on a stream later may touch the pages before the completion.
  Result<Token> load_async(CacheId cache, std::span<const BlockHash> hashes,
                           std::span<const PageId> pages, const CopyOptions& options = {});
  Result<Token> store_async(CacheId cache, const BlockHash* parent,
                            std::span<const BlockHash> hashes, std::span<const PageId> pages,
                            const CopyOptions& options = {});
  // A completion is handed out once; after that the token is unknown.
  // @errors kNotFound: no such token; wait: kTimeout
  Result<Completion> poll(Token token);
  Result<Completion> wait(Token token, std::uint64_t timeout_ns = kNoTimeout);
  // Before its next block; it still completes, with kCancelled.
  Status cancel(Token token);

  // For connectors that know keys and lists of addresses instead of pages. An object lies in one
  // block: the parts in order, one behind the other.
  // All parts must lie in registered buffers.
  // @errors kInvalidArgument: no memory (null, or not 1 to 2^56 bytes), or overlapping a registered one
  Status register_buffer(void* data, std::uint64_t bytes);
  Status unregister_buffer(void* data);
  // @shape present: as many as keys
  Status exists(std::span<const std::string_view> keys, std::span<bool> present) const;
  // @return bytes stored, 0 if the key was there already @errors kNoSpace, as store()
  Result<std::uint64_t> put(std::string_view key, std::span<const Buffer> parts);
  // @return bytes read @errors kNotFound; kInvalidArgument: the parts are not of the object's size, or overlap
  Result<std::uint64_t> get(std::string_view key, std::span<const Buffer> parts);

  Statistics statistics() const;

  // The library's own: a client is made by attach().
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace cachalot
