// For tests: random caches, block orders, pages and subsets, and what must be true of a copy of
// them.
#pragma once

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstring>
#include <string>
#include <vector>

#include "testing/kv/conformance.h"

namespace cachalot::kv {

inline KvGeometry any_geometry(base::Rng& rng) {
  KvGeometry g;
  g.layers = 1 + static_cast<std::uint32_t>(rng.below(5));
  g.dtype = static_cast<geometry::DType>(rng.below(5));
  g.block_tokens = 1u << rng.below(5);
  if (rng.chance(0.2)) g.block_tokens *= 3;
  if (rng.chance(0.35)) {
    g.attention = Attention::kLatent;
    g.kv_lora_rank = static_cast<std::uint32_t>(1 + rng.below(rng.chance(0.5) ? 9 : 80));
    g.qk_rope_head_dim = static_cast<std::uint32_t>(rng.chance(0.1) ? 0 : 1 + rng.below(40));
    if (g.kv_lora_rank == g.qk_rope_head_dim) ++g.kv_lora_rank;
  } else {
    g.kv_heads = static_cast<std::uint32_t>(1 + rng.below(4));
    g.head_dim =
        static_cast<std::uint32_t>(rng.chance(0.5) ? 1 + rng.below(20) : 16 << rng.below(3));
  }
  return g;
}

// Like a model's: fragments of up to 32 KiB, which are many items of a GPU's.
inline KvGeometry large_geometry(base::Rng& rng) {
  KvGeometry g;
  g.layers = 1 + static_cast<std::uint32_t>(rng.below(2));
  g.kv_heads = 8;
  g.head_dim = 128;
  g.block_tokens = 16;
  return g;
}

inline const Layout& any_layout(const KvGeometry& g, base::Rng& rng) {
  for (;;) {
    const Layout& layout = layouts()[rng.below(layouts().size())];
    const Form& form = layout.form(g.attention);
    if (form.order == nullptr) continue;
    // Without a rope part there is nothing that could have a tensor of its own.
    if (g.content_bytes(1) != 0 || std::strchr(form.tensors, 'K') == nullptr) return layout;
  }
}

inline CacheShape any_shape(const KvGeometry& g, std::uint32_t blocks, base::Rng& rng) {
  CacheShape shape;
  shape.geometry = g;
  do {
    shape.page_tokens = static_cast<std::uint32_t>(1 + rng.below(g.block_tokens));
  } while (g.block_tokens % shape.page_tokens != 0);
  if (rng.chance(0.5)) shape.page_tokens = g.block_tokens;
  shape.pages =
      blocks * (g.block_tokens / shape.page_tokens) + static_cast<std::uint32_t>(rng.below(9));
  return shape;
}

inline std::vector<TokenRange> any_tokens(std::uint32_t block_tokens, base::Rng& rng) {
  std::vector<TokenRange> out;
  for (std::uint32_t at = 0; at < block_tokens;) {
    const auto first = at + static_cast<std::uint32_t>(rng.below(3));
    const auto last = first + 1 + static_cast<std::uint32_t>(rng.below(4));
    if (last > block_tokens) break;
    out.push_back({first, last});
    at = last;
  }
  if (out.empty()) out.push_back({block_tokens - 1, block_tokens});
  return out;
}

// Ascending tokens below `tokens` for each list; often the same as the list before.
inline std::vector<std::vector<std::uint32_t>> any_lists(std::uint32_t count, std::uint32_t tokens,
                                                         base::Rng& rng) {
  std::vector<std::vector<std::uint32_t>> out(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    if (i != 0 && rng.chance(0.3)) {
      out[i] = out[i - 1];
      continue;
    }
    const double share = rng.chance(0.1) ? 0 : rng.chance(0.2) ? 1 : 0.4;
    for (std::uint32_t token = 0; token < tokens; ++token) {
      if (rng.chance(share)) out[i].push_back(token);
    }
  }
  return out;
}

inline std::vector<bool> chosen_of(const std::vector<TokenRange>& ranges,
                                   std::uint32_t block_tokens) {
  std::vector<bool> out(block_tokens, ranges.empty());
  for (const TokenRange& range : ranges) {
    for (std::uint32_t token = range.first; token < range.last; ++token) out[token] = true;
  }
  return out;
}

// One side of a case: a cache, its checked view, and the pages of each block.
struct Side {
  Side(const CacheShape& shape, const Layout& row, std::uint32_t blocks, std::uint64_t seed)
      : layout(row), cache(shape, row.form(shape.geometry.attention), seed) {
    base::Rng rng(seed);
    const std::uint32_t each = shape.geometry.block_tokens / shape.tokens_of_page();
    const std::vector<std::uint32_t> all = some_pages(shape.pages, blocks * each, rng);
    for (std::uint32_t i = 0; i < blocks; ++i) {
      pages.emplace_back(all.begin() + i * each, all.begin() + (i + 1) * each);
    }
  }
  EngineCache view() {
    Result<EngineCache> made = EngineCache::make(cache.shape, layout.name, cache.views());
    RC_ASSERT(made.ok());
    return *std::move(made);
  }

