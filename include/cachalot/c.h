/* Cachalot for C and everything that speaks C: the client of include/cachalot/client.h, with the same
 * words. Stable: what is here keeps its meaning and its layout; structs that may grow begin with their
 * size, and what a caller does not know is zero.
 *
 * Every function that can fail returns a code; cachalot_last_message() has the words for the calling
 * thread's last failure. Strings are UTF-8 and end with a zero. Nothing is thrown, nothing printed.
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

/* Numbers never change; new ones may come. */
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

/* "no_keeper" and so on; "unknown" for a number that is no code. */
CACHALOT_API const char* cachalot_code_name(cachalot_code code);
/* Of this thread's last call that failed: one line that names the thing, the value and what was
 * expected. Good until this thread's next failure; never null. */
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

/* What one rank keeps of a block; see KvGeometry. Zeros where a field does not apply; sizes and
 * replicas of 0 mean 1. */
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

/* Of a cache on a GPU: after CACHALOT_IO nothing is known of a copy, which may be under way until the process ends.
 * Until then the memory of all caches on this GPU must be kept: not freed, and used for nothing else.
 * cachalot_unregister_cache() and cachalot_detach() say it also of copies that nobody heard of; who gives such
 * memory away asks one of them before, when its layer loads and stores have ended. Calls on this GPU's
 * caches fail from then on. */
/* any thread, all at once, but for detaching */
typedef struct cachalot_client cachalot_client;
typedef struct cachalot_layer_load cachalot_layer_load;
typedef struct cachalot_layer_store cachalot_layer_store;
typedef struct cachalot_keeper cachalot_keeper;

/* --- A keeper in this process ------------------------------------------------------------------ */

typedef struct cachalot_keeper_options {
  /* sizeof(cachalot_keeper_options) */
  uint32_t struct_size;
  /* slots; 0: 16 */
  uint32_t clients;
  /* path; made if it is not there */
  const char* pool;
  uint64_t block_bytes, capacity_blocks;
  /* "coherent" (null) or "noncoherent" */
  const char* domain;
  /* null: "lru" */
  const char* policy;
} cachalot_keeper_options;

/* Makes the pool if there is none, and serves it by a thread of its own until cachalot_keeper_stop(). */
CACHALOT_API cachalot_code cachalot_keeper_start(const cachalot_keeper_options* options,
                                                 cachalot_keeper** keeper);
/* Ends the keeper, and removes the pool if it was made by it. Null is allowed. */
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
  /* null: none */
  const char* python_hash_seed;
  /* 0: as in client.h */
  uint64_t keeper_timeout_ns, recovery_ns;
  /* a file that requests are recorded in, as in client.h; null: none */
  const char* record_requests;
  /* 0: a lookup stands for a request; else a load does */
  uint32_t record_loads;
  uint32_t reserved;
  /* not 0: of a noncoherent pool that GPUs copy from and into, as in client.h */
  uint32_t pool_bypasses_caches;
  /* not 0: cachalot_begin_pinned_load() will be used */
  uint32_t pinned_reads;
} cachalot_client_options;

CACHALOT_API cachalot_code cachalot_attach(const cachalot_client_options* options,
                                           cachalot_client** client);
/* Waits for the calls under way, queued ones that go on by themselves too (cancel what is not to be waited
 * for), detaches and frees the client, whatever it returns: the pointer must not be used again, and what
 * became of calls that were not polled or waited for is not known. CACHALOT_IO: see above. Layer loads and stores
 * that are still there are refused from then on (CACHALOT_INVALID_ARGUMENT), and have to be ended all the same.
 * Null is allowed. */
CACHALOT_API cachalot_code cachalot_detach(cachalot_client* client);
CACHALOT_API uint64_t cachalot_block_bytes(const cachalot_client* client);

/* The hashes of the whole blocks of a prompt: at most `capacity` of them into `hashes`, and into
 * `count` how many there are. */
