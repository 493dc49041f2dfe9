/* Two processes share the KV cache of a prompt, in C.
 *
 *   cachalot serve --pool /dev/shm/kv --create --block-bytes 32KiB --capacity 1GiB &
 *   share_prefix /dev/shm/kv
 */
#define _POSIX_C_SOURCE 200809L
#include <cachalot/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LAYERS = 4, TOKENS = 16, PAGES = 8, BLOCKS = 6, LAYER_BYTES = TOKENS * 2 * 2 * 32 * 2 };

static int run_engine(const char* pool, int computes) {
  cachalot_client_options options = {
      .struct_size = sizeof options, .pool = pool, .model = "share_prefix.c@1"};
  options.geometry = (cachalot_geometry){.struct_size = sizeof options.geometry,
                                         .layers = LAYERS,
                                         .kv_heads = 2,
                                         .head_dim = 32,
                                         .dtype = CACHALOT_BF16,
                                         .block_tokens = TOKENS};
  cachalot_client* client = NULL;
  if (cachalot_attach(&options, &client) != CACHALOT_OK)
    return fprintf(stderr, "%s\n", cachalot_last_message()), 1;

  static unsigned char memory[LAYERS][PAGES * LAYER_BYTES];
  cachalot_buffer tensors[LAYERS];
  for (int i = 0; i < LAYERS; ++i) tensors[i] = (cachalot_buffer){memory[i], sizeof memory[i]};
  const cachalot_cache description = {.struct_size = sizeof description,
                                      .pages = PAGES,
                                      .layout = "vllm_bknhc",
                                      .tensors = tensors,
                                      .tensor_count = LAYERS};
  uint32_t cache = 0, prompt[BLOCKS * TOKENS], pages[BLOCKS];
  for (uint32_t i = 0; i < BLOCKS * TOKENS; ++i) prompt[i] = i;
  for (uint32_t i = 0; i < BLOCKS; ++i) pages[i] = computes ? i : PAGES - 1 - i;
  cachalot_block_hash hashes[BLOCKS];
  size_t blocks = 0;
  cachalot_code code = cachalot_register_cache(client, &description, &cache);
  if (code == CACHALOT_OK)
    code = cachalot_hash_tokens(client, prompt, BLOCKS * TOKENS, hashes, BLOCKS, NULL);
  if (code == CACHALOT_OK && computes) {
    /* the forward pass */
    memset(memory, 42, sizeof memory);
    code = cachalot_store(client, cache, NULL, hashes, BLOCKS, pages, BLOCKS, CACHALOT_NO_TIMEOUT,
                          &blocks);
  } else if (code == CACHALOT_OK) {
    code =
        cachalot_load(client, cache, hashes, BLOCKS, pages, BLOCKS, CACHALOT_NO_TIMEOUT, &blocks);
  }
  if (code != CACHALOT_OK) return fprintf(stderr, "%s\n", cachalot_last_message()), 1;
  printf("%s %zu of %d blocks\n", computes ? "stored" : "loaded", blocks, BLOCKS);
  cachalot_detach(client);
  return blocks == BLOCKS && memory[3][(PAGES - 2) * LAYER_BYTES] == 42 ? 0 : 1;
}

int main(int argc, char** argv) {
  const char* pool = argc > 1 ? argv[1] : "/dev/shm/kv";
  for (int computes = 1; computes >= 0; --computes) {
    if (fork() == 0) exit(run_engine(pool, computes));
    int status = 0;
    if (wait(&status) < 0 || status != 0) return 1;
  }
  return 0;
}
