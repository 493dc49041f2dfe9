// For tests: an engine's cache in any layout with the pages of one request, and the KV that a model would have there.
// Bytes are read and written one by one, by the reference of src/testing/kv.
#pragma once

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "testing/kv/reference.h"
#include "transfer/pair/kv_stream.h"

namespace cachalot::transfer {

// For base::Rng: as wild in the first case as in the last one.
inline std::uint64_t any_seed() {
  return *rc::gen::noShrink(rc::gen::resize(rc::kNominalSize, rc::gen::arbitrary<std::uint64_t>()));
}

// An element of the whole model.
struct Element {
  std::uint64_t part, layer, head, token, byte;
};

// The byte that every rank with this element has.
inline std::byte model_byte(const Element& at) {
  std::uint64_t hash = at.part;
  for (const std::uint64_t word : {at.layer, at.head, at.token, at.byte}) {
    hash = base::mix64(hash * 0x9e3779b97f4a7c15u + word + 1);
  }
  return static_cast<std::byte>(hash);
}

inline KvGeometry any_model(Attention attention, std::uint32_t heads, std::uint32_t layers,
                            base::Rng& rng) {
  KvGeometry g;
  g.layers = layers;
  g.attention = attention;
  g.dtype = static_cast<DType>(rng.below(5));
  g.block_tokens = 1;
  if (attention == Attention::kGrouped) {
    g.kv_heads = heads;
    g.head_dim = static_cast<std::uint32_t>(1 + rng.below(5));
  } else {
    g.kv_lora_rank = static_cast<std::uint32_t>(1 + rng.below(9));
    g.qk_rope_head_dim = static_cast<std::uint32_t>(rng.chance(0.1) ? 0 : 1 + rng.below(9));
  }
  return g;
}

// The rank's part of a model; heads are replicated if there are more ranks than heads.
inline KvGeometry part_of(KvGeometry g, std::uint32_t tp_rank, std::uint32_t tp_size) {
  g.tp_rank = tp_rank;
  g.tp_size = tp_size;
  if (g.attention == Attention::kGrouped) {
    g.tp_replicas = std::max(1u, tp_size / g.kv_heads);
    g.kv_heads = std::max(1u, g.kv_heads / tp_size);
  }
  return g;
}

inline const kv::Layout& any_layout(const KvGeometry& g, base::Rng& rng) {
  for (;;) {
    const kv::Layout& layout = kv::layouts()[rng.below(kv::layouts().size())];
    const kv::Form& form = layout.form(g.attention);
    if (form.order == nullptr) continue;
    // Without a rope part there is nothing that could have a tensor of its own.
    if (g.content_bytes(1) != 0 || std::strchr(form.tensors, 'K') == nullptr) return layout;
  }
}

class TestCache {
 public:
  // Random bytes, random page ids, and up to two pages more than the tokens need.
  TestCache(KvGeometry geometry, const kv::Layout& layout, std::uint32_t page_tokens,
            std::uint64_t tokens, base::Rng& rng)
      : layout_(layout),
        page_tokens_(page_tokens),
        pages_(any_pages((tokens - 1) / page_tokens + 1 + rng.below(3), rng)),
        cache_(shape_of(geometry, page_tokens, static_cast<std::uint32_t>(pages_.size() * 2)),
               layout.form(geometry.attention), rng.next()) {}

  kv::EngineCache view() {
    Result<kv::EngineCache> made =
        kv::EngineCache::make(cache_.shape, layout_.name, cache_.views());
    if (!made) ADD_FAILURE() << made.error().message;
    return *std::move(made);
  }
  std::span<const std::uint32_t> pages() const { return pages_; }
  const kv::Layout& layout() const { return layout_; }
  const KvGeometry& geometry() const { return cache_.shape.geometry; }
  std::uint32_t page_tokens() const { return page_tokens_; }
  std::vector<std::vector<std::uint64_t>>& memory() { return cache_.memory; }

  // In this rank's numbering; token 0 is the first one of the first page.
  std::byte& at(const Element& at) {
    return cache_.at({at.part, at.layer, pages_[at.token / page_tokens_], at.head,
                      at.token % page_tokens_, at.byte});
  }
  // Writes what the model has, into some tokens of all layers and heads.
  void fill(Range layers, Range heads, std::uint64_t first_token, std::uint64_t tokens) {
    for (std::uint32_t part = 0; part < kParts; ++part) {
      for (std::uint64_t layer = 0; layer < layers.count(); ++layer) {
        for (std::uint64_t head = 0; head < heads.count(); ++head) {
          for (std::uint64_t token = first_token; token < first_token + tokens; ++token) {
            for (std::uint64_t byte = 0; byte < geometry().content_bytes(part); ++byte) {
              at({part, layer, head, token, byte}) =
                  model_byte({part, layers.first + layer, heads.first + head, token, byte});
            }
          }
        }
      }
    }
  }

 private:
  static kv::CacheShape shape_of(KvGeometry geometry, std::uint32_t page_tokens,
                                 std::uint32_t pages) {
    geometry.block_tokens = page_tokens;
    return {geometry, page_tokens, pages, 0};
  }
  // `count` of twice as many, in any order.
  static std::vector<std::uint32_t> any_pages(std::uint64_t count, base::Rng& rng) {
    std::vector<std::uint32_t> pages(count * 2);
    std::iota(pages.begin(), pages.end(), 0u);
    for (std::size_t i = pages.size(); i > 1; --i) std::swap(pages[i - 1], pages[rng.below(i)]);
    pages.resize(count);
    return pages;
  }

  const kv::Layout& layout_;
  std::uint32_t page_tokens_;
  std::vector<std::uint32_t> pages_;
  kv::reference::Cache cache_;
};

}  // namespace cachalot::transfer