CACHALOT_API cachalot_code cachalot_hash_tokens(const cachalot_client* client,
                                                const uint32_t* tokens, size_t token_count,
                                                cachalot_block_hash* hashes, size_t capacity,
                                                size_t* count);

typedef enum cachalot_memory {
  /* this process's */
  CACHALOT_HOST_MEMORY = 0,
  CACHALOT_CUDA_MEMORY = 1
} cachalot_memory;

/* Where one part of a cache lies, in bytes, if no layout describes it; see strides.h. What a head keeps of a
 * token begins at
 *   tensors[tensor + l * layer_tensors] + offset + l * layer + p * page + h * head + t * token
 * for layer l, page p, head h and token t of its page. */
typedef struct cachalot_part_strides {
  uint32_t tensor, layer_tensors;
  uint64_t offset;
  uint64_t layer, page, head, token;
} cachalot_part_strides;

typedef struct cachalot_cache {
  /* sizeof(cachalot_cache) */
  uint32_t struct_size;
  uint32_t pages;
  /* null if strides are given */
  const char* layout;
  const cachalot_buffer* tensors;
  size_t tensor_count;
  uint32_t page_tokens, reserved;
  uint64_t page_stride_bytes;
  /* cachalot_memory: where the tensors are */
  uint32_t memory;
  /* CUDA_MEMORY: the GPU that they are on, by CUDA's number of it */
  uint32_t device;
  /* CUDA_MEMORY: the CUstream or cudaStream_t that copies are behind; null: the legacy default one. For
   * several streams the cache is registered once for each. */
  void* stream;
  /* Instead of a layout: two, of keys and values, or of a latent and its rope part. Null: `layout` is given. */
  const cachalot_part_strides* strides;
} cachalot_cache;

CACHALOT_API cachalot_code cachalot_register_cache(cachalot_client* client,
                                                   const cachalot_cache* cache, uint32_t* cache_id);
/* Waits for the calls that use it. CACHALOT_BUSY: a layer load or store of it is open, see below. CACHALOT_IO: it is
 * unregistered, and its memory must be kept, see above. */
CACHALOT_API cachalot_code cachalot_unregister_cache(cachalot_client* client, uint32_t cache_id);

/* How many leading blocks are in the pool. */
CACHALOT_API cachalot_code cachalot_lookup(const cachalot_client* client,
                                           const cachalot_block_hash* hashes, size_t count,
                                           size_t* blocks);
/* pages: [count * pages a block], all different. timeout_ns: for the whole call, whatever it waits for.
 * After CACHALOT_TIMEOUT `blocks` is how many leading blocks were read and validated in time: they are
 * right, and need not be computed. After other errors it is as it was. */
CACHALOT_API cachalot_code cachalot_load(cachalot_client* client, uint32_t cache_id,
                                         const cachalot_block_hash* hashes, size_t count,
                                         const uint32_t* pages, size_t page_count,
                                         uint64_t timeout_ns, size_t* blocks);
/* Only some tokens: of block i the ranges tokens[i], ascending and disjoint; none: all of them. */
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
/* parent: null for the beginning of a prompt. blocks: how many leading ones are in the pool now, also
 * after CACHALOT_TIMEOUT; after other errors 0. */
CACHALOT_API cachalot_code cachalot_store(cachalot_client* client, uint32_t cache_id,
                                          const cachalot_block_hash* parent,
                                          const cachalot_block_hash* hashes, size_t count,
                                          const uint32_t* pages, size_t page_count,
                                          uint64_t timeout_ns, size_t* blocks);
/* Why this thread's last store, or call that was polled or waited for and is done, left blocks out:
 * CACHALOT_NO_SPACE; CACHALOT_REFUSED, as the parent is not in the pool; CACHALOT_OK: it left out none, or
 * failed. */
CACHALOT_API cachalot_code cachalot_last_reason(void);

/* Layer by layer. What is begun is ended, in any case; until then, or until every layer is loaded, its cache
 * is not unregistered. */
