/* KV memory on a device: the keys and values of a request lie in contiguous addresses, so that attention needs
 * no page table. Physical chunks are mapped as the request grows, are shared between requests with the same
 * prefix, and can be traded with other processes on the same device.
 *
 *   reserve   addresses for a request, and memory for its prompt
 *   prepare   maps the next step's memory in the background while this step runs
 *   commit    returns when the memory is mapped
 *   alias     gives a request the first tokens of another one, by sharing its chunks
 *   decommit  unmaps the memory after a number of tokens
 *   release   ends the request; its chunks stay mapped for the next one
 *
 * As in c.h, a function that can fail returns a code, cachalot_last_message() returns the message, and structs
 * start with their size; fields that the caller's struct does not have count as zero.
 *
 * A cachalot_vmm may be used by any threads simultaneously, a range by one thread at a time. Memory is not
 * zeroed between requests. No call waits for kernels: decommit and release only memory that no kernel uses.
 */
#ifndef CACHALOT_VMM_H
#define CACHALOT_VMM_H

#include <cachalot/c.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cachalot_vmm cachalot_vmm;
typedef struct cachalot_vmm_range cachalot_vmm_range;

/* Copies on the device and returns when the copy has ended: CACHALOT_OK or an error. Several threads may call it
 * simultaneously. */
typedef cachalot_code (*cachalot_vmm_copy)(void* context, uint64_t to, uint64_t from,
                                           uint64_t bytes);

typedef struct cachalot_vmm_options {
  /* sizeof(cachalot_vmm_options) */
  uint32_t struct_size;
  /* at most 65,536 */
  uint32_t layers;
  /* bytes that a layer keeps of a token: keys and values; latent: its bytes and 0 */
  uint64_t part_bytes[2];
  /* tokens of the longest request; every range has addresses for them */
  uint64_t max_tokens;
  /* null or "memfd": this machine's memory; "cuda:N"; "model": no memory, for counting */
  const char* device;
  /* null or "folded": all layers of a token side by side; "per_layer"; "folded_parts" */
  const char* layout;
  /* 0: 2 MiB */
  uint64_t chunk_bytes;
  /* of physical memory; 0: no limit. With a budget: the limit of all its users together */
  uint64_t limit_bytes;
  /* file, or shm:NAME, through which processes share limit_bytes; null: none */
  const char* budget;
  /* with a budget: bytes that this process gets back when it asks */
  uint64_t guaranteed_bytes;
  /* physical memory that the background thread keeps ready */
  uint64_t ready_bytes;
  /* that released ranges may keep mapped; 0: no limit; less than a chunk: nothing */
  uint64_t idle_bytes;
  /* copies the tail of an alias; null: memcpy on memfd, other devices share no tail */
  cachalot_vmm_copy copy;
  void* copy_context;
} cachalot_vmm_options;

/* Starts two threads. CACHALOT_UNSUPPORTED: this machine has no such device; CACHALOT_INVALID_ARGUMENT: sizes
 * that do not match each other, or options that differ from the budget file's. */
CACHALOT_API cachalot_code cachalot_vmm_open(const cachalot_vmm_options* options,
                                             cachalot_vmm** vmm);
/* Frees everything, including all ranges: their pointers must not be used again. Null is allowed. */
CACHALOT_API cachalot_code cachalot_vmm_close(cachalot_vmm* vmm);

/* Writes where tokens lie: token t of this layer and part is at base + *offset + t * *stride, in every range. */
CACHALOT_API cachalot_code cachalot_vmm_view(const cachalot_vmm* vmm, uint32_t layer, uint32_t part,
                                             uint64_t* offset, uint64_t* stride);

/* Reserves addresses for a request of at most `max_tokens`, with memory for `tokens` mapped on return. Reuses a
 * released range if one fits. With 0 tokens the range has no memory, so it can be the target of an alias. *base
 * does not change later; *range is null after an error.
 * CACHALOT_NO_SPACE: not enough chunks, even after idle ranges were unmapped. The other users of the budget have
 * been asked for memory, so the same call may succeed later. */
CACHALOT_API cachalot_code cachalot_vmm_reserve(cachalot_vmm* vmm, uint64_t tokens,
                                                uint64_t max_tokens, cachalot_vmm_range** range,
                                                uint64_t* base);
/* Ends the request. The pointer must not be used again. Null is allowed. */
CACHALOT_API void cachalot_vmm_release(cachalot_vmm_range* range);

/* Returns when memory for `tokens` is mapped. Costs 10 ns if it was prepared; calls that wait are counted. */
CACHALOT_API cachalot_code cachalot_vmm_commit(cachalot_vmm_range* range, uint64_t tokens);
/* Maps memory for `tokens` in the background and returns at once. The next commit reports errors. */
CACHALOT_API cachalot_code cachalot_vmm_prepare(cachalot_vmm_range* range, uint64_t tokens);
/* Unmaps all memory after `tokens`, except the rest of their last chunks. Does nothing if the range has fewer.
 * CACHALOT_INVALID_ARGUMENT: it would cut off shared tokens; 0 is always allowed. */
CACHALOT_API cachalot_code cachalot_vmm_decommit(cachalot_vmm_range* range, uint64_t tokens);

/* Puts the first `tokens` of `from` at the start of `to`, which has no memory. Full chunks are shared; neither
 * range may write to them from then on. The tokens after the last full chunk are copied, or left out if there
 * is no copy function. *shared: how many tokens `to` has then. */
CACHALOT_API cachalot_code cachalot_vmm_alias(cachalot_vmm_range* to, cachalot_vmm_range* from,
                                              uint64_t tokens, uint64_t* shared);

typedef struct cachalot_vmm_statistics {
  /* sizeof(cachalot_vmm_statistics) */
  uint32_t struct_size;
  /* ranges that are reserved and not released */
  uint32_t ranges;
  /* physical memory of this process on the device */
  uint64_t physical_bytes;
  /* of those: mapped; each chunk counts once */
  uint64_t used_bytes;
  /* of those: mapped by released ranges only */
  uint64_t idle_bytes;
  /* physical memory that is ready and not mapped */
  uint64_t ready_bytes;
  /* memory that the device failed to unmap */
  uint64_t stuck_bytes;
  /* memory that sharing saves: mapped in another range, too */
  uint64_t shared_bytes;
  /* the same, summed since the start */
  uint64_t shared_total_bytes;
  /* bytes of copied tails */
  uint64_t copied_bytes;
  /* bytes that other users of the budget ask for, out of what is above the guarantee */
  uint64_t asked_bytes;
  /* times that the background thread mapped; that a commit waited; total time of those waits */
  uint64_t prepared, waits, wait_ns;
  /* driver calls */
  uint64_t creates, maps, accesses, unmaps;
} cachalot_vmm_statistics;
CACHALOT_API cachalot_code cachalot_vmm_get_statistics(const cachalot_vmm* vmm,
                                                       cachalot_vmm_statistics* statistics);

/* Writes a file descriptor (eventfd). It becomes readable when another process of the budget asks for memory that
 * only running requests hold (idle ranges have been unmapped by then). An 8-byte read returns the bytes asked for
 * and resets it. The process may decommit or release memory, or do nothing. The descriptor is closed with the
 * vmm. */
CACHALOT_API cachalot_code cachalot_vmm_notify(cachalot_vmm* vmm, int* fd);

#ifdef __cplusplus
}
#endif

#endif
