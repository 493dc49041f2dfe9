#include "kv/page_copy.h"

#include <cstring>
#include <numeric>

namespace cachalot::kv {
namespace {

// The blocks of one cache in one part and layer.
struct Side {
  Side(const EngineCache& cache, std::uint32_t part, std::uint32_t layer)
      : strides(cache.strides().part[part]),
        base(cache.bases()[strides.tensor + layer * strides.layer_tensors] + strides.offset +
             layer * strides.layer),
        page_tokens(cache.page_tokens()),
        pages_per_block(cache.pages_per_block()) {}

  std::byte* at(std::uint32_t block, std::uint32_t token) const {
    const std::uint64_t page = std::uint64_t{block} * pages_per_block + token / page_tokens;
    return base + page * strides.page + token % page_tokens * strides.token;
  }

  const PartStrides& strides;
  std::byte* base;
  std::uint32_t page_tokens;
  std::uint32_t pages_per_block;
};

}  // namespace

Result<PageCopy> PageCopy::make(const EngineCache& from, const EngineCache& to) {
  if (!(from.geometry() == to.geometry())) {
    return Error::make(Code::kInvalidArgument,
                       "page copy: the caches have the geometries %s and %s; expected equal ones",
                       from.geometry().fingerprint().c_str(), to.geometry().fingerprint().c_str());
  }
  return PageCopy(from, to);
}

void PageCopy::copy(std::span<const PagePair> blocks, LayerRange layers) const {
  const std::uint32_t last = layers.last == 0 ? from_->geometry().layers : layers.last;
  for (std::uint32_t layer = layers.first; layer < last; ++layer) {
    for (const PagePair& block : blocks) {
      for (std::uint32_t part = 0; part < kParts; ++part) copy_part(part, layer, block);
    }
  }
}

void PageCopy::copy_part(std::uint32_t part, std::uint32_t layer, const PagePair& block) const {
  const KvGeometry& geometry = from_->geometry();
  const std::uint64_t content = geometry.content_bytes(part);
  if (content == 0) return;  // a latent without a rope part
  const Side from(*from_, part, layer), to(*to_, part, layer);
  const std::uint32_t heads = geometry.heads();
  const bool merges_heads =
      heads == 1 || (from.strides.head == content && to.strides.head == content);
  const std::uint64_t token_bytes = content * heads;
  const bool merges_tokens =
      merges_heads && from.strides.token == token_bytes && to.strides.token == token_bytes;
  const std::uint32_t run_tokens = merges_tokens ? std::gcd(from.page_tokens, to.page_tokens) : 1;
  for (std::uint32_t token = 0; token < geometry.block_tokens; token += run_tokens) {
    const std::byte* source = from.at(block.from, token);
    std::byte* target = to.at(block.to, token);
    if (merges_heads) {
      std::memcpy(target, source, token_bytes * run_tokens);
      continue;
    }
    for (std::uint32_t head = 0; head < heads; ++head)
      std::memcpy(target + head * to.strides.head, source + head * from.strides.head, content);
  }
}

}  // namespace cachalot::kv