  const Layout& layout;
  reference::Cache cache;
  std::vector<std::vector<std::uint32_t>> pages;
};

// Everything random about a case, and what must be true of it.
class Case {
 public:
  Case(std::uint64_t seed, memory::DomainKind domain, EngineKind kind, memory::Isa isa)
      : rng_(seed),
        kind_(kind),
        blocks_(1 + static_cast<std::uint32_t>(rng_.below(3))),
        geometry_(rng_.chance(0.08) ? large_geometry(rng_) : any_geometry(rng_)),
        order_(block_orders()[rng_.below(block_orders().size())]),
        world_(domain, isa, seed),
        from_(any_shape(geometry_, blocks_, rng_), any_layout(geometry_, rng_), blocks_, seed + 1),
        to_(any_shape(geometry_, blocks_, rng_), any_layout(geometry_, rng_), blocks_, seed + 2),
        padded_((geometry_.block_bytes() + 63) / 64 * 64),
        piece_(64 * (1 + rng_.below(padded_ / 64))) {
    RC_PRE(blocks_ * 2 * padded_ <= World::kPoolBytes);
  }

  void run() {
    RC_LOG() << from_.layout.name << " to " << to_.layout.name << ", " << order_.name << ", "
             << geometry_.fingerprint() << ", page_tokens " << from_.cache.shape.page_tokens
             << " and " << to_.cache.shape.page_tokens << std::endl;
    gather_all();
    check_pool();
    scatter_whole();
    scatter_some();
    for (const TokenPlace place : {TokenPlace::kOwn, TokenPlace::kPacked}) scatter_rows(place);
  }

 private:
  std::vector<memory::Extent> pool(bool writes, std::uint32_t block) const {
    return world_.extents(writes, block, padded_, piece_);
  }

  // What the block must be, by the reference.
  std::vector<std::byte> expected_block(std::uint32_t block) {
    std::vector<std::byte> out(padded_);
    reference::for_each_byte(from_.cache, order_, from_.pages[block], 0, geometry_.layers,
                             chosen_of({}, geometry_.block_tokens),
                             [&](std::byte& byte, std::uint64_t offset) { out[offset] = byte; });
    return out;
  }

  void gather_all() {
    const EngineCache view = from_.view();
    const auto engine =
        make_engine(kind_, view, from_.cache.views(), order_, world_.writer(), world_);
    std::vector<std::vector<memory::Extent>> extents;
    std::vector<memory::FusedHash> hashes(blocks_, memory::FusedHash(padded_));
    std::vector<BlockCopy> copies;
    for (std::uint32_t i = 0; i < blocks_; ++i) extents.push_back(pool(true, i));
    for (std::uint32_t i = 0; i < blocks_; ++i) {
      copies.push_back({extents[i], from_.pages[i], {}, &hashes[i]});
    }
    gather_by_layers_or_whole(*engine, copies);
    world_.writer().complete();
    for (std::uint32_t i = 0; i < blocks_; ++i) {
      const std::vector<std::byte> expected = expected_block(i);
      RC_ASSERT(hashes[i].finish() == memory::hash_lines(expected.data(), padded_));
    }
  }

  // Layer by layer where that is possible, with one hash over all.
  void gather_by_layers_or_whole(CopyEngine& engine, std::vector<BlockCopy>& copies) {
    if (rng_.chance(0.5)) return RC_ASSERT(engine.gather(copies).ok());
    const Status first = engine.gather(copies, {0, 1});
    if (!first) {
      const std::string message = first.error().message;
      RC_ASSERT(message.find("whole 64-byte lines") != std::string::npos ||
                message.find("expected one, as the hash") != std::string::npos);
      return RC_ASSERT(engine.gather(copies).ok());
    }
    for (std::uint32_t layer = 1; layer < geometry_.layers; ++layer) {
      RC_ASSERT(engine.gather(copies, {layer, layer + 1}).ok());
    }
  }

  void check_pool() {
    for (std::uint32_t i = 0; i < blocks_; ++i) {
      std::vector<std::byte> found(padded_);
      std::uint64_t done = 0;
      for (const memory::Extent& extent : pool(false, i)) {
        world_.reader().read_bulk(found.data() + done, extent.at, extent.bytes);
        done += extent.bytes;
      }
      const bool same = found == expected_block(i);
      RC_ASSERT(same);
    }
  }

