#include "kv/cuda/cuda_engine.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "kv/cuda/driver_copies.h"
#include "kv/extent_cursor.h"
#include "kv/fused/copy_bulk.h"
#include "kv/walk.h"

namespace cachalot::kv {
namespace {

constexpr std::uint32_t kWarp = 32, kMostThreads = 512;

Status check_options(const CudaDevice& device, const memory::Domain& domain,
                     const CudaOptions& options) {
  if (options.threads == 0 || options.threads % kWarp != 0 || options.threads > kMostThreads) {
    return Error::make(Code::kInvalidArgument,
                       "cuda: thread blocks of %u threads, expected a multiple of 32 up to 512",
                       options.threads);
  }
  if (options.inline_table_bytes > kInlineTableBytes) {
    return Error::make(Code::kInvalidArgument,
                       "cuda: tables of %u bytes in a launch, expected at most %u",
                       options.inline_table_bytes, kInlineTableBytes);
  }
  if (options.batch_copies == 0) {
    return Error::make(Code::kInvalidArgument, "cuda: batches of 0 copies, expected at least 1");
  }
  if (domain.kind() == memory::DomainKind::kLossy) {
    return Error::make(Code::kUnsupported,
                       "cuda: the lossy domain has no memory that a device could reach");
  }
  if (domain.kind() != memory::DomainKind::kCoherent &&
      options.host_caches == HostCaches::kIgnored) {
    return Error::make(Code::kUnsupported,
                       "cuda: a noncoherent pool whose lines may be in the host's caches, "
                       "expected them to be flushed or bypassed");
  }
  if (options.way == Way::kBulk && !device.has_bulk_copies()) {
    return Error::make(Code::kUnsupported,
                       "cuda: bulk transfers, expected a device of sm_90 or later");
  }
  if (options.way == Way::kBatch && !device.has_batched_copies()) {
    return Error::make(Code::kUnsupported,
                       "cuda: batched copies, expected a driver of CUDA 12.8 or later");
  }
  return {};
}

std::uint64_t shortest_run(const Plan& plan) {
  std::uint64_t shortest = ~std::uint64_t{0};
  for (std::uint32_t k = 0; k < plan.parts; ++k) {
    shortest = std::min(shortest, plan.part[k].run_bytes);
  }
  return shortest;
}

std::uint64_t bytes_of(const CopyPlan& plan, const EngineCache& cache,
                       std::span<const BlockCopy> blocks) {
  const std::uint64_t tokens = cache.geometry().block_tokens;
  std::uint64_t all = 0;
  for (const BlockCopy& block : blocks) {
    std::uint64_t chosen = block.tokens.empty() ? tokens : 0;
    for (const TokenRange& range : block.tokens) chosen += range.last - range.first;
    all += chosen * (plan.copied_bytes() / tokens);
  }
  return all;
}

Status check_registered(const PoolMap& pool, memory::Extent extent) {
  while (extent.bytes != 0) {
    CACHALOT_TRY_ASSIGN(const PoolPart part, pool.find_part(extent));
    extent = {extent.at + part.bytes, extent.bytes - part.bytes};
  }
  return {};
}

// The chosen rows of blocks, cut where extents end.
// @param bytes  takes the sum of their lengths
std::vector<RowPiece> pieces_of(const RowPlan& plan, std::span<const RowBlock> blocks,
                                std::span<const std::uint64_t> tensors, std::uint64_t& bytes) {
  std::vector<RowPiece> pieces;
  RowWalk walk(plan);
  for (const RowBlock& block : blocks) {
    ExtentCursor cursor(block.pool);
    walk.for_each_row(block.number, [&](Row row) {
      bytes += row.bytes;
      while (row.bytes != 0) {
        memory::Extent room = cursor.find(row.pool_offset);
        room.bytes = std::min(room.bytes, row.bytes);
        pieces.push_back({room, tensors[row.tensor] + row.engine_offset, row.tensor});
        row.pool_offset += room.bytes;
        row.engine_offset += room.bytes;
        row.bytes -= room.bytes;
      }
    });
  }
  return pieces;
}

}  // namespace

Result<std::unique_ptr<CudaEngine>> CudaEngine::make(CudaDevice& device, const EngineCache& cache,
                                                     const BlockOrder& order,
                                                     memory::Domain& domain,
                                                     const CudaOptions& options) {
  CACHALOT_TRY(check_options(device, domain, options));
  return std::unique_ptr<CudaEngine>(new CudaEngine(device, cache, order, domain, options));
}

CudaEngine::CudaEngine(CudaDevice& device, const EngineCache& cache, const BlockOrder& order,
                       memory::Domain& domain, const CudaOptions& options)
    : device_(device),
      cache_(&cache),
      order_(&order),
      domain_(&domain),
      options_(options),
      slots_(device) {
  for (std::byte* const base : cache.bases()) {
    tensors_.push_back(reinterpret_cast<std::uintptr_t>(base));
  }
}

Status CudaEngine::gather(std::span<const BlockCopy> blocks, LayerRange layers) {
  CACHALOT_TRY_ASSIGN(PendingCopy copy, start(blocks, options_.stream, layers, Direction::kGather));
  return copy.wait();
}

Status CudaEngine::scatter(std::span<const BlockCopy> blocks, LayerRange layers) {
  CACHALOT_TRY_ASSIGN(PendingCopy copy,
                      start(blocks, options_.stream, layers, Direction::kScatter));
  return copy.wait();
}

Status CudaEngine::scatter_rows(const RowPlan& plan, std::span<const RowBlock> blocks) {
  CACHALOT_TRY_ASSIGN(PendingCopy copy, start_rows(plan, blocks, options_.stream));
  return copy.wait();
}

Result<PendingCopy> CudaEngine::start_gather(std::span<const BlockCopy> blocks, gpu::Stream stream,
                                             LayerRange layers) {
  return start(blocks, stream, layers, Direction::kGather);
}

Result<PendingCopy> CudaEngine::start_scatter(std::span<const BlockCopy> blocks, gpu::Stream stream,
                                              LayerRange layers) {
  CACHALOT_TRY(check_started_reads());
  return start(blocks, stream, layers, Direction::kScatter);
}

Result<PendingCopy> CudaEngine::start_scatter_rows(const RowPlan& plan,
                                                   std::span<const RowBlock> blocks,
                                                   gpu::Stream stream) {
  CACHALOT_TRY(check_started_reads());
  return start_rows(plan, blocks, stream);
}

Status CudaEngine::check_started_reads() const {
  if (options_.started_reads != ReadCheck::kUnknown) return {};
  return Error::make(Code::kInvalidArgument,
                     "cuda: a scatter without a wait, expected the options to say whether "
                     "its bytes are validated afterwards or the read is pinned");
}

Result<PendingCopy> CudaEngine::start(std::span<const BlockCopy> blocks, gpu::Stream stream,
                                      LayerRange layers, Direction direction) {
  CACHALOT_TRY_ASSIGN(const CopyPlan plan,
                      CopyPlan::compile(*cache_, *order_, layers, grain_of(blocks)));
  CACHALOT_TRY(check_blocks(*cache_, plan, blocks, direction));
  if (blocks.empty()) return PendingCopy();
  const Way way = way_of(plan.arithmetic(), stream);
  PendingCopy::Work work{&device_, &slots_, nullptr, direction, HostPart(plan, blocks)};
  work.bytes = bytes_of(plan, *cache_, blocks);
  return begin(std::move(work), stream, way, [&](std::unique_ptr<LaunchSlot>& slot) {
    return way == Way::kBatch || way == Way::kCopyEngine
               ? copy_by_driver(plan, blocks, stream, direction, way == Way::kBatch, slot)
               : launch(plan, blocks, tensors_, stream, direction, way, slot);
  });
}

Result<PendingCopy> CudaEngine::start_rows(const RowPlan& plan, std::span<const RowBlock> blocks,
                                           gpu::Stream stream) {
  CACHALOT_TRY(check_row_blocks(plan, blocks));
  std::uint64_t bytes = 0;
  const std::vector<RowPiece> pieces = pieces_of(plan, blocks, tensors_, bytes);
  if (pieces.empty()) return PendingCopy();
  const std::optional<RowBlocks> rows = RowBlocks::make(pieces);
  const Way way = way_of_rows(rows.has_value(), stream);
  PendingCopy::Work work{&device_, &slots_, nullptr, Direction::kScatter, HostPart(pieces)};
  work.bytes = bytes;
  return begin(std::move(work), stream, way, [&](std::unique_ptr<LaunchSlot>& slot) {
    return way == Way::kThreads ? launch(rows->plan(), rows->blocks(), rows->tensors(), stream,
                                         Direction::kScatter, way, slot)
                                : copy_rows_by_driver(pieces, stream, way == Way::kBatch, slot);
  });
}

template <class Submit>
Result<PendingCopy> CudaEngine::begin(PendingCopy::Work work, gpu::Stream stream, Way way,
                                      Submit submit) {
  const bool flushes = options_.host_caches == HostCaches::kFlushed;
  if (flushes) work.domain = domain_;
  // As late as possible, so that little has time to come back; whatever does is newer than this.
  if (work.direction == Direction::kScatter && flushes) work.host.before_scatter(*domain_);
  const CudaDevice::Entered entered(device_);
  CACHALOT_TRY(status_of_refusal(entered.status()));
  std::unique_ptr<LaunchSlot> slot;
  Status submitted = submit(slot);
  if (submitted) {
    submitted = device_.check(device_.driver().event_record(slot->event, stream), "cuEventRecord");
  }
  if (!submitted) {
    // Something may be on the stream already, and read the slot's tables.
    if (slot == nullptr) return error_of_refusal(submitted.error());
    const Status quiet = device_.check(device_.driver().stream_synchronize(stream),
                                       "cuStreamSynchronize after a failed copy");
    quiet ? slots_.give_back(std::move(slot)) : slots_.abandon(std::move(slot));
    return quiet ? error_of_refusal(submitted.error()) : error_of_wait(quiet.error());
  }
  device_.count(way, work.bytes);
  work.begin_ns = base::SteadyClock::read();
  return PendingCopy(std::move(work), std::move(slot));
}

Way CudaEngine::way_of(const Plan& plan, gpu::Stream stream) const {
  WayFacts facts;
  facts.shortest_bytes = shortest_run(plan);
  facts.aligned =
      pool_alignment(plan) >= kUnitBytes && engine_alignment(plan, tensors_) >= kUnitBytes;
  facts.has_bulk = device_.has_bulk_copies();
  facts.can_batch = device_.has_batched_copies() && !gpu::is_legacy(stream);
  facts.bypasses_caches = options_.host_caches == HostCaches::kBypassed;
  return choose_way(facts, options_.way);
}

// Rows are short: the driver's copies are for options that want them, and for addresses too far apart.
Way CudaEngine::way_of_rows(bool fits_kernel, gpu::Stream stream) const {
  const bool by_driver = options_.way == Way::kBatch || options_.way == Way::kCopyEngine;
  if (!by_driver && fits_kernel) return Way::kThreads;
  const bool can_batch = device_.has_batched_copies() && !gpu::is_legacy(stream);
  return can_batch && options_.way != Way::kCopyEngine ? Way::kBatch : Way::kCopyEngine;
}

Status CudaEngine::launch(const CopyPlan& plan, std::span<const BlockCopy> blocks,
                          std::span<const std::uint64_t> tensors, gpu::Stream stream,
                          Direction direction, Way way, std::unique_ptr<LaunchSlot>& slot) {
  const bool in_bulk = way == Way::kBulk;
  const WorkShape shape = in_bulk ? WorkShape{1, kStageBytes} : shape_for(plan.arithmetic(), kWarp);
  CACHALOT_TRY_ASSIGN(const CallTables tables,
                      CallTables::make(plan, blocks, tensors, &device_.pool(), shape));
  const std::span<const std::byte> bytes = tables.bytes();
  const bool is_inline = bytes.size() <= options_.inline_table_bytes;
  CACHALOT_TRY_ASSIGN(slot, slots_.take(is_inline ? 0 : bytes.size()));
  const gpu::Driver& driver = device_.driver();
  if (!is_inline) {
    std::memcpy(slot->host, bytes.data(), bytes.size());
    CACHALOT_TRY(
        device_.check(driver.copy_to_device(slot->device, slot->host, bytes.size(), stream),
                      "cuMemcpyHtoDAsync"));
  }
  FusedLaunch argument = tables.launch_at(is_inline ? 0 : slot->device);
  const FusedCall& call = argument.call;
  const std::uint32_t threads = in_bulk ? kWarp : options_.threads;
  const std::uint64_t items_a_block = in_bulk ? 1 : threads / call.lanes;
  const std::uint64_t needed = (call.items + items_a_block - 1) / items_a_block;
  const std::uint32_t most = options_.thread_blocks != 0
                                 ? options_.thread_blocks
                                 : default_thread_blocks(way, device_.multiprocessors());
  const CudaDevice::Kernels& kernels = device_.kernels();
  const bool gathers = direction == Direction::kGather;
  const gpu::Function function = in_bulk ? (gathers ? kernels.gather_bulk : kernels.scatter_bulk)
                                         : (gathers ? kernels.gather : kernels.scatter);
  void* parameters[] = {&argument};
  return device_.check(
      driver.launch(function, static_cast<unsigned>(std::clamp<std::uint64_t>(needed, 1, most)), 1,
                    1, threads, 1, 1, in_bulk ? kBulkSharedBytes : 0, stream, parameters, nullptr),
      "cuLaunchKernel of a copy");
}

// Zeros after the last byte come out of the slot.
Status CudaEngine::copy_by_driver(const CopyPlan& plan, std::span<const BlockCopy> blocks,
                                  gpu::Stream stream, Direction direction, bool in_batches,
                                  std::unique_ptr<LaunchSlot>& slot) {
  for (const BlockCopy& block : blocks) {
    for (const memory::Extent& extent : block.pool)
      CACHALOT_TRY(check_registered(device_.pool(), extent));  // before anything is on the stream
  }
  const std::uint64_t zeros =
      direction == Direction::kGather ? plan.padded_block_bytes() - plan.block_bytes() : 0;
  CACHALOT_TRY_ASSIGN(slot, slots_.take(zeros));
  if (zeros != 0) {
    std::memset(slot->host, 0, zeros);
    CACHALOT_TRY(
        device_.check(device_.driver().copy_to_device(slot->device, slot->host, zeros, stream),
                      "cuMemcpyHtoDAsync"));
  }
  DriverCopies copies(device_, stream, direction, in_batches ? options_.batch_copies : 0);
  // A run of the block, to or from an address of the device's.
  const auto copy_run = [&](ExtentCursor& cursor, std::uint64_t offset, std::uint64_t bytes,
                            std::uint32_t tensor, std::uint64_t device) {
    while (bytes != 0) {
      memory::Extent room = cursor.find(offset);
      room.bytes = std::min(room.bytes, bytes);
      copies.add(room, tensor, device);
      offset += room.bytes;
      device += room.bytes;
      bytes -= room.bytes;
    }
  };
  constexpr std::uint32_t kNoTensor = ~std::uint32_t{0};
  for (const BlockCopy& block : blocks) {
    ExtentCursor cursor(block.pool);
    for_each_fragment(plan.arithmetic(), block.tokens, [&](const Fragment& fragment) {
      const std::uint64_t page = block.pages[fragment.page];
      copy_run(cursor, fragment.pool_offset, fragment.bytes, fragment.tensor,
               tensors_[fragment.tensor] + fragment.engine_offset + page * fragment.page_stride);
      if (fragment.pool_offset + fragment.bytes == plan.block_bytes()) {
        copy_run(cursor, plan.block_bytes(), zeros, kNoTensor, slot->device);
      }
    });
  }
  return copies.finish();
}

Status CudaEngine::copy_rows_by_driver(std::span<const RowPiece> pieces, gpu::Stream stream,
                                       bool in_batches, std::unique_ptr<LaunchSlot>& slot) {
  for (const RowPiece& piece : pieces) CACHALOT_TRY(check_registered(device_.pool(), piece.pool));
  CACHALOT_TRY_ASSIGN(slot, slots_.take(0));
  DriverCopies copies(device_, stream, Direction::kScatter, in_batches ? options_.batch_copies : 0);
  for (const RowPiece& piece : pieces) copies.add(piece.pool, piece.tensor, piece.engine);
  return copies.finish();
}

}  // namespace cachalot::kv
