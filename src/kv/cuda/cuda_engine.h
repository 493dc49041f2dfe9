// The copy engine of a GPU: pages in its memory, the pool registered with it, one launch a call.
//
//   auto device = CudaDevice::open(0);                       // once
//   (*device)->register_pool(base, bytes);                   // each device of the pool, once
//   auto engine = CudaEngine::make(**device, cache, order, domain);
//   (*engine)->scatter(blocks);                              // waits; then validate (R6)
//   auto copy = (*engine)->start_gather(blocks, stream);     // behind the engine's own kernels
//   …
//   copy->wait();                                            // before the blocks are committed
//
// 1. A call is one launch (or a row of the driver's copies, kv/cuda/way.h) on the caller's stream,
//    behind what is on it, and needs no host synchronisation; its tables go with the launch, or
//    before it on the same stream.
// 2. No address outside of the cache's tensors and the registered pool goes into a launch.
// 3. In the noncoherent domain the host flushes the pool's lines before a scatter is launched and after
//    a gather has completed, or the operator said that the pool bypasses the host's caches. A
//    configuration in which neither holds is refused.
// 4. A scatter that is not waited for inside the call is started only if the caller has said how its
//    bytes are checked: validated after wait(), or by a pinned read.
//
// What is assumed of a GPU and not confirmed on one yet: docs/design/cuda.md.
// @threads  any number may use one engine at a time
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kv/copy_engine.h"
#include "kv/cuda/pending_copy.h"
#include "kv/cuda/way.h"
#include "kv/fused/tables.h"

namespace cachalot::kv {

// How old or dirty lines of the pool are kept out of the host's caches.
enum class HostCaches {
  kFlushed,  // the engine flushes around its copies
  // the pool is mapped uncacheable and the GPU's writes do not go into the cache (DDIO off)
  kBypassed,
  kIgnored,  // not needed: coherent domains
};

// What becomes of a scatter's bytes that were reused while they were read.
enum class ReadCheck {
  kUnknown,
  // the caller validates after wait(), before anything computed from them leaves the step
  kValidated,
  kPinned,  // they cannot be: the caller holds a pinned read
};

struct CudaOptions {
  Way way = Way::kChoose;
  std::uint32_t thread_blocks = 0;  // 0: default_thread_blocks()
  std::uint32_t threads = 512;      // of a thread block; a multiple of 32, at most 512
  // Tables up to so many bytes go with the launch, others by a copy; kInlineTableBytes at most.
  std::uint32_t inline_table_bytes = kInlineTableBytes;
  std::uint32_t batch_copies = kBatchCopies;  // of the driver's in a call, at most; not 0
  HostCaches host_caches = HostCaches::kFlushed;
  ReadCheck started_reads = ReadCheck::kUnknown;  // of start_scatter()
  gpu::Stream stream = nullptr;                   // of gather() and scatter()
};

class CudaEngine final : public CopyEngine {
 public:
  // @param cache   of tensors in the device's memory; the host never touches them
  // @param device, cache, order, domain  outlive the engine, and the engine its copies
  // @errors kInvalidArgument: threads, an empty batch; kUnsupported: the lossy domain, a domain whose host
  //         caches nothing sees to, bulk transfers on a device or batches of a driver without
  static Result<std::unique_ptr<CudaEngine>> make(CudaDevice& device, const EngineCache& cache,
                                                  const BlockOrder& order, memory::Domain& domain,
                                                  const CudaOptions& options = {});

  // Launch, wait, host's part.
  // @errors as CopyEngine, start_…() and PendingCopy::wait(). kIo, and no other: nothing is known of the copy
  Status gather(std::span<const BlockCopy> blocks, LayerRange layers = {}) override;
  Status scatter(std::span<const BlockCopy> blocks, LayerRange layers = {}) override;
  Status scatter_rows(const RowPlan& plan, std::span<const RowBlock> blocks) override;

  // Launch only. What `blocks` says is taken before they return, but a hash stays the caller's until
  // wait(). Two scatters in flight share no page, and no other writer touches a gather's blocks. A scatter
  // begins after the writers of its blocks have ended, gathers of the same stream too: it may read its blocks
  // before earlier work of the stream has ended.
  // @errors as CopyEngine; kInvalidArgument: an extent that is not registered; kNoSpace, kInternal: the driver; kIo: and did not end what it had begun.
  //         A scatter: kInvalidArgument: the options do not say how its bytes are checked
  // @cost   a microsecond, 20 ns a block, and what the driver takes (5 to 10 us, estimate; 0.5 us a copy in
  //         batches, 2 us a single one); in the noncoherent domain a scatter 1 to 2.5 ns a line
  Result<PendingCopy> start_gather(std::span<const BlockCopy> blocks, gpu::Stream stream,
                                   LayerRange layers = {});
  Result<PendingCopy> start_scatter(std::span<const BlockCopy> blocks, gpu::Stream stream,
                                    LayerRange layers = {});
  // By threads, unless the options say that the driver copies.
  // @errors as start_scatter() @cost as start_scatter(), and 100 ns a row (estimate)
  Result<PendingCopy> start_scatter_rows(const RowPlan& plan, std::span<const RowBlock> blocks,
                                         gpu::Stream stream);

  const EngineCache& cache() const override { return *cache_; }
  const BlockOrder& order() const override { return *order_; }

 private:
  CudaEngine(CudaDevice& device, const EngineCache& cache, const BlockOrder& order,
             memory::Domain& domain, const CudaOptions& options);

  Result<PendingCopy> start(std::span<const BlockCopy> blocks, gpu::Stream stream,
                            LayerRange layers, Direction direction);
  Result<PendingCopy> start_rows(const RowPlan& plan, std::span<const RowBlock> blocks,
                                 gpu::Stream stream);
  // @param submit  (slot) -> Status; sets the slot as soon as something of it may be on the stream
  template <class Submit>
  Result<PendingCopy> begin(PendingCopy::Work work, gpu::Stream stream, Way way, Submit submit);
  Status check_started_reads() const;
  Way way_of(const Plan& plan, gpu::Stream stream) const;
  Way way_of_rows(bool fits_kernel, gpu::Stream stream) const;
  // @param tensors  base addresses on the device
  Status launch(const CopyPlan& plan, std::span<const BlockCopy> blocks,
                std::span<const std::uint64_t> tensors, gpu::Stream stream, Direction direction,
                Way way, std::unique_ptr<LaunchSlot>& slot);
  Status copy_by_driver(const CopyPlan& plan, std::span<const BlockCopy> blocks, gpu::Stream stream,
                        Direction direction, bool in_batches, std::unique_ptr<LaunchSlot>& slot);
  Status copy_rows_by_driver(std::span<const RowPiece> pieces, gpu::Stream stream, bool in_batches,
                             std::unique_ptr<LaunchSlot>& slot);

  CudaDevice& device_;
  const EngineCache* cache_;
  const BlockOrder* order_;
  memory::Domain* domain_;
  const CudaOptions options_;
  std::vector<std::uint64_t> tensors_;
  LaunchSlots slots_;
};

}  // namespace cachalot::kv
