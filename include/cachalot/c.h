/* The C API: the client of include/cachalot/client.h for C and every language that can call C. The words are
 * the same; what a call does in detail is described there.
 *
 * The ABI is stable: functions and fields keep their meaning and layout. Structs that may grow start with
 * struct_size; a field that the caller's struct does not have counts as zero.
 *
 * A function that can fail returns a code; cachalot_last_message() returns the message of the calling
 * thread's last failure. Strings are zero-terminated UTF-8. Nothing is thrown, nothing is printed.
 */
#ifndef CACHALOT_C_H
#define CACHALOT_C_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define CACHALOT_API __attribute__((visibility("default")))
#else
#define CACHALOT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define CACHALOT_ABI_VERSION 1

/* Numbers never change. New codes may be added. */
typedef enum cachalot_code {
  CACHALOT_OK = 0,
  CACHALOT_INVALID_ARGUMENT = 1,
  CACHALOT_BAD_INPUT = 2,
  CACHALOT_NOT_A_POOL = 3,
  CACHALOT_VERSION_MISMATCH = 4,
  CACHALOT_NOT_FOUND = 5,
  CACHALOT_CORRUPT = 6,
  CACHALOT_STALE = 7,
  CACHALOT_REFUSED = 8,
  CACHALOT_NO_KEEPER = 9,
  CACHALOT_NO_SPACE = 10,
  CACHALOT_PERMISSION = 11,
  CACHALOT_BUSY = 12,
  CACHALOT_TIMEOUT = 13,
  CACHALOT_UNSUPPORTED = 14,
  CACHALOT_IO = 15,
  CACHALOT_INTERNAL = 16,
  CACHALOT_CANCELLED = 17
} cachalot_code;

/* Returns the name, "no_keeper" for example; "unknown" for a number that is not a code. */
CACHALOT_API const char* cachalot_code_name(cachalot_code code);
/* Returns one line about this thread's last failed call: the thing, its value and what was expected. Valid
 * until this thread's next failure; never null. */
CACHALOT_API const char* cachalot_last_message(void);
CACHALOT_API uint32_t cachalot_abi_version(void);

#define CACHALOT_NO_TIMEOUT UINT64_MAX
#define CACHALOT_ALL_LAYERS UINT32_MAX

typedef enum cachalot_dtype {
  CACHALOT_F32 = 0,
  CACHALOT_F16 = 1,
  CACHALOT_BF16 = 2,
  CACHALOT_F8 = 3,
  CACHALOT_I8 = 4
} cachalot_dtype;

typedef enum cachalot_attention {
  /* K and V of kv_heads * head_dim each */
  CACHALOT_GROUPED = 0,
  /* MLA: kv_lora_rank and qk_rope_head_dim */
  CACHALOT_LATENT = 1
} cachalot_attention;

typedef enum cachalot_hash_algorithm {
  CACHALOT_XXH3_128 = 0,
  CACHALOT_SHA256_CBOR = 1,
  CACHALOT_XXHASH_CBOR = 2
} cachalot_hash_algorithm;

/* The KV dimensions of one rank, see KvGeometry. Fields that do not apply are 0. tp_size, tp_replicas and
 * pp_size of 0 mean 1. */
typedef struct cachalot_geometry {
  /* sizeof(cachalot_geometry) */
  uint32_t struct_size;
  uint32_t layers;
  /* cachalot_attention */
  uint32_t attention;
  uint32_t kv_heads, head_dim;
  uint32_t kv_lora_rank, qk_rope_head_dim;
  /* cachalot_dtype */
  uint32_t dtype;
  uint32_t block_tokens;
  uint32_t tp_rank, tp_size, tp_replicas;
  uint32_t pp_rank, pp_size;
} cachalot_geometry;

typedef struct cachalot_block_hash {
  uint64_t low, high;
} cachalot_block_hash;

typedef struct cachalot_buffer {
  void* data;
  uint64_t bytes;
} cachalot_buffer;

/* A client may be used by any threads simultaneously, except for cachalot_detach().
 *
 * Caches on a GPU: CACHALOT_IO means that the GPU failed and a copy may stay in flight until the process
 * ends. From then on keep the memory of all caches on this GPU: do not free it, do not use it for anything
 * else. Calls on these caches fail. To learn of failures that no other call reported, call
 * cachalot_unregister_cache() or cachalot_detach() before you free such memory, after all layer loads and
 * stores have ended. */
