/* KV memory without a page table: two requests with a common prompt in contiguous addresses, and the memory
 * that sharing saves. Runs in this machine's memory. */
#include <cachalot/vmm.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LAYERS 4
#define PART_BYTES 2048 /* 8 heads of 128 numbers of 2 bytes */
#define PROMPT 700
#define STEPS 600

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, cachalot_last_message());
  return 1;
}

static uint64_t view_offset[LAYERS][2], stride;

/* One token's keys and values, as a model would compute them. */
static void write_token(uint64_t base, uint64_t token, int request) {
  for (int layer = 0; layer < LAYERS; ++layer) {
    for (int part = 0; part < 2; ++part) {
      memset((char*)(uintptr_t)(base + view_offset[layer][part] + token * stride),
             (int)(token * 7 + (uint64_t)(layer + 2 * part + request)), PART_BYTES);
    }
  }
}
static int is_token(uint64_t base, uint64_t token, int request) {
  for (int layer = 0; layer < LAYERS; ++layer) {
    for (int part = 0; part < 2; ++part) {
      const unsigned char* row =
          (const unsigned char*)(uintptr_t)(base + view_offset[layer][part] + token * stride);
      const unsigned char expected =
          (unsigned char)(token * 7 + (uint64_t)(layer + 2 * part + request));
      if (row[0] != expected || row[PART_BYTES - 1] != expected) return 0;
    }
  }
  return 1;
}

int main(void) {
  cachalot_vmm_options options = {.struct_size = sizeof options,
                                  .layers = LAYERS,
                                  .part_bytes = {PART_BYTES, PART_BYTES},
                                  .max_tokens = 4096,
                                  .layout = "folded"};
  cachalot_vmm* vmm = NULL;
  if (cachalot_vmm_open(&options, &vmm) != CACHALOT_OK) return failed("open");
  for (uint32_t layer = 0; layer < LAYERS; ++layer) {
    for (uint32_t part = 0; part < 2; ++part) {
      if (cachalot_vmm_view(vmm, layer, part, &view_offset[layer][part], &stride) != CACHALOT_OK) {
        return failed("view");
      }
    }
  }

  /* A request: memory for its prompt, then for each token one step ahead. */
  cachalot_vmm_range *first = NULL, *second = NULL;
  uint64_t first_base = 0, second_base = 0, shared = 0;
  if (cachalot_vmm_reserve(vmm, PROMPT, 4096, &first, &first_base) != CACHALOT_OK)
    return failed("reserve");
  for (uint64_t token = 0; token < PROMPT; ++token) write_token(first_base, token, 0);
  for (uint64_t token = PROMPT; token < PROMPT + STEPS; ++token) {
    if (cachalot_vmm_commit(first, token + 1) != CACHALOT_OK) return failed("commit");
    if (cachalot_vmm_prepare(first, token + 2) != CACHALOT_OK) return failed("prepare");
    write_token(first_base, token, 0);
  }

  /* Another request whose prompt starts with the same tokens. */
  if (cachalot_vmm_reserve(vmm, 0, 4096, &second, &second_base) != CACHALOT_OK)
    return failed("reserve");
  if (cachalot_vmm_alias(second, first, PROMPT, &shared) != CACHALOT_OK) return failed("alias");
  if (cachalot_vmm_commit(second, PROMPT + 50) != CACHALOT_OK) return failed("commit");
  for (uint64_t token = PROMPT; token < PROMPT + 50; ++token) write_token(second_base, token, 1);

  for (uint64_t token = 0; token < PROMPT + STEPS; ++token) {
    if (!is_token(first_base, token, 0))
      return fprintf(stderr, "token %" PRIu64 " is lost\n", token), 1;
  }
  for (uint64_t token = 0; token < PROMPT + 50; ++token) {
    if (!is_token(second_base, token, token < PROMPT ? 0 : 1)) {
      return fprintf(stderr, "token %" PRIu64 " of the second is wrong\n", token), 1;
    }
  }

  cachalot_vmm_statistics statistics = {.struct_size = sizeof statistics};
  if (cachalot_vmm_get_statistics(vmm, &statistics) != CACHALOT_OK) return failed("statistics");
  printf("%u ranges, %" PRIu64 " MiB used, %" PRIu64 " MiB saved by sharing %" PRIu64
         " tokens, %" PRIu64 " of %d steps waited\n",
         statistics.ranges, statistics.used_bytes >> 20, statistics.shared_bytes >> 20, shared,
         statistics.waits, STEPS);
  if (shared != PROMPT || statistics.shared_bytes == 0) return 1;
  cachalot_vmm_release(first);
  cachalot_vmm_release(second);
  return cachalot_vmm_close(vmm) == CACHALOT_OK ? 0 : failed("close");
}
