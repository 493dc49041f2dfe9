/* Layer by layer, in C: copies the next layer's KV while a layer is computed. */
#include "engine_in_c.h"

int main(int argc, char** argv) {
  if (start_engine(argc > 1 ? argv[1] : "/dev/shm/cachalot_example") != 0) return 1;

  cachalot_layer_store* store = NULL;
  CHECK(cachalot_begin_store(client, cache, NULL, hashes, BLOCKS, pages, BLOCKS, &store));
  for (uint32_t layer = 0; layer < LAYERS; ++layer) {
    /* computes this layer */
    memset(memory[layer], (int)layer + 1, sizeof memory[layer]);
    CHECK(cachalot_store_layer(store, layer));
  }
  size_t blocks = 0;
  CHECK(cachalot_end_store(store, 1, &blocks));

  memset(memory, 0, sizeof memory);
  cachalot_layer_load* load = NULL;
  CHECK(cachalot_begin_load(client, cache, hashes, BLOCKS, pages, BLOCKS, &load, &blocks));
  for (uint32_t layer = 0; layer < LAYERS; ++layer) {
    CHECK(cachalot_load_layer(load, layer, &blocks));
    /* attention may begin */
    if (blocks != BLOCKS || memory[layer][0] != layer + 1) return 1;
  }
  cachalot_end_load(load);
  printf("%zu blocks stored and loaded layer by layer\n", blocks);
  return stop_engine();
}