typedef struct cachalot_client cachalot_client;
typedef struct cachalot_layer_load cachalot_layer_load;
typedef struct cachalot_layer_store cachalot_layer_store;
typedef struct cachalot_keeper cachalot_keeper;

/* --- A keeper in this process ------------------------------------------------------------------ */

typedef struct cachalot_keeper_options {
  /* sizeof(cachalot_keeper_options) */
  uint32_t struct_size;
  /* number of client slots; 0: 64 */
  uint32_t clients;
  /* path; created if it does not exist */
  const char* pool;
  uint64_t block_bytes, capacity_blocks;
  /* "coherent" (null) or "noncoherent" */
  const char* domain;
  /* null: "lru" */
  const char* policy;
  /* not 0: also a pool of another user, or one that every user may write to, as in client.h */
  uint32_t allow_foreign_pool;
  /* not 0: cachalot_keeper_stop() leaves the pool to the next keeper */
  uint32_t keep_pool;
  /* instead of capacity_blocks: what the pool takes in all */
  uint64_t size_bytes;
  /* not 0: devices that were added to a pool and cannot be opened are given up with their blocks */
  uint32_t without_lost_devices;
  uint32_t reserved;
} cachalot_keeper_options;

/* Creates the pool if it does not exist, and serves it on a background thread until cachalot_keeper_stop(). */
CACHALOT_API cachalot_code cachalot_keeper_start(const cachalot_keeper_options* options,
                                                 cachalot_keeper** keeper);
/* Stops the keeper. Removes the pool if this keeper created it, except with keep_pool. Null is allowed. */
CACHALOT_API cachalot_code cachalot_keeper_stop(cachalot_keeper* keeper);

/* --- A client ---------------------------------------------------------------------------------- */

typedef struct cachalot_client_options {
  /* sizeof(cachalot_client_options) */
  uint32_t struct_size;
  uint32_t host;
  /* path */
  const char* pool;
  const char* model;
  /* null: none */
  const char* salt;
  /* null: "layer_first" */
  const char* block_order;
  cachalot_geometry geometry;
  /* cachalot_hash_algorithm */
  uint32_t hash;
  /* at most 256 each; 0: as in client.h (1, 1, 64) */
  uint32_t copy_threads, workers, grant_blocks;
  /* null: none, which CACHALOT_XXHASH_CBOR does not allow */
  const char* python_hash_seed;
  /* 0: as in client.h */
  uint64_t keeper_timeout_ns, recovery_ns;
  /* file that requests are recorded into, see client.h; null: none */
  const char* record_requests;
  /* 0: each lookup is recorded as a request; else each load */
  uint32_t record_loads;
  uint32_t reserved;
  /* not 0: GPU copies of a noncoherent pool bypass the host's caches, see client.h */
  uint32_t pool_bypasses_caches;
  /* not 0: required for cachalot_begin_pinned_load() */
  uint32_t pinned_reads;
  /* not 0: also a pool of another user, or one that every user may write to, as in client.h */
  uint32_t allow_foreign_pool;
  uint32_t reserved2;
  /* not 0: groups of the model's KV heads that engines of different tensor parallelism share, see client.h */
  uint32_t share_tp;
  /* not 0: only cachalot_count_prompt() counts prompts, see client.h */
  uint32_t counts_prompts;
  /* CPUs of copies, see client.h; null: anywhere */
  const char* copy_cpus;
} cachalot_client_options;

CACHALOT_API cachalot_code cachalot_attach(const cachalot_client_options* options,
                                           cachalot_client** client);
/* Waits for all calls in flight, including queued asynchronous calls, then detaches. Cancel asynchronous
 * calls first to avoid the wait. Frees the client whatever it returns: the pointer must not be used again,
 * and outcomes that were not polled are lost. Layer loads and stores must still be ended; their other calls
 * return CACHALOT_INVALID_ARGUMENT. Null is allowed. CACHALOT_IO: see above. */
