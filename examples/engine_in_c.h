/* A small engine for the examples in C: a keeper, a client and a cache of LAYERS tensors. */
#include <cachalot/c.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS = 6, TOKENS = 16, PAGES = 8, BLOCKS = 4, LAYER_BYTES = TOKENS * 2 * 2 * 32 * 2 };

#define CHECK(call) \
  if ((call) != CACHALOT_OK) return fprintf(stderr, "%s: %s\n", #call, cachalot_last_message()), 1

static unsigned char memory[LAYERS][PAGES * LAYER_BYTES];
static cachalot_keeper* keeper;
static cachalot_client* client;
static uint32_t cache;
static cachalot_block_hash hashes[BLOCKS];
static const uint32_t pages[BLOCKS] = {0, 1, 2, 3};

static int start_engine(const char* pool) {
  const cachalot_keeper_options serve = {.struct_size = sizeof serve,
                                         .pool = pool,
                                         .block_bytes = LAYERS * LAYER_BYTES,
                                         .capacity_blocks = 32};
  CHECK(cachalot_keeper_start(&serve, &keeper));
  cachalot_client_options options = {
      .struct_size = sizeof options, .pool = pool, .model = "example"};
  options.geometry = (cachalot_geometry){.struct_size = sizeof options.geometry,
                                         .layers = LAYERS,
                                         .kv_heads = 2,
                                         .head_dim = 32,
                                         .dtype = CACHALOT_BF16,
                                         .block_tokens = TOKENS};
  CHECK(cachalot_attach(&options, &client));
  cachalot_buffer tensors[LAYERS];
  for (int i = 0; i < LAYERS; ++i) tensors[i] = (cachalot_buffer){memory[i], sizeof memory[i]};
  const cachalot_cache description = {.struct_size = sizeof description,
                                      .pages = PAGES,
                                      .layout = "vllm_bknhc",
                                      .tensors = tensors,
                                      .tensor_count = LAYERS};
  CHECK(cachalot_register_cache(client, &description, &cache));
  const uint32_t prompt[BLOCKS * TOKENS] = {1, 2, 3};
  CHECK(cachalot_hash_tokens(client, prompt, BLOCKS * TOKENS, hashes, BLOCKS, NULL));
  return 0;
}

static int stop_engine(void) {
  CHECK(cachalot_detach(client));
  CHECK(cachalot_keeper_stop(keeper));
  return 0;
}