  void scatter(LayerRange layers, const std::vector<TokenRange>& tokens, bool hashed) {
    const EngineCache view = to_.view();
    const auto engine =
        make_engine(kind_, view, to_.cache.views(), order_, world_.reader(), world_);
    std::vector<std::vector<memory::Extent>> extents;
    std::vector<memory::FusedHash> hashes(blocks_, memory::FusedHash(padded_));
    std::vector<BlockCopy> copies;
    for (std::uint32_t i = 0; i < blocks_; ++i) extents.push_back(pool(false, i));
    reference::Cache wanted = to_.cache;
    const std::uint32_t last = layers.last == 0 ? geometry_.layers : layers.last;
    for (std::uint32_t i = 0; i < blocks_; ++i) {
      copies.push_back({extents[i], to_.pages[i], tokens, hashed ? &hashes[i] : nullptr});
      const std::vector<std::byte> block = expected_block(i);
      reference::for_each_byte(wanted, order_, to_.pages[i], layers.first, last,
                               chosen_of(tokens, geometry_.block_tokens),
                               [&](std::byte& byte, std::uint64_t at) { byte = block[at]; });
    }
    RC_ASSERT(engine->scatter(copies, layers).ok());
    const bool same = to_.cache.memory == wanted.memory;
    RC_ASSERT(same);
    for (std::uint32_t i = 0; hashed && i < blocks_; ++i) {
      RC_ASSERT(hashes[i].finish() == memory::hash_lines(expected_block(i).data(), padded_));
    }
  }

  // Other bytes, so that nothing is right from before.
  void spoil_pages() {
    for (auto& tensor : to_.cache.memory) {
      for (std::uint64_t& word : tensor) word = ~word;
    }
  }

  void scatter_some() {
    spoil_pages();
    const auto first = static_cast<std::uint32_t>(rng_.below(geometry_.layers));
    const auto last = first + 1 + static_cast<std::uint32_t>(rng_.below(geometry_.layers - first));
    const std::vector<TokenRange> tokens = any_tokens(geometry_.block_tokens, rng_);
    scatter({first, last}, {}, false);
    scatter({}, tokens, false);
    scatter({first, last}, tokens, false);
  }
  // Of each layer and head its own tokens, of all or some of the blocks, in one call or one for each block.
  void scatter_rows(TokenPlace place) {
    spoil_pages();
    const auto first = static_cast<std::uint32_t>(rng_.below(geometry_.layers));
    const auto last = first + 1 + static_cast<std::uint32_t>(rng_.below(geometry_.layers - first));
    const std::uint32_t heads = geometry_.heads(), chain = blocks_ * geometry_.block_tokens;
    const std::vector<std::vector<std::uint32_t>> lists =
        any_lists((last - first) * heads, chain, rng_);
    std::vector<std::uint32_t> pages;
    for (const std::vector<std::uint32_t>& of_block : to_.pages)
      pages.insert(pages.end(), of_block.begin(), of_block.end());
    if (place == TokenPlace::kPacked) {
      std::size_t longest = 0;
      for (const std::vector<std::uint32_t>& list : lists) longest = std::max(longest, list.size());
      const std::uint32_t each = to_.cache.shape.tokens_of_page();
      pages.resize((longest + each - 1) / each);
    }
    const EngineCache view = to_.view();
    const auto engine =
        make_engine(kind_, view, to_.cache.views(), order_, world_.reader(), world_);
    const std::vector<std::span<const std::uint32_t>> spans(lists.begin(), lists.end());
    const Result<RowPlan> plan = RowPlan::make(
        view, order_, {spans, heads, 0, pages, place, blocks_}, LayerRange{first, last});
    RC_ASSERT(plan.ok());

    std::vector<std::vector<memory::Extent>> extents;
    std::vector<RowBlock> blocks;
    std::vector<std::vector<std::byte>> bytes;  // empty: the block is left out
    for (std::uint32_t i = 0; i < blocks_; ++i) {
      extents.push_back(pool(false, i));
      bytes.push_back(rng_.chance(0.2) ? std::vector<std::byte>() : expected_block(i));
    }
    for (std::uint32_t i = 0; i < blocks_; ++i) {
      if (!bytes[i].empty()) blocks.push_back({extents[i], i});
    }
    reference::Cache wanted = to_.cache;
    reference::place_rows(wanted, order_, lists, pages, place, first, bytes);
    if (rng_.chance(0.5)) {
      RC_ASSERT(engine->scatter_rows(*plan, blocks).ok());
    } else {
      for (const RowBlock& block : blocks) RC_ASSERT(engine->scatter_rows(*plan, {&block, 1}).ok());
    }
    const bool same = to_.cache.memory == wanted.memory;
    RC_ASSERT(same);
  }

  void scatter_whole() { scatter({}, {}, rng_.chance(0.7)); }

  base::Rng rng_;
  EngineKind kind_;
  std::uint32_t blocks_;
  KvGeometry geometry_;
  const BlockOrder& order_;
  World world_;
  Side from_, to_;
  std::uint64_t padded_, piece_;
};

}  // namespace cachalot::kv