CACHALOT_API cachalot_code cachalot_detach(cachalot_client* client);
/* Of a block in the pool: with share_tp, of one group of heads. */
CACHALOT_API uint64_t cachalot_block_bytes(const cachalot_client* client);

/* Writes the hashes of a prompt's whole blocks into `hashes`, at most `capacity`, and their number into
 * `count` (it may exceed `capacity`). */
CACHALOT_API cachalot_code cachalot_hash_tokens(const cachalot_client* client,
                                                const uint32_t* tokens, size_t token_count,
                                                cachalot_block_hash* hashes, size_t capacity,
                                                size_t* count);

typedef enum cachalot_memory {
  /* memory of this process */
  CACHALOT_HOST_MEMORY = 0,
  CACHALOT_CUDA_MEMORY = 1
} cachalot_memory;

/* Where one part of a cache lies, in bytes, if no named layout describes it; see strides.h. The content of
 * layer l, page p, head h and token t of the page starts at
 *   tensors[tensor + l * layer_tensors] + offset + l * layer + p * page + h * head + t * token */
typedef struct cachalot_part_strides {
  uint32_t tensor, layer_tensors;
  uint64_t offset;
  uint64_t layer, page, head, token;
} cachalot_part_strides;

typedef struct cachalot_cache {
  /* sizeof(cachalot_cache) */
  uint32_t struct_size;
  uint32_t pages;
  /* name of a layout; null if `strides` is given */
  const char* layout;
  const cachalot_buffer* tensors;
  size_t tensor_count;
  uint32_t page_tokens, reserved;
  uint64_t page_stride_bytes;
  /* cachalot_memory: where the tensors are */
  uint32_t memory;
  /* CUDA_MEMORY: CUDA's number of the GPU */
  uint32_t device;
  /* CUDA_MEMORY: the CUstream or cudaStream_t of the copies; null: the legacy default stream. To use several
   * streams, register the cache once for each. */
  void* stream;
  /* two: of keys and of values, or of a latent and of its rope part; null if `layout` is given */
  const cachalot_part_strides* strides;
} cachalot_cache;

CACHALOT_API cachalot_code cachalot_register_cache(cachalot_client* client,
                                                   const cachalot_cache* cache, uint32_t* cache_id);
/* Waits for the calls that use the cache. CACHALOT_BUSY: a layer load or store of it is open. CACHALOT_IO: it
 * is unregistered, but its memory must be kept, see above. */
CACHALOT_API cachalot_code cachalot_unregister_cache(cachalot_client* client, uint32_t cache_id);

/* Writes how many leading blocks are in the pool. */
CACHALOT_API cachalot_code cachalot_lookup(const cachalot_client* client,
                                           const cachalot_block_hash* hashes, size_t count,
                                           size_t* blocks);
/* Brings blocks that are not in the pool, but in the storage behind it, into the pool. wait_ns 0: returns at once;
 * else when they have come, when no more will come, or after this time. Writes how many leading blocks are in the pool
 * now, and how many after them are in storage. */
CACHALOT_API cachalot_code cachalot_prefetch(cachalot_client* client,
                                             const cachalot_block_hash* hashes, size_t count,
                                             uint64_t wait_ns, size_t* in_pool, size_t* in_storage);
/* Copies the longest prefix that is in the pool into the pages; `blocks`: how many blocks are loaded.
 * pages: [count * pages per block], all different. timeout_ns: for the whole call, including all waits.
 * After CACHALOT_TIMEOUT, `blocks` leading blocks were read and validated in time and need not be computed.
 * Other errors leave `blocks` unchanged. */
CACHALOT_API cachalot_code cachalot_load(cachalot_client* client, uint32_t cache_id,
                                         const cachalot_block_hash* hashes, size_t count,
                                         const uint32_t* pages, size_t page_count,
                                         uint64_t timeout_ns, size_t* blocks);
/* Loads only some tokens. tokens[i]: the ranges of block i, ascending and disjoint; no ranges: the whole
 * block. */
