/* An engine whose KV cache has two tiers, device and host memory, in C; a pool is attached while it serves.
 *
 *   tiers /dev/shm/pool
 */
#include <cachalot/tier_c.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS = 4, TOKENS = 16, PAGES = 16, BLOCKS = 8, LAYER_BYTES = TOKENS * 2 * 2 * 64 * 2 };

static unsigned char memory[LAYERS][PAGES * LAYER_BYTES];

/* Serves a prompt whose first token is `first`; the bytes of its blocks are `value`. */
static int serve(cachalot_tier* tier, uint32_t first, unsigned char value,
                 cachalot_tier_start_result* found) {
  uint32_t prompt[BLOCKS * TOKENS + 1], pages[BLOCKS + 1];
  for (uint32_t i = 0; i < BLOCKS * TOKENS + 1; ++i) prompt[i] = first + i;
  uint64_t request = 0;
  size_t count = 0;
  if (cachalot_tier_open(tier, prompt, BLOCKS * TOKENS + 1, NULL, 0, 0, 0, &request)) return 1;
  if (cachalot_tier_wait_ready(tier, request, CACHALOT_NO_TIMEOUT, NULL)) return 1;
  if (cachalot_tier_start(tier, request, found, pages, BLOCKS + 1, &count)) return 1;
  for (uint32_t layer = 0; layer < LAYERS; ++layer) {
    if (cachalot_tier_wait_layer(tier, request, layer)) return 1;
    for (uint32_t block = 0; block < BLOCKS; ++block) {
      unsigned char* page = memory[layer] + pages[block] * LAYER_BYTES;
      /* the forward pass */
      if (block >= found->cached_tokens / TOKENS) memset(page, value, LAYER_BYTES);
      if (page[0] != value || page[LAYER_BYTES - 1] != value)
        return fprintf(stderr, "wrong bytes\n"), 1;
    }
  }
  if (cachalot_tier_commit(tier, request, prompt, BLOCKS * TOKENS + 1)) return 1;
  if (cachalot_tier_close(tier, request)) return 1;
  printf("%d tokens from device, %d from host memory, of these %d from the pool\n",
         (int)found->device_tokens, (int)found->host_tokens, (int)found->shared_tokens);
  return cachalot_tier_flush(tier, CACHALOT_NO_TIMEOUT) != CACHALOT_OK;
}

int main(int argc, char** argv) {
  const char* pool = argc > 1 ? argv[1] : "/dev/shm/cachalot_example_tiers_c";
  cachalot_client_options shared = {.struct_size = sizeof shared, .pool = "", .model = "example"};
  shared.geometry = (cachalot_geometry){.struct_size = sizeof shared.geometry,
                                        .layers = LAYERS,
                                        .kv_heads = 2,
                                        .head_dim = 64,
                                        .dtype = CACHALOT_BF16,
                                        .block_tokens = TOKENS};
  cachalot_buffer tensors[LAYERS];
  for (int i = 0; i < LAYERS; ++i) tensors[i] = (cachalot_buffer){memory[i], sizeof memory[i]};
  const cachalot_cache device = {.struct_size = sizeof device,
                                 .pages = PAGES,
                                 .layout = "vllm_bknhc",
                                 .tensors = tensors,
                                 .tensor_count = LAYERS};
  const cachalot_tier_option options[] = {
      {"host_ratio", "4"}, {"prefetch_threshold", "16"}, {"prefetch_policy", "wait_complete"}};
  const cachalot_keeper_options keeper_options = {.struct_size = sizeof keeper_options,
                                                  .pool = pool,
                                                  .block_bytes = (uint64_t)LAYERS * LAYER_BYTES,
                                                  .capacity_blocks = 256};
  cachalot_keeper* keeper = NULL;
  cachalot_tier *one = NULL, *other = NULL;
  cachalot_tier_start_result found = {0};
  int failed = cachalot_keeper_start(&keeper_options, &keeper) != CACHALOT_OK ||
               cachalot_tier_make(&device, &shared, options, 3, NULL, &one) != CACHALOT_OK ||
               cachalot_tier_attach_pool(one, pool) != CACHALOT_OK || serve(one, 1, 11, &found) ||
               serve(one, 1000, 22, &found) || serve(one, 1, 11, &found);
  /* Device memory has room for one prompt: the other one comes back from host memory. */
  failed = failed || found.host_tokens != BLOCKS * TOKENS;
  cachalot_tier_destroy(one);
  shared.pool = pool;
  memset(memory, 0, sizeof memory);
  /* A restarted engine. */
  failed = failed ||
           cachalot_tier_make(&device, &shared, options, 3, NULL, &other) != CACHALOT_OK ||
           serve(other, 1, 11, &found) || found.shared_tokens != BLOCKS * TOKENS;
  if (failed) fprintf(stderr, "%s\n", cachalot_last_message());
  cachalot_tier_destroy(other);
  if (keeper != NULL) cachalot_keeper_stop(keeper);
  return failed;
}
