/* Loads only some tokens of each block, in C. */
#include "engine_in_c.h"

int main(int argc, char** argv) {
  if (start_engine(argc > 1 ? argv[1] : "/dev/shm/cachalot_example") != 0) return 1;
  /* the forward pass */
  memset(memory, 5, sizeof memory);
  size_t blocks = 0;
  CHECK(cachalot_store(client, cache, NULL, hashes, BLOCKS, pages, BLOCKS, CACHALOT_NO_TIMEOUT,
                       &blocks));

  memset(memory, 0, sizeof memory);
  /* the first and the last tokens */
  const cachalot_token_range chosen[2] = {{0, 2}, {12, 16}};
  const cachalot_token_ranges tokens[BLOCKS] = {{chosen, 2}, {chosen, 2}, {chosen, 2}, {chosen, 2}};
  CHECK(cachalot_load_tokens(client, cache, hashes, BLOCKS, pages, BLOCKS, tokens,
                             CACHALOT_NO_TIMEOUT, &blocks));

  /* K of one token: 2 heads of 32 numbers of 2 bytes */
  const size_t row = 2 * 32 * 2;
  for (size_t token = 0; token < TOKENS; ++token) {
    const int is_chosen = token < 2 || token >= 12;
    if (memory[2][LAYER_BYTES + token * row] != (is_chosen ? 5 : 0)) return 1;
  }
  printf("6 of %d tokens of %zu blocks loaded\n", TOKENS, blocks);
  return stop_engine();
}
