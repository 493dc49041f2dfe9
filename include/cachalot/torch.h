/* Device memory for PyTorch: the functions of libcachalot_torch.so. Those for allocating have the
 * signatures that torch.cuda.memory.CUDAPluggableAllocator and its callbacks expect; cudaStream_t is a
 * pointer, here void*. How to use them: docs/guide/pytorch.md.
 *
 * Nothing is thrown. Any thread may call anything, with any CUDA context current or none. A device is opened
 * when it is first used; settings come from the environment, CACHALOT_TORCH_*.
 * What PyTorch would not hear of (out of memory, a pointer that is not known, trouble with the driver) is
 * a line on stderr, ten times at most for each kind of trouble.
 */
#ifndef CACHALOT_TORCH_H
#define CACHALOT_TORCH_H

#include <cachalot/c.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- For the allocator ------------------------------------------------------------------------- */

/* size is a ssize_t, as PyTorch has it. Null: out of memory, after all that was cached was given
 * back; or the device cannot be used. 0 bytes get an address of their own. */
CACHALOT_API void* cachalot_torch_malloc(intptr_t size, int device, void* stream);
/* The memory may be used again at once by work of the stream that it was allocated on, by others after
 * an event. Null is allowed. */
CACHALOT_API void cachalot_torch_free(void* pointer, intptr_t size, int device, void* stream);
/* In place of cachalot_torch_free for torch.cuda.MemPool, where PyTorch keeps tensors of any stream in one
 * segment: waits for the device, then gives the memory back to it. */
CACHALOT_API void cachalot_torch_free_segment(void* pointer, intptr_t size, int device,
                                              void* stream);

/* set_record_stream_fn: the memory is used on this stream, too. */
CACHALOT_API void cachalot_torch_record_stream(void* pointer, void* stream);
/* set_reset_fn, which is torch.cuda.empty_cache(): gives back what nobody uses, on all devices. */
CACHALOT_API void cachalot_torch_empty_cache(void);
/* set_memory_fraction_fn: at most this share of the device's memory. */
CACHALOT_API void cachalot_torch_set_memory_fraction(double fraction, int device);

/* set_begin_allocate_to_pool, set_end_allocate_to_pool_fn, set_release_pool: what is allocated in between
 * is used by a CUDA graph, and is not given to anybody else before the release. PyTorch's name of a pool
 * is a pair of numbers; `filter` is not looked at. */
typedef struct cachalot_torch_pool_id {
  uint64_t first, second;
} cachalot_torch_pool_id;
CACHALOT_API void cachalot_torch_begin_pool(int device, cachalot_torch_pool_id id, void* filter);
CACHALOT_API void cachalot_torch_end_pool(int device, cachalot_torch_pool_id id);
CACHALOT_API void cachalot_torch_release_pool(int device, cachalot_torch_pool_id id);

/* --- For people -------------------------------------------------------------------------------- */

/* Whether the settings can be read and a driver is there; no device is opened. */
CACHALOT_API cachalot_code cachalot_torch_check(void);
/* Of this thread's last call below or above that failed with a code; never null. */
CACHALOT_API const char* cachalot_torch_last_message(void);

typedef struct cachalot_torch_statistics {
  /* sizeof(cachalot_torch_statistics) */
  uint32_t struct_size;
  /* 0: nothing was asked of the device yet, and the rest is zero */
  uint32_t is_open;
  uint64_t allocations, frees;
  /* asked for and not freed */
  uint64_t live_bytes, peak_live_bytes;
  /* of the device */
  uint64_t reserved_bytes, peak_reserved_bytes;
  /* stitched blocks that were built */
  uint64_t stitches;
  /* addresses of those that are kept */
  uint64_t stitched_range_bytes;
  /* allocations that made any call of the driver for memory */
  uint64_t driver_allocations;
  /* allocations that were answered with out of memory */
  uint64_t refused;
  /* that the device has */
  uint64_t device_bytes;
  /* 0: none */
  uint64_t limit_bytes;
} cachalot_torch_statistics;
CACHALOT_API cachalot_code cachalot_torch_get_statistics(int device,
                                                         cachalot_torch_statistics* statistics);

#ifdef __cplusplus
}
#endif

#endif