CACHALOT_API cachalot_code cachalot_begin_load(cachalot_client* client, uint32_t cache_id,
                                               const cachalot_block_hash* hashes, size_t count,
                                               const uint32_t* pages, size_t page_count,
                                               cachalot_layer_load** load, size_t* blocks);
/* The same, and the blocks are kept while it is open: what is computed from them may leave the step before they
 * are counted. CACHALOT_UNSUPPORTED: the client options do not say pinned_reads. */
CACHALOT_API cachalot_code cachalot_begin_pinned_load(cachalot_client* client, uint32_t cache_id,
                                                      const cachalot_block_hash* hashes,
                                                      size_t count, const uint32_t* pages,
                                                      size_t page_count, cachalot_layer_load** load,
                                                      size_t* blocks);
/* Of a GPU's cache: launches the copy of a layer and returns; cachalot_load_layer() waits for it, and before
 * it has said how many blocks are right nothing that was computed from the layer may leave the step, unless
 * the load is pinned. Does nothing for other caches. After an error nothing was launched, and what is computed
 * from the layer is void. */
CACHALOT_API cachalot_code cachalot_start_load_layer(cachalot_layer_load* load, uint32_t layer);
CACHALOT_API cachalot_code cachalot_load_layer(cachalot_layer_load* load, uint32_t layer,
                                               size_t* blocks);
CACHALOT_API void cachalot_end_load(cachalot_layer_load* load);
CACHALOT_API cachalot_code cachalot_begin_store(cachalot_client* client, uint32_t cache_id,
                                                const cachalot_block_hash* parent,
                                                const cachalot_block_hash* hashes, size_t count,
                                                const uint32_t* pages, size_t page_count,
                                                cachalot_layer_store** store);
/* The same for a store; cachalot_store_layer() or cachalot_end_store() waits. */
CACHALOT_API cachalot_code cachalot_start_store_layer(cachalot_layer_store* store, uint32_t layer);
CACHALOT_API cachalot_code cachalot_store_layer(cachalot_layer_store* store, uint32_t layer);
/* Publishes, if `publish` is not 0 and every layer was stored, and frees `store`. */
CACHALOT_API cachalot_code cachalot_end_store(cachalot_layer_store* store, int publish,
                                              size_t* blocks);

/* Without waiting. */
CACHALOT_API cachalot_code cachalot_load_async(cachalot_client* client, uint32_t cache_id,
                                               const cachalot_block_hash* hashes, size_t count,
                                               const uint32_t* pages, size_t page_count,
                                               uint64_t timeout_ns, uint64_t* token);
CACHALOT_API cachalot_code cachalot_store_async(cachalot_client* client, uint32_t cache_id,
                                                const cachalot_block_hash* parent,
                                                const cachalot_block_hash* hashes, size_t count,
                                                const uint32_t* pages, size_t page_count,
                                                uint64_t timeout_ns, uint64_t* token);
/* done: 0 or 1. The code is the call's own once it is done, and then the token is gone. */
CACHALOT_API cachalot_code cachalot_poll(cachalot_client* client, uint64_t token, int* done,
                                         size_t* blocks);
CACHALOT_API cachalot_code cachalot_wait(cachalot_client* client, uint64_t token,
                                         uint64_t timeout_ns, size_t* blocks);
CACHALOT_API cachalot_code cachalot_cancel(cachalot_client* client, uint64_t token);

/* Keys and lists of addresses, all of them in registered buffers. A key is any bytes. */
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

typedef struct cachalot_statistics {
  /* sizeof(cachalot_statistics) */
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t lookups, looked_up_blocks, hit_blocks;
  uint64_t loads, loaded_blocks, loaded_bytes;
  uint64_t stores, stored_blocks, stored_bytes, duplicate_blocks;
  uint64_t stale_blocks, damaged_blocks, reattachments;
} cachalot_statistics;
CACHALOT_API cachalot_code cachalot_get_statistics(const cachalot_client* client,
                                                   cachalot_statistics* statistics);

#ifdef __cplusplus
}
#endif

#endif
