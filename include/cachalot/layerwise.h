/* KV of which only some layers are in device memory: the others are in host memory, and each comes to the device one
 * layer before it is computed. Device memory for KV is at most (resident + 2) / layers of what all layers take.
 *
 *   add          addresses for a request, of every layer
 *   begin        a step of some requests: a prefill, a part of one, a decode step
 *   acquire      waits until a layer is in device memory, with room for the step's new tokens
 *   release      the layer's new rows are written and no kernel uses it: it may leave
 *   remove       ends a request
 *
 * One thread copies between device and host. Conventions of codes, messages and structs: c.h and vmm.h.
 *
 * Any thread may call, one call at a time; statistics at any time. No call waits for kernels.
 */
#ifndef CACHALOT_LAYERWISE_H
#define CACHALOT_LAYERWISE_H

#include <cachalot/vmm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cachalot_layerwise cachalot_layerwise;
typedef struct cachalot_layerwise_request cachalot_layerwise_request;

typedef struct cachalot_layerwise_options {
  /* sizeof(cachalot_layerwise_options) */
  uint32_t struct_size;
  /* at most 65,536 */
  uint32_t layers;
  /* bytes that a layer keeps of a token: keys and values; latent: its bytes and 0 */
  uint64_t part_bytes[2];
  /* tokens of the longest request; every layer of a request has addresses for them */
  uint64_t max_tokens;
  /* layers that stay in device memory, spread evenly; layers - 2 or more: all */
  uint64_t resident;
  /* null or "memfd": this machine's memory; "cuda:N"; "model": no memory, for counting */
  const char* device;
  /* null or "per_layer": keys apart from values; "folded": side by side */
  const char* layout;
  /* 0: 2 MiB */
  uint64_t chunk_bytes;
  /* of device memory; 0: no limit */
  uint64_t limit_bytes;
  /* of host memory; 0: no limit */
  uint64_t host_bytes;
  /* copies between device and host, both ways, and returns when the copy has ended; called by one thread. null: memcpy
   * on memfd; other devices need one */
  cachalot_vmm_copy copy;
  void* copy_context;
} cachalot_layerwise_options;

/* Starts a thread. CACHALOT_UNSUPPORTED: this machine has no such device; CACHALOT_INVALID_ARGUMENT: sizes that do not
 * match each other, no copy function for the device. */
CACHALOT_API cachalot_code cachalot_layerwise_open(const cachalot_layerwise_options* options,
                                                   cachalot_layerwise** layerwise);
/* Waits for the copy in flight, then frees everything, including all requests. Null is allowed. */
CACHALOT_API cachalot_code cachalot_layerwise_close(cachalot_layerwise* layerwise);

/* Writes where tokens lie: token t of this part is at base + *offset + t * *stride, with the base of request and layer. */
CACHALOT_API cachalot_code cachalot_layerwise_view(const cachalot_layerwise* layerwise,
                                                   uint32_t part, uint64_t* offset,
                                                   uint64_t* stride);

/* Reserves addresses for a request of at most `max_tokens`. `bases`: [layers], written; they do not change later.
 * CACHALOT_NO_SPACE: no addresses. */
CACHALOT_API cachalot_code cachalot_layerwise_add(cachalot_layerwise* layerwise,
                                                  uint64_t max_tokens,
                                                  cachalot_layerwise_request** request,
                                                  uint64_t* bases);
/* Between steps; waits for the copy in flight. The pointer must not be used again. */
CACHALOT_API cachalot_code cachalot_layerwise_remove(cachalot_layerwise* layerwise,
                                                     cachalot_layerwise_request* request);

/* Begins a step in which requests[i] computes its next tokens[i] tokens, for each i < count. Its layers are acquired
 * and released from 0 to the last one; the last release ends the step.
 * CACHALOT_NO_SPACE: not enough host memory; nothing has changed. */
CACHALOT_API cachalot_code cachalot_layerwise_begin(cachalot_layerwise* layerwise,
                                                    cachalot_layerwise_request* const* requests,
                                                    const uint64_t* tokens, uint64_t count);
/* Returns when the layer's rows are in device memory, of all requests of the step. CACHALOT_NO_SPACE: not enough device
 * memory; the call may be repeated, or the step cancelled. */
CACHALOT_API cachalot_code cachalot_layerwise_acquire(cachalot_layerwise* layerwise,
                                                      uint32_t layer);
/* Never waits. A kernel that still uses the layer reads or writes memory that is gone: synchronise before. */
CACHALOT_API cachalot_code cachalot_layerwise_release(cachalot_layerwise* layerwise,
                                                      uint32_t layer);
/* Ends the step as if it had not begun. No kernel uses the layer that was acquired. */
CACHALOT_API cachalot_code cachalot_layerwise_cancel(cachalot_layerwise* layerwise);

/* Between steps: so many layers stay from now on. */
CACHALOT_API cachalot_code cachalot_layerwise_set_resident(cachalot_layerwise* layerwise,
                                                           uint64_t resident);

/* The fewest resident layers with which copies of `layer_bytes` for each other layer take no longer than `compute_ns`:
 * max(0, layers - floor(compute_ns * bytes_per_second / 1e9 / layer_bytes)). */
CACHALOT_API cachalot_code cachalot_layerwise_fewest_resident(uint64_t layers, uint64_t layer_bytes,
                                                              uint64_t compute_ns,
                                                              double bytes_per_second,
                                                              uint64_t* resident);

typedef struct cachalot_layerwise_statistics {
  /* sizeof(cachalot_layerwise_statistics) */
  uint32_t struct_size;
  uint32_t requests;
  /* layers that stay */
  uint64_t resident;
  /* KV in device memory: mapped now; the most so far */
  uint64_t device_bytes, peak_device_bytes;
  /* what all layers of all requests would map */
  uint64_t all_bytes;
  /* host memory, also what is kept for the next request */
  uint64_t host_bytes;
  /* of the thread, summed: layers to the host, bytes and time of the copies; to the device; time of mapping and unmapping */
  uint64_t offloads, offloaded_bytes, offload_ns;
  uint64_t loads, loaded_bytes, load_ns;
  uint64_t map_ns;
  /* times that acquire waited, and for how long */
  uint64_t waits, wait_ns;
  /* the last step, from begin to the last release; of that, waits */
  uint64_t step_ns, step_wait_ns;
} cachalot_layerwise_statistics;
CACHALOT_API cachalot_code cachalot_layerwise_get_statistics(
    const cachalot_layerwise* layerwise, cachalot_layerwise_statistics* statistics);

#ifdef __cplusplus
}
#endif

#endif
