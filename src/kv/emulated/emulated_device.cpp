#include "kv/emulated/emulated_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kv/walk.h"

namespace cachalot::kv {
namespace {

constexpr std::uint64_t kLineBytes = memory::kLineBytes;
constexpr std::uint64_t kAccessBytes = 16;

// What a launch takes: values, and pointers into device memory.
struct KernelArguments {
  Plan plan;
  std::byte* const* bases;
  const std::uint32_t* pages;
  const std::uint32_t* tokens;  // null: all
  std::uint32_t token_count;
  const memory::Extent* extents;
  std::uint64_t last_byte;  // of the block, and where its last line ends
  std::uint64_t padded_bytes;
  bool gather;
};

std::byte* pool_at(const memory::Extent* extent, std::uint64_t offset) {
  for (; offset >= extent->bytes; ++extent) offset -= extent->bytes;
  return extent->at + offset;
}

// One access of one thread: 16 bytes where both sides allow it, else byte by byte, as a kernel
// would fall back. A line is never in two extents, so an access is not either.
void access(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  struct alignas(kAccessBytes) Wide {
    std::byte bytes[kAccessBytes];
  };
  const auto places = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from);
  if (bytes == kAccessBytes && places % kAccessBytes == 0) {
    *reinterpret_cast<Wide*>(to) = *reinterpret_cast<const Wide*>(from);
    return;
  }
  for (std::uint64_t i = 0; i < bytes; ++i) to[i] = from[i];
}

// The kernel, for one thread of one thread block.
void copy_kernel(const KernelArguments& arguments, const Grid& grid, std::uint32_t block,
                 std::uint32_t thread) {
  const std::uint64_t count = fragment_count(arguments.plan, arguments.token_count);
  for (std::uint64_t i = block; i < count; i += grid.blocks) {
    const Fragment piece = fragment(arguments.plan, i, arguments.tokens, arguments.token_count);
    std::byte* const engine = arguments.bases[piece.tensor] + piece.engine_offset +
                              arguments.pages[piece.page] * piece.page_stride;
    // Units are cut where the pool's 16-byte units are, so that none crosses a line.
    const std::uint64_t head = piece.pool_offset % kAccessBytes;
    for (std::uint64_t unit = thread * kAccessBytes; unit < head + piece.bytes;
         unit += grid.threads * kAccessBytes) {
      const std::uint64_t first = std::max(unit, head) - head;
      const std::uint64_t last = std::min(unit + kAccessBytes - head, piece.bytes);
      std::byte* const pool = pool_at(arguments.extents, piece.pool_offset + first);
      if (arguments.gather) {
        access(pool, engine + first, last - first);
      } else {
        access(engine + first, pool, last - first);
      }
    }
  }
  const std::uint64_t padding = arguments.padded_bytes - arguments.last_byte;
  if (!arguments.gather || block != 0 || thread != 0 || padding == 0) return;
  std::byte* const end = pool_at(arguments.extents, arguments.last_byte);
  for (std::uint64_t i = 0; i < padding; ++i) end[i] = std::byte{0};
}

void launch(const KernelArguments& arguments, const Grid& grid) {
  for (std::uint32_t block = 0; block < grid.blocks; ++block) {
    for (std::uint32_t thread = 0; thread < grid.threads; ++thread) {
      copy_kernel(arguments, grid, block, thread);
    }
  }
}

std::vector<std::uint32_t> tokens_of(const BlockCopy& block) {
  std::vector<std::uint32_t> tokens;
  for (const TokenRange& range : block.tokens) {
    for (std::uint32_t token = range.first; token < range.last; ++token) tokens.push_back(token);
  }
  return tokens;
}

// True if the last line of the block is among what is copied.
bool ends_the_block(const CopyPlan& plan, const BlockCopy& block) {
  std::uint64_t end = 0;
  for_each_fragment(plan.arithmetic(), block.tokens, [&](const Fragment& piece) {
    end = std::max(end, piece.pool_offset + piece.bytes);
  });
  return end == plan.block_bytes();
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
                                            memory::Domain& domain, const Grid& grid) {
  if (grid.blocks == 0 || grid.threads == 0) {
    return Error::make(Code::kInvalidArgument,
                       "emulated device: a grid of %u blocks of %u threads, expected at least one",
                       grid.blocks, grid.threads);
  }
  if (domain.kind() == memory::DomainKind::kLossy) {
    return Error::make(Code::kUnsupported,
                       "emulated device: the lossy domain has no memory that a device could reach");
  }
  return EmulatedEngine(cache, order, domain, grid);
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
  const bool gather = direction == Direction::kGather;
  for (const BlockCopy& block : blocks) {
    if (!gather) domain_->prepare_read(block.pool.data(), block.pool.size());
    const std::vector<std::uint32_t> tokens = tokens_of(block);
    const std::uint64_t padded =
        ends_the_block(plan, block) ? plan.padded_block_bytes() : plan.block_bytes();
    launch({plan.arithmetic(), cache_->bases().data(), block.pages.data(),
            tokens.empty() ? nullptr : tokens.data(), static_cast<std::uint32_t>(tokens.size()),
            block.pool.data(), plan.block_bytes(), padded, gather},
           grid_);
    finish(plan, block, direction);
  }
  return {};
}

// The host's part afterwards: the checksum, and after a gather nothing may stay in a cache.
void EmulatedEngine::finish(const CopyPlan& plan, const BlockCopy& block,
                            Direction direction) const {
  if (block.hash != nullptr) {
    std::uint64_t line = ~std::uint64_t{0};  // the last that was hashed
    for_each_fragment(plan.arithmetic(), block.tokens, [&](const Fragment& piece) {
      const std::uint64_t end = piece.pool_offset + piece.bytes;
      for (std::uint64_t at = piece.pool_offset / kLineBytes * kLineBytes; at < end;
           at += kLineBytes) {
        if (at == line) continue;
        block.hash->update(pool_at(block.pool.data(), at), kLineBytes);
        line = at;
      }
    });
  }
  if (direction == Direction::kGather) {
    domain_->prepare_read(block.pool.data(), block.pool.size());
    domain_->order();
  }
}

}  // namespace cachalot::kv
