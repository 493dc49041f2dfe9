/* KV memory on a device, for engines: each request's keys and values lie in addresses without a gap, so
 * that attention needs no page table; physical chunks are mapped under them as they grow, are shared
 * where prefixes are the same, and can be traded with other processes on the same device.
 *
 *   reserve   addresses for a request, and memory for its prompt
 *   prepare   the next step's memory, mapped in the background while this step runs
 *   commit    the memory is there when it returns
 *   alias     the first tokens of another request, by sharing its chunks
 *   decommit  memory behind so many tokens goes back
 *   release   the request has ended; its chunks wait for the next one, mapped
 *
 * As in c.h: a function that can fail returns a code, cachalot_last_message() has the words; structs
 * begin with their size, and what a caller does not know is zero.
 *
 * A cachalot_vmm may be used by any thread, a range by one at a time. Memory is not zeroed between
 * requests. Nothing here waits for a GPU's kernels: decommit and release only what none of them uses.
 */
#ifndef CACHALOT_VMM_H
#define CACHALOT_VMM_H

#include <cachalot/c.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cachalot_vmm cachalot_vmm;
typedef struct cachalot_vmm_range cachalot_vmm_range;

/* Copies on the device, and returns when it is done: CACHALOT_OK, or why not. Several threads may be in it. */
typedef cachalot_code (*cachalot_vmm_copy)(void* context, uint64_t to, uint64_t from,
                                           uint64_t bytes);

typedef struct cachalot_vmm_options {
  /* sizeof(cachalot_vmm_options) */
  uint32_t struct_size;
  /* at most 65,536 */
  uint32_t layers;
  uint64_t part_bytes
      /* that a layer keeps of a token: keys and values; of a latent: its bytes and 0 */
      [2];
  /* of the longest request: every range has addresses for so many */
  uint64_t max_tokens;
  const char*
      /* null, "memfd": this machine's memory; "cuda:N"; "model": none, for counting */
      device;
  const char*
      /* null, "folded": all layers of a token side by side; "per_layer", "folded_parts" */
      layout;
  /* 0: 2 MiB */
  uint64_t chunk_bytes;
  uint64_t
      /* of physical memory; 0: as much as there is. With a budget: of all its users */
      limit_bytes;
  /* a file, or shm:NAME, by which processes share limit_bytes; null: none */
  const char* budget;
  /* of the budget: what this process gets back when it asks */
  uint64_t guaranteed_bytes;
  /* physical memory that the background keeps at hand */
  uint64_t ready_bytes;
  uint64_t
      /* that released ranges may keep mapped; 0: no limit; less than a chunk: nothing */
      idle_bytes;
  cachalot_vmm_copy
      /* for the tail of an alias; null: memcpy on memfd, elsewhere no tail is shared */
      copy;
  void* copy_context;
} cachalot_vmm_options;

/* Starts two threads. CACHALOT_UNSUPPORTED: there is no such device here; CACHALOT_INVALID_ARGUMENT: sizes
 * that do not fit each other, or another budget than the file's. */
CACHALOT_API cachalot_code cachalot_vmm_open(const cachalot_vmm_options* options,
                                             cachalot_vmm** vmm);
/* Gives everything back, ranges too: their pointers must not be used again. Null is allowed. */
CACHALOT_API cachalot_code cachalot_vmm_close(cachalot_vmm* vmm);

/* Where token t of a layer's part lies: at base + *offset + t * *stride, in every range of this vmm. */
CACHALOT_API cachalot_code cachalot_vmm_view(const cachalot_vmm* vmm, uint32_t layer, uint32_t part,
                                             uint64_t* offset, uint64_t* stride);

/* Addresses for a request that will have `max_tokens` at most, with memory for `tokens` at once: of a released
 * range, if one fits. With 0 tokens it has none, and alias can put another's there. *base does not change;
 * *range is null where it fails.
 * CACHALOT_NO_SPACE: too few chunks, whatever idle ranges gave up; others of the budget have been asked, so
 * that the same call may succeed later. */
CACHALOT_API cachalot_code cachalot_vmm_reserve(cachalot_vmm* vmm, uint64_t tokens,
                                                uint64_t max_tokens, cachalot_vmm_range** range,
                                                uint64_t* base);
/* The pointer must not be used again. Null is allowed. */
CACHALOT_API void cachalot_vmm_release(cachalot_vmm_range* range);

/* Memory for `tokens` is there. Where it was prepared that costs 10 ns; a call that has to wait is counted. */
CACHALOT_API cachalot_code cachalot_vmm_commit(cachalot_vmm_range* range, uint64_t tokens);
/* Returns at once; the next commit says what went wrong. */
CACHALOT_API cachalot_code cachalot_vmm_prepare(cachalot_vmm_range* range, uint64_t tokens);
/* No memory behind `tokens`, but for the rest of their last chunks; of more than there are, nothing is done.
 * CACHALOT_INVALID_ARGUMENT: it would cut off tokens that are shared; 0 is always allowed. */
CACHALOT_API cachalot_code cachalot_vmm_decommit(cachalot_vmm_range* range, uint64_t tokens);

/* Puts the first `tokens` of `from` at the beginning of `to`, which has no memory. Chunks that are full of them are
 * shared, and can be written in neither range from now on; what is behind the last full chunk is copied, or
 * left out if there is no way to copy. *shared: how many tokens are there. */
CACHALOT_API cachalot_code cachalot_vmm_alias(cachalot_vmm_range* to, cachalot_vmm_range* from,
                                              uint64_t tokens, uint64_t* shared);

typedef struct cachalot_vmm_statistics {
  /* sizeof(cachalot_vmm_statistics) */
  uint32_t struct_size;
  /* reserved and not released */
  uint32_t ranges;
  /* that this process has of the device */
  uint64_t physical_bytes;
  /* of those: mapped, each chunk once */
  uint64_t used_bytes;
  /* of those: by released ranges */
  uint64_t idle_bytes;
  /* at hand */
  uint64_t ready_bytes;
  /* that the device did not unmap */
  uint64_t stuck_bytes;
  /* mapped from another range now: what sharing saves */
  uint64_t shared_bytes;
  /* and since the beginning */
  uint64_t shared_total_bytes;
  /* of tails */
  uint64_t copied_bytes;
  /* that others of the budget ask for, of what is beyond the guarantee */
  uint64_t asked_bytes;
  uint64_t prepared, waits,
      /* times that the background mapped; that a commit waited, and how long */
      wait_ns;
  /* calls of the driver */
  uint64_t creates, maps, accesses, unmaps;
} cachalot_vmm_statistics;
CACHALOT_API cachalot_code cachalot_vmm_get_statistics(const cachalot_vmm* vmm,
                                                       cachalot_vmm_statistics* statistics);

/* A file descriptor (eventfd) that becomes readable when another process of the budget asks for memory which
 * only ranges of running requests hold: idle ones have been given up then. An 8-byte read gives the bytes that
 * are asked for, and makes it wait again. Decommit or release what can be spared, or do nothing. It
 * is closed with the vmm. */
CACHALOT_API cachalot_code cachalot_vmm_notify(cachalot_vmm* vmm, int* fd);

#ifdef __cplusplus
}
#endif

#endif
