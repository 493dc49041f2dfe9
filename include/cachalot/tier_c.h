/* The C API of an engine's tiers: cachalot/tier.h for C and every language that can call C. The words are the
 * same; what a call does in detail is described there. Conventions: c.h.
 */
#ifndef CACHALOT_TIER_C_H
#define CACHALOT_TIER_C_H

#include <cachalot/c.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cachalot_tier cachalot_tier;

/* An option by its name in the table of docs/guide/tiers.md: {"host_ratio", "2"}. */
typedef struct cachalot_tier_option {
  const char* name;
  const char* value;
} cachalot_tier_option;

/* @param device   L1, in memory of this process or of a GPU
 * @param shared   names, geometry, and the pool; "": none is attached yet
 * @param ranks    the path of the ranks' file, see join_ranks(); null: one rank. The rank and their number are
 *                 the geometry's tp_rank and tp_size */
CACHALOT_API cachalot_code cachalot_tier_make(const cachalot_cache* device,
                                              const cachalot_client_options* shared,
                                              const cachalot_tier_option* options,
                                              size_t option_count, const char* ranks,
                                              cachalot_tier** tier);
/* Ends fetches and writes. Null is allowed. */
CACHALOT_API void cachalot_tier_destroy(cachalot_tier* tier);

CACHALOT_API cachalot_code cachalot_tier_attach_pool(cachalot_tier* tier, const char* pool);
CACHALOT_API cachalot_code cachalot_tier_detach_pool(cachalot_tier* tier);
/* Options of prefetch_* and write_policy, selective_uses; others are refused. */
CACHALOT_API cachalot_code cachalot_tier_set(cachalot_tier* tier,
                                             const cachalot_tier_option* options,
                                             size_t option_count);

/* @param extra  bytes that separate equal tokens; may be null
 * @param round  the same on all ranks; 0: requests are numbered */
CACHALOT_API cachalot_code cachalot_tier_open(cachalot_tier* tier, const uint32_t* tokens,
                                              size_t count, const void* extra, size_t extra_bytes,
                                              int32_t priority, uint64_t round, uint64_t* request);
/* Waits until start() would not wait for L3, at most so long; 0: only asks. */
CACHALOT_API cachalot_code cachalot_tier_wait_ready(cachalot_tier* tier, uint64_t request,
                                                    uint64_t timeout_ns, int* is_ready);

typedef struct cachalot_tier_start_result {
  uint64_t cached_tokens, device_tokens, host_tokens, shared_tokens;
} cachalot_tier_start_result;

/* @shape pages: room for those of the prompt's tokens, rounded up to blocks; page_count: how many there are, also
 *        when they do not fit: then CACHALOT_INVALID_ARGUMENT, nothing is started */
CACHALOT_API cachalot_code cachalot_tier_start(cachalot_tier* tier, uint64_t request,
                                               cachalot_tier_start_result* result, uint32_t* pages,
                                               size_t room, size_t* page_count);
/* On a GPU it does not wait for the copy: the stream of the cache follows it. */
CACHALOT_API cachalot_code cachalot_tier_wait_layer(cachalot_tier* tier, uint64_t request,
                                                    uint32_t layer);
/* As start: all pages of the request. Where they do not fit, the request may have grown. */
CACHALOT_API cachalot_code cachalot_tier_grow(cachalot_tier* tier, uint64_t request,
                                              uint64_t tokens, uint32_t* pages, size_t room,
                                              size_t* page_count);
CACHALOT_API cachalot_code cachalot_tier_commit(cachalot_tier* tier, uint64_t request,
                                                const uint32_t* tokens, size_t count);
CACHALOT_API cachalot_code cachalot_tier_close(cachalot_tier* tier, uint64_t request);
CACHALOT_API cachalot_code cachalot_tier_flush(cachalot_tier* tier, uint64_t timeout_ns);
CACHALOT_API cachalot_code cachalot_tier_clear(cachalot_tier* tier);

/* As TierStatistics. */
typedef struct cachalot_tier_statistics {
  /* sizeof(cachalot_tier_statistics) */
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t requests, prompt_tokens, device_tokens, host_tokens, shared_tokens;
  uint64_t device_blocks, free_device_blocks, host_blocks, free_host_blocks;
  uint64_t evicted_device_blocks, evicted_host_blocks, demoted_blocks;
  uint64_t loaded_bytes, backed_up_bytes, fetched_bytes, unused_fetched_bytes, written_bytes;
  uint64_t unwritten_blocks, fetches, skipped_fetches, recomputed_tokens;
  uint64_t ready_wait_ns, layer_wait_ns;
} cachalot_tier_statistics;
CACHALOT_API cachalot_code cachalot_tier_get_statistics(cachalot_tier* tier,
                                                        cachalot_tier_statistics* statistics);

/* The table of options, one by one: the next name, values, default and meaning; null after the last. Static. */
CACHALOT_API const char* cachalot_tier_option_name(size_t index);
CACHALOT_API const char* cachalot_tier_option_values(size_t index);
CACHALOT_API const char* cachalot_tier_option_default(size_t index);
CACHALOT_API const char* cachalot_tier_option_meaning(size_t index);

#ifdef __cplusplus
}
#endif

#endif