typedef struct cachalot_token_range {
  /* [first, last) */
  uint32_t first, last;
} cachalot_token_range;
typedef struct cachalot_token_ranges {
  const cachalot_token_range* ranges;
  size_t count;
} cachalot_token_ranges;
CACHALOT_API cachalot_code cachalot_load_tokens(cachalot_client* client, uint32_t cache_id,
                                                const cachalot_block_hash* hashes, size_t count,
                                                const uint32_t* pages, size_t page_count,
                                                const cachalot_token_ranges* tokens,
                                                uint64_t timeout_ns, size_t* blocks);
/* Copies a chain of blocks from the pages into the pool and publishes it. parent: the block before the first
 * one; null: the chain starts a prompt. blocks: how many leading blocks are in the pool now, also after
 * CACHALOT_TIMEOUT; 0 after other errors. */
CACHALOT_API cachalot_code cachalot_store(cachalot_client* client, uint32_t cache_id,
                                          const cachalot_block_hash* parent,
                                          const cachalot_block_hash* hashes, size_t count,
                                          const uint32_t* pages, size_t page_count,
                                          uint64_t timeout_ns, size_t* blocks);
/* As cachalot_store(), and keeps the token ids of the blocks in the pool, block_tokens for each, for
 * `cachalot serve --kv-events`, if they fit into the pool's notes. */
CACHALOT_API cachalot_code cachalot_store_with_tokens(
    cachalot_client* client, uint32_t cache_id, const cachalot_block_hash* parent,
    const cachalot_block_hash* hashes, size_t count, const uint32_t* pages, size_t page_count,
    const uint32_t* tokens, size_t token_count, uint64_t timeout_ns, size_t* blocks);
/* Returns why this thread's last store left out blocks; for asynchronous stores, the last one that
 * cachalot_poll() or cachalot_wait() reported as done. CACHALOT_NO_SPACE; CACHALOT_REFUSED: the parent is not in
 * the pool; CACHALOT_OK: no block was left out, or the store failed. */
CACHALOT_API cachalot_code cachalot_last_reason(void);

/* Load layer by layer, to overlap copies with computation. Every load must be ended. Until then, or until
 * every layer is loaded, its cache cannot be unregistered. */
CACHALOT_API cachalot_code cachalot_begin_load(cachalot_client* client, uint32_t cache_id,
                                               const cachalot_block_hash* hashes, size_t count,
                                               const uint32_t* pages, size_t page_count,
                                               cachalot_layer_load** load, size_t* blocks);
/* As cachalot_begin_load(); the pool does not reuse the blocks while the load is open. Results computed from a
 * layer may then leave the step before cachalot_load_layer() has counted its blocks.
 * CACHALOT_UNSUPPORTED: pinned_reads is not set in the client's options. */
CACHALOT_API cachalot_code cachalot_begin_pinned_load(cachalot_client* client, uint32_t cache_id,
                                                      const cachalot_block_hash* hashes,
                                                      size_t count, const uint32_t* pages,
                                                      size_t page_count, cachalot_layer_load** load,
                                                      size_t* blocks);
/* GPU cache: launches the copy of a layer and returns; cachalot_load_layer() waits for it. Other caches: does
 * nothing. Results computed from the layer must not leave the step before cachalot_load_layer() has said how
 * many blocks are valid, unless the load is pinned. After an error no copy was launched, and results computed
 * from the layer are void. */
CACHALOT_API cachalot_code cachalot_start_load_layer(cachalot_layer_load* load, uint32_t layer);
/* Copies the layer, or waits for its copy. blocks: how many leading blocks are valid. */
CACHALOT_API cachalot_code cachalot_load_layer(cachalot_layer_load* load, uint32_t layer,
                                               size_t* blocks);
CACHALOT_API void cachalot_end_load(cachalot_layer_load* load);
/* Store layer by layer. Every store must be ended. */
CACHALOT_API cachalot_code cachalot_begin_store(cachalot_client* client, uint32_t cache_id,
                                                const cachalot_block_hash* parent,
                                                const cachalot_block_hash* hashes, size_t count,
                                                const uint32_t* pages, size_t page_count,
                                                cachalot_layer_store** store);
/* GPU cache: launches the copy of a layer and returns; cachalot_store_layer() or cachalot_end_store() waits for
 * it. Other caches: does nothing. */
