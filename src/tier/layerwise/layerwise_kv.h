// KV of which only some layers are in device memory (LayerKV): of `layers` layers `resident` stay, the others are offloaded
// to host memory after they were computed and come back one layer before they are needed. Device memory for KV is at most
// (resident + 2) / layers of what all layers take.
//
//   add          addresses for a request
//   begin        a step of some requests: a prefill, a decode step, or both
//   acquire(l)   waits until layer l is in device memory, with room for the step's tokens
//                the engine writes the new rows of layer l and computes its attention
//   release(l)   the layer may leave; a thread copies its new rows to host memory and loads the next layer
//   remove       the request has ended
//
// Each layer of a request is a vTensor: its addresses never change, only its memory comes and goes.
//
// 1. LayerSchedule decides; one thread copies, maps and unmaps, and nothing else does while the thread works.
// 2. Rows are offloaded once: a decode step copies one row of a layer out and all rows in.
// 3. A failed begin() has changed nothing. After a failed acquire() the same call may be repeated.
// 4. If an offload fails, rows are lost: all later calls return its error.
//
// @threads any thread, one call at a time; stats() at any time. @cost  a wake-up of the thread for each layer
// @source  LayerKV (arXiv 2410.00428); differs: a schedule that keeps its bound by itself instead of blocks
#pragma once

#include <cachalot/result.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "tier/layerwise/host_chunks.h"
#include "tier/layerwise/layer_schedule.h"
#include "tier/layerwise/layerwise_request.h"
#include "vtensor/vtensor_set.h"

namespace cachalot::tier::layerwise {

struct LayerwiseOptions {
  std::uint64_t layers = 0;
  std::vector<std::uint64_t> part_bytes;  // of one token in one layer: keys and values, or a latent
  std::uint64_t max_tokens = 0;           // of a request: the addresses it gets
  std::uint64_t resident = 0;             // layers that stay; `layers` or more: all
  vtensor::KvLayout layout =
      vtensor::KvLayout::kPerLayer;  // kFolded: keys and values of a token side by side
  std::uint64_t chunk_bytes = std::uint64_t{2} << 20;
  std::uint64_t host_bytes = 0;  // limit of host memory; 0: none
  // Between device and host, both directions; returns when the copy has ended.
  vtensor::CopyBytes copy = vtensor::copy_by_processor;
  base::Clock* clock = nullptr;  // null: the machine's; otherwise it outlives the object
  bool with_thread = true;       // false: the caller calls work_once(), or acquire() does the work
};

struct LayerwiseStats {
  std::uint64_t requests = 0;
  std::uint64_t resident = 0;           // layers
  std::uint64_t device_bytes = 0;       // mapped now
  std::uint64_t peak_device_bytes = 0;  // mapped, since open() or reset_peak()
  std::uint64_t all_bytes = 0;          // what all layers of all requests would map
  std::uint64_t host_bytes = 0;
  // Summed since open(); copies only, then map, access and unmap.
  std::uint64_t offloads = 0, offloaded_bytes = 0, offload_ns = 0;
  std::uint64_t loads = 0, loaded_bytes = 0, load_ns = 0;
  std::uint64_t map_ns = 0;
  // Of acquire(): the layer was not ready.
  std::uint64_t waits = 0, wait_ns = 0;
  // Of the last complete step: from begin() to the last release(), waits included; then the waits.
  std::uint64_t step_ns = 0, step_wait_ns = 0;
};

class LayerwiseKv {
 public:
  struct Growth {
    LayerwiseRequest* request = nullptr;
    std::uint64_t tokens = 0;  // new ones
  };

  // Backend and budget outlive it. @errors kInvalidArgument: options; kNoSpace: no thread to be had
  static Result<std::unique_ptr<LayerwiseKv>> open(device_memory::Backend& backend,
                                                   vtensor::ChunkBudget& budget,
                                                   const LayerwiseOptions& options);
  // Drops all requests. The work in flight ends first.
  ~LayerwiseKv();

  // @errors kInvalidArgument: more tokens than the options allow; kNoSpace: no addresses
  Result<LayerwiseRequest*> add(std::uint64_t max_tokens);
  // Between steps. Waits for the work in flight. The pointer must not be used again. @errors kInvalidArgument
  Status remove(LayerwiseRequest* request);

  std::uint64_t parts() const { return options_.part_bytes.size(); }
  // Where a part of token t lies: at request.base(layer) + offset + t * stride.
  vtensor::RangeLayout::View view(std::uint64_t part) const { return set_->layout().view(0, part); }

  // A step in which each of these requests computes its next tokens; layers follow from 0 to the last one.
  // @errors kInvalidArgument: a step is in progress, no request, one twice, no tokens, more than max_tokens;
  //         kNoSpace: host memory
  Status begin(std::span<const Growth> growths);
  // Returns when the layer's rows are in device memory. @errors kInvalidArgument: another layer is next; kNoSpace: the budget
  Status acquire(std::uint64_t layer);
  // No kernel uses the layer any more and its new rows are written. Never waits. @errors kInvalidArgument
  Status release(std::uint64_t layer);

  // Ends the step without its remaining layers, as if begin() had not been called: rows written since then are lost. No
  // kernel uses the layer that was acquired. Waits for the work in flight. @errors kInvalidArgument: no step
  Status cancel();

  // Between steps: other layers stay from now on. Waits for the work in flight. @errors kInvalidArgument; kNoSpace: host memory
  Status set_resident(std::uint64_t resident);

  LayerwiseStats stats() const;
  void reset_peak();

  // Without a thread: one load or offload. @return whether there was one
  bool work_once();

 private:
  // What a work covers; fixed when it starts.
  struct Item {
    LayerRows* rows = nullptr;
    std::uint64_t target = 0;
    bool is_done = false;
  };

  explicit LayerwiseKv(const LayerwiseOptions& options);
  void run();

  // With the lock.
  Status refuse_in_step(const char* call) const;
  Status check_growths(std::span<const Growth> growths) const;
  bool lacks(std::uint64_t layer) const;
  Status take_host(std::span<const Growth> growths, std::uint64_t resident);
  void drop(LayerwiseRequest& request);
  void work(std::unique_lock<std::mutex>& lock, const LayerSchedule::Work& work);
  std::vector<Item> items_of(const LayerSchedule::Work& work) const;
  void finish(const LayerSchedule::Work& work, std::span<const Item> items, const Status& done);
  void wait_idle(std::unique_lock<std::mutex>& lock);

  // Without the lock.
  Status load(const Item& item, LayerwiseStats& spent);
  Status offload(const Item& item, LayerwiseStats& spent);
  Status copy_rows(const LayerRows& rows, std::uint64_t from, std::uint64_t to, bool to_host) const;
  std::uint64_t now_ns() { return clock_->now_ns(); }

  const LayerwiseOptions options_;
  base::SteadyClock steady_clock_;
  base::Clock* const clock_;
  std::unique_ptr<vtensor::VTensorSet> set_;

  mutable std::mutex mutex_;              // of all below but the thread
  std::condition_variable wake_, ended_;  // of the thread; of its work
  LayerSchedule schedule_;
  HostChunks host_;
  std::vector<std::unique_ptr<LayerwiseRequest>> requests_;
  std::vector<LayerwiseRequest*> in_step_;  // of this step, or of the last one
  LayerwiseStats stats_;
  std::uint64_t begin_ns_ = 0, begin_wait_ns_ = 0;
  Status load_error_;     // loads rest until the next acquire()
  Status offload_error_;  // for good
  bool is_working_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace cachalot::tier::layerwise
