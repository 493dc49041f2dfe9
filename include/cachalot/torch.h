/* Device memory for PyTorch: the functions of libcachalot_torch.so. The allocating functions have the signatures
 * that torch.cuda.memory.CUDAPluggableAllocator and its callbacks expect (cudaStream_t is a pointer, here
 * void*). How to use them: docs/guide/pytorch.md.
 *
 * Nothing is thrown. Any thread may call any function, with any CUDA context current or none. A device is
 * opened at its first use. Settings come from the environment, CACHALOT_TORCH_*.
 * PyTorch's interface cannot report some errors (out of memory, an unknown pointer, driver errors): they are
 * printed to stderr, at most ten lines for each kind.
 */
#ifndef CACHALOT_TORCH_H
#define CACHALOT_TORCH_H

#include <cachalot/c.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- For the allocator ------------------------------------------------------------------------- */

/* size: PyTorch's ssize_t. Returns null if memory is still short after all caches were freed, or if the device
 * cannot be used. 0 bytes get a distinct address. */
CACHALOT_API void* cachalot_torch_malloc(intptr_t size, int device, void* stream);
/* The memory is reused immediately by work on the stream that it was allocated on, and by other streams after
 * an event. Null is allowed. */
CACHALOT_API void cachalot_torch_free(void* pointer, intptr_t size, int device, void* stream);
/* Replaces cachalot_torch_free for torch.cuda.MemPool, in which PyTorch keeps tensors of any stream in one
 * segment: waits for the device, then returns the memory to it. */
CACHALOT_API void cachalot_torch_free_segment(void* pointer, intptr_t size, int device,
                                              void* stream);

/* set_record_stream_fn: notes that the memory is also used on this stream. */
CACHALOT_API void cachalot_torch_record_stream(void* pointer, void* stream);
/* set_reset_fn, called by torch.cuda.empty_cache(): returns all unused memory to the devices. */
CACHALOT_API void cachalot_torch_empty_cache(void);
/* set_memory_fraction_fn: limits the process to this share of the device's memory. */
CACHALOT_API void cachalot_torch_set_memory_fraction(double fraction, int device);

/* set_begin_allocate_to_pool, set_end_allocate_to_pool_fn, set_release_pool: memory allocated between begin and
 * end belongs to a CUDA graph and is not reused for anything else before the release. PyTorch names a pool by
 * two numbers; `filter` is ignored. */
typedef struct cachalot_torch_pool_id {
  uint64_t first, second;
} cachalot_torch_pool_id;
CACHALOT_API void cachalot_torch_begin_pool(int device, cachalot_torch_pool_id id, void* filter);
CACHALOT_API void cachalot_torch_end_pool(int device, cachalot_torch_pool_id id);
CACHALOT_API void cachalot_torch_release_pool(int device, cachalot_torch_pool_id id);

/* --- For applications -------------------------------------------------------------------------- */

/* Checks that the settings are valid and a driver is installed. Opens no device. */
CACHALOT_API cachalot_code cachalot_torch_check(void);
/* Returns the message of this thread's last call that returned an error code; never null. */
CACHALOT_API const char* cachalot_torch_last_message(void);

typedef struct cachalot_torch_statistics {
  /* sizeof(cachalot_torch_statistics) */
  uint32_t struct_size;
  /* 0: the device was not used yet, and all other fields are zero */
  uint32_t is_open;
  uint64_t allocations, frees;
  /* allocated and not freed */
  uint64_t live_bytes, peak_live_bytes;
  /* taken from the device */
  uint64_t reserved_bytes, peak_reserved_bytes;
  /* stitched blocks that were built */
  uint64_t stitches;
  /* addresses of the stitched blocks that are kept */
  uint64_t stitched_range_bytes;
  /* allocations that needed a driver call */
  uint64_t driver_allocations;
  /* allocations that failed with out of memory */
  uint64_t refused;
  /* the device's total memory */
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