CACHALOT_API cachalot_code cachalot_start_store_layer(cachalot_layer_store* store, uint32_t layer);
CACHALOT_API cachalot_code cachalot_store_layer(cachalot_layer_store* store, uint32_t layer);
/* Publishes the blocks if `publish` is not 0 and every layer was stored. Always frees `store`. */
CACHALOT_API cachalot_code cachalot_end_store(cachalot_layer_store* store, int publish,
                                              size_t* blocks);

/* Start a load or store on a worker thread and return at once, with a token for the calls below. */
CACHALOT_API cachalot_code cachalot_load_async(cachalot_client* client, uint32_t cache_id,
                                               const cachalot_block_hash* hashes, size_t count,
                                               const uint32_t* pages, size_t page_count,
                                               uint64_t timeout_ns, uint64_t* token);
CACHALOT_API cachalot_code cachalot_store_async(cachalot_client* client, uint32_t cache_id,
                                                const cachalot_block_hash* parent,
                                                const cachalot_block_hash* hashes, size_t count,
                                                const uint32_t* pages, size_t page_count,
                                                uint64_t timeout_ns, uint64_t* token);
/* done: 0 or 1. If 1, the returned code is that of the load or store, and the token is not valid any more. */
CACHALOT_API cachalot_code cachalot_poll(cachalot_client* client, uint64_t token, int* done,
                                         size_t* blocks);
CACHALOT_API cachalot_code cachalot_wait(cachalot_client* client, uint64_t token,
                                         uint64_t timeout_ns, size_t* blocks);
/* Stops the call before its next block; it completes with CACHALOT_CANCELLED. */
CACHALOT_API cachalot_code cachalot_cancel(cachalot_client* client, uint64_t token);

/* Objects: keys and address lists instead of pages, see client.h. All parts must be in registered buffers. A key
 * is any bytes. */
typedef struct cachalot_key {
  const void* data;
  size_t bytes;
} cachalot_key;
CACHALOT_API cachalot_code cachalot_register_buffer(cachalot_client* client, void* data,
                                                    uint64_t bytes);
CACHALOT_API cachalot_code cachalot_unregister_buffer(cachalot_client* client, void* data);
CACHALOT_API cachalot_code cachalot_exists(const cachalot_client* client, const cachalot_key* keys,
                                           size_t count, uint8_t* present);
CACHALOT_API cachalot_code cachalot_put(cachalot_client* client, cachalot_key key,
                                        const cachalot_buffer* parts, size_t count,
                                        uint64_t* bytes);
CACHALOT_API cachalot_code cachalot_get(cachalot_client* client, cachalot_key key,
                                        const cachalot_buffer* parts, size_t count,
                                        uint64_t* bytes);

/* Counts a prompt: blocks that it asked for; blocks that it used, by where they came from. See PromptBlocks in client.h.
 * CACHALOT_INVALID_ARGUMENT: counts_prompts is not set in the client's options, or more were used than asked for. */
CACHALOT_API cachalot_code cachalot_count_prompt(cachalot_client* client, uint64_t asked,
                                                 uint64_t from_pool, uint64_t from_peers,
                                                 uint64_t from_storage);
typedef struct cachalot_statistics {
  /* sizeof(cachalot_statistics) */
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t lookups, looked_up_blocks, hit_blocks;
  /* loaded_bytes: those that were copied of the blocks that loads returned, see client.h */
  uint64_t loads, loaded_blocks, loaded_bytes;
  uint64_t stores, stored_blocks, stored_bytes, duplicate_blocks;
  uint64_t stale_blocks, damaged_blocks, reattachments;
  /* in both directions, also of blocks that did not count */
  uint64_t copied_bytes;
  /* Each prompt once, see client.h. The hit rate is the sum of the used ones / prompt_blocks. */
  uint64_t prompts, prompt_blocks;
  uint64_t used_pool_blocks, used_peer_blocks, used_storage_blocks;
  /* Of copies from and to GPU caches, by the way that they went, see client.h. */
  uint64_t gpu_threads_bytes, gpu_bulk_bytes, gpu_batch_bytes, gpu_copy_engine_bytes;
} cachalot_statistics;
CACHALOT_API cachalot_code cachalot_get_statistics(const cachalot_client* client,
                                                   cachalot_statistics* statistics);

#ifdef __cplusplus
}
#endif

#endif
