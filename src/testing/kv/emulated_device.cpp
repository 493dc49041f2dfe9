#include "testing/kv/emulated_device.h"

#include <cstdlib>
#include <cstring>

#include "kv/fused/host_part.h"
#include "kv/fused/tables.h"
#include "testing/kv/kernels.h"

namespace cachalot::kv {
namespace {

// A launch, as the grid says.
template <Direction kDirection>
void launch(const CallView& call, const Grid& grid, Kernel kernel) {
  emulated::PlainMemory memory;
  if (kernel == Kernel::kBulk) return emulated::launch_bulk<kDirection>(call, grid.blocks, memory);
  emulated::launch_threads<kDirection>(call, grid.blocks, grid.threads, memory);
}

bool can_go_in_bulk(const CopyPlan& plan, std::span<const std::uint64_t> tensors) {
  return pool_alignment(plan.arithmetic()) >= kUnitBytes &&
         engine_alignment(plan.arithmetic(), tensors) >= kUnitBytes;
}

}  // namespace

Result<EmulatedMemory> EmulatedMemory::make(std::uint64_t bytes) {
  constexpr std::uint64_t kAlignment = 256;  // as device allocations have
  const std::uint64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto* const memory =
      rounded < bytes ? nullptr : static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
  if (memory == nullptr) {
    return Error::make(Code::kNoSpace, "emulated device: no %llu bytes of memory to be had",
                       static_cast<unsigned long long>(bytes));
  }
  std::memset(memory, 0, rounded);
  return EmulatedMemory(memory, bytes);
}

void EmulatedMemory::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

Result<EmulatedEngine> EmulatedEngine::make(const EngineCache& cache, const BlockOrder& order,
                                            memory::Domain& domain, const Grid& grid,
                                            Kernel kernel) {
  if (grid.blocks == 0 || grid.threads == 0) {
    return Error::make(Code::kInvalidArgument,
                       "emulated device: a grid of %u blocks of %u threads, expected at least one",
                       grid.blocks, grid.threads);
  }
  if (domain.kind() == memory::DomainKind::kLossy) {
    return Error::make(Code::kUnsupported,
                       "emulated device: the lossy domain has no memory that a device could reach");
  }
  return EmulatedEngine(cache, order, domain, grid, kernel);
}

Status EmulatedEngine::gather(std::span<const BlockCopy> blocks, LayerRange layers) {
  return copy(blocks, layers, Direction::kGather);
}

Status EmulatedEngine::scatter(std::span<const BlockCopy> blocks, LayerRange layers) {
  return copy(blocks, layers, Direction::kScatter);
}

Status EmulatedEngine::copy(std::span<const BlockCopy> blocks, LayerRange layers,
                            Direction direction) {
  CACHALOT_TRY_ASSIGN(const CopyPlan plan,
                      CopyPlan::compile(*cache_, *order_, layers, grain_of(blocks)));
  CACHALOT_TRY(check_blocks(*cache_, plan, blocks, direction));
  std::vector<std::uint64_t> tensors;
  for (std::byte* const base : cache_->bases()) {
    tensors.push_back(reinterpret_cast<std::uintptr_t>(base));
  }
  const Kernel kernel = can_go_in_bulk(plan, tensors) ? kernel_ : Kernel::kThreads;
  // Stages of a few units, so that a small block goes round the ring.
  const WorkShape shape = kernel == Kernel::kBulk ? WorkShape{1, 5 * kUnitBytes}
                                                  : shape_for(plan.arithmetic(), grid_.threads);
  CACHALOT_TRY_ASSIGN(const CallTables tables,
                      CallTables::make(plan, blocks, tensors, nullptr, shape));
  const FusedCall told = tables.call_at(reinterpret_cast<std::uintptr_t>(tables.bytes().data()));
  const CallView call(told, told.tables);
  const HostPart host(plan, blocks);
  if (direction == Direction::kGather) {
    launch<Direction::kGather>(call, grid_, kernel);
    host.after_gather(*domain_);
  } else {
    host.before_scatter(*domain_);
    launch<Direction::kScatter>(call, grid_, kernel);
  }
  host.hash();
  return {};
}

}  // namespace cachalot::kv
