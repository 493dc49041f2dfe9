#include "tier/controller/tier_copies.h"

#include <cachalot/tier.h>

#include <string>

namespace cachalot {

std::vector<std::string> host_layout_names() {
  return {"layer_first", "page_first", "page_first_direct", "page_head"};
}

namespace tier {

void Bandwidth::add(std::uint64_t bytes, std::uint64_t ns) {
  if (bytes == 0 || ns == 0) return;
  const double now = static_cast<double>(bytes) / static_cast<double>(ns);
  const double before = bytes_per_ns_.load(std::memory_order_relaxed);
  bytes_per_ns_.store(before == 0 ? now : before + (now - before) / 8, std::memory_order_relaxed);
}

Result<std::uint32_t> blocks_of(const KvGeometry& geometry, const PagedCache& device) {
  CACHALOT_TRY(geometry.check());
  const std::uint32_t page_tokens =
      device.page_tokens == 0 ? geometry.block_tokens : device.page_tokens;
  if (geometry.block_tokens % page_tokens != 0) {
    return Error::make(Code::kInvalidArgument,
                       "page_tokens is %u; expected a divisor of the %u tokens of a block",
                       page_tokens, geometry.block_tokens);
  }
  const std::uint32_t blocks = device.pages / (geometry.block_tokens / page_tokens);
  if (blocks == 0) {
    return Error::make(Code::kInvalidArgument, "pages is %u; expected those of a block at least",
                       device.pages);
  }
  return blocks;
}

}  // namespace tier
}  // namespace cachalot
