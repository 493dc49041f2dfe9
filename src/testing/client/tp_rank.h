// For tests: ranks of engines of any tensor parallelism, whose bytes follow from the model alone: a naive reference
// that knows neither groups nor plans.
#pragma once

#include <cachalot/client.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "client/fingerprint.h"
#include "kv/layout.h"
#include "kv/plan.h"
#include "pool/pool.h"
#include "testing/client/test_cluster.h"
#include "testing/kv/reference.h"

namespace cachalot::client {

// A model, or a pipeline stage of it.
struct TpModel {
  std::uint32_t heads = 8;  // of all ranks; 0: a latent
  std::uint32_t head_dim = 8;
  std::uint32_t layers = 2;
  std::uint32_t block_tokens = 4;
  std::uint32_t pp_rank = 0, pp_size = 1;
  DType dtype = DType::kBf16;

  KvGeometry of_rank(std::uint32_t rank, std::uint32_t tp_size) const {
    KvGeometry g;
    g.layers = layers;
    g.block_tokens = block_tokens;
    g.dtype = dtype;
    g.tp_rank = rank;
    g.tp_size = tp_size;
    g.pp_rank = pp_rank;
    g.pp_size = pp_size;
    if (heads == 0) {
      g.attention = Attention::kLatent;
      g.kv_lora_rank = 2 * head_dim;
      g.qk_rope_head_dim = head_dim;
      return g;
    }
    g.tp_replicas = tp_size > heads ? tp_size / heads : 1;
    g.kv_heads = tp_size > heads ? 1 : heads / tp_size;
    g.head_dim = head_dim;
    return g;
  }
  // A byte of a block.
  std::byte at(const BlockHash& block, std::uint64_t head,
               const kv::reference::Place& place) const {
    std::uint64_t x = block.low ^ pp_rank;
    for (const std::uint64_t part : {head, place.part, place.layer, place.token, place.byte})
      x = base::mix64(x + part + 1);
    return static_cast<std::byte>(x);
  }
};

// How a rank keeps its pages.
struct TpPages {
  const char* layout = "vllm_bknhc";
  std::uint32_t pages = 16;
  std::uint32_t page_tokens = 0;
};

// One rank: its client, and its cache.
class TpRank {
 public:
  TpRank(const TpModel& model, const ClientOptions& options, const TpPages& pages = {})
      : model_(model),
        geometry_(options.geometry),
        memory_(shape_of(options.geometry, pages), form_of(options.geometry, pages.layout), 7),
        client(Engine::attach(options)) {
    PagedCache description{
        .layout = pages.layout, .pages = pages.pages, .page_tokens = pages.page_tokens};
    for (const kv::Tensor& tensor : memory_.views())
      description.tensors.push_back({tensor.at, tensor.bytes});
    const Result<CacheId> registered = client.register_cache(description);
    EXPECT_TRUE(registered) << (registered ? "" : registered.error().message);
    if (registered) cache = *registered;
  }

  std::uint32_t pages_per_block() const {
    return geometry_.block_tokens / memory_.shape.tokens_of_page();
  }
  // All pages of blocks that are numbered from 0.
  std::vector<PageId> first_pages(std::size_t blocks) const {
    std::vector<PageId> pages(blocks * pages_per_block());
    std::iota(pages.begin(), pages.end(), PageId{0});
    return pages;
  }
  // "Computes" blocks into pages.
  void compute(std::span<const BlockHash> blocks, std::span<const PageId> pages) {
    for (std::size_t i = 0; i < blocks.size(); ++i) fill(memory_, blocks, pages, i, {}, {});
  }
  // Remembers the cache, so that is_changed_by() can say what a load has done.
  void remember() { before_ = memory_.memory; }
  // Whether the load of the first `count` blocks has changed these tokens and layers, and no other byte before the
  // pages of block `count`. (Those after may be overwritten.)
  bool is_changed_by(std::span<const BlockHash> blocks, std::span<const PageId> pages,
                     std::size_t count, kv::LayerRange layers = {},
                     std::span<const TokenRange> tokens = {}) {
    kv::reference::Cache wanted = memory_;
    wanted.memory = before_;
    for (std::size_t i = 0; i < count; ++i) fill(wanted, blocks, pages, i, layers, tokens);
    for (std::size_t i = count; i < blocks.size(); ++i) copy_pages(memory_, wanted, pages, i);
    return memory_.memory == wanted.memory;
  }
  // The same of a load of some tokens of each layer and head, given as kv::reference::place_rows() wants them. Rows of
  // tokens after the first `count` blocks may be anything.
  bool is_changed_by_rows(std::span<const BlockHash> blocks, const std::vector<PageId>& pages,
                          std::size_t count, std::uint32_t first_layer,
                          const std::vector<std::vector<std::uint32_t>>& lists, TokenPlace where) {
    kv::reference::Cache wanted = memory_;
    wanted.memory = before_;
    const std::uint32_t each = memory_.shape.tokens_of_page();
    for (std::size_t i = 0; i < lists.size(); ++i) {
      for (std::size_t k = 0; k < lists[i].size(); ++k) {
        const std::uint32_t token = lists[i][k];
        const std::size_t block = token / geometry_.block_tokens;
        const std::size_t to = where == TokenPlace::kOwn ? token : k;
        for_each_byte_of_row(first_layer + i / geometry_.heads(), i % geometry_.heads(),
                             [&](kv::reference::Place place) {
                               place.page = pages[to / each];
                               place.token = to % each;
                               std::byte& at = wanted.at(place);
                               at = memory_.at(place);
                               if (block >= count) return;
                               place.token = token % geometry_.block_tokens;
                               at = model_.at(blocks[block], first_head() + place.head, place);
                             });
      }
    }
    return memory_.memory == wanted.memory;
  }
  std::uint32_t layers() const { return geometry_.layers; }
  std::uint32_t heads() const { return geometry_.heads(); }
  std::uint32_t page_tokens() const { return memory_.shape.tokens_of_page(); }

 private:
  static kv::CacheShape shape_of(const KvGeometry& geometry, const TpPages& pages) {
    return {geometry, pages.page_tokens, pages.pages, 0};
  }
  static kv::Form form_of(const KvGeometry& geometry, const char* layout) {
    return (*kv::find_layout(layout))->form(geometry.attention);
  }

  // Of the model's heads.
  std::uint64_t first_head() const {
    if (model_.heads == 0) return 0;
    return std::uint64_t{geometry_.tp_rank} * model_.heads / geometry_.tp_size;
  }

  // Calls f(place) for each byte that a head keeps of a token; page and token are for f to set.
  template <class F>
  void for_each_byte_of_row(std::uint64_t layer, std::uint64_t head, F&& f) const {
    for (std::uint64_t part = 0; part < kParts; ++part) {
      const std::uint64_t bytes = geometry_.content_bytes(static_cast<std::uint32_t>(part));
      for (std::uint64_t byte = 0; byte < bytes; ++byte)
        f(kv::reference::Place{part, layer, 0, head, 0, byte});
    }
  }

  // Calls f(place in the cache, token of the block) for each byte of block i.
  template <class F>
  void visit(std::span<const PageId> pages, std::size_t i, F&& f) const {
    const std::uint32_t page_tokens = memory_.shape.tokens_of_page();
    for (std::uint64_t part = 0; part < kParts; ++part) {
      const std::uint64_t bytes = geometry_.content_bytes(static_cast<std::uint32_t>(part));
      for (std::uint64_t layer = 0; layer < geometry_.layers; ++layer) {
        for (std::uint32_t token = 0; token < geometry_.block_tokens; ++token) {
          const PageId page = pages[i * pages_per_block() + token / page_tokens];
          for (std::uint64_t head = 0; head < geometry_.heads(); ++head) {
            for (std::uint64_t byte = 0; byte < bytes; ++byte) {
              f(kv::reference::Place{part, layer, page, head, token % page_tokens, byte}, token);
            }
          }
        }
      }
    }
  }

  void fill(kv::reference::Cache& to, std::span<const BlockHash> blocks,
            std::span<const PageId> pages, std::size_t i, kv::LayerRange layers,
            std::span<const TokenRange> tokens) const {
    const std::uint32_t last = layers.last == 0 ? geometry_.layers : layers.last;
    visit(pages, i, [&](kv::reference::Place place, std::uint32_t token) {
      const bool is_chosen =
          tokens.empty() || std::any_of(tokens.begin(), tokens.end(), [&](const TokenRange& range) {
            return token >= range.first && token < range.last;
          });
      if (!is_chosen || place.layer < layers.first || place.layer >= last) return;
      std::byte& at = to.at(place);
      place.token = token;
      at = model_.at(blocks[i], first_head() + place.head, place);
    });
  }

  void copy_pages(kv::reference::Cache& from, kv::reference::Cache& to,
                  std::span<const PageId> pages, std::size_t i) const {
    visit(pages, i,
          [&](const kv::reference::Place& place, std::uint32_t) { to.at(place) = from.at(place); });
  }

  const TpModel model_;
  const KvGeometry geometry_;
  kv::reference::Cache memory_;
  std::vector<std::vector<std::uint64_t>> before_;

 public:
  CacheId cache{};
  Client client;  // destroyed first: it carries out what was begun, into memory_
};

// --- Around a rank --------------------------------------------------------------------------------

inline ClientOptions options_of(const Cluster& cluster, const TpModel& model, std::uint32_t rank,
                                std::uint32_t tp_size, std::uint32_t share_tp,
                                const char* block_order = "layer_first") {
  ClientOptions options = cluster.client_options();
  options.geometry = model.of_rank(rank, tp_size);
  options.share_tp = share_tp;
  options.block_order = block_order;
  return options;
}

inline std::vector<BlockHash> prompt_of(const TpRank& rank, std::uint64_t seed,
                                        std::size_t blocks) {
  return rank.client.hash_tokens(tokens_of(seed, blocks * rank.client.geometry().block_tokens));
}

// A layout that the attention has, and a page size.
inline TpPages any_pages(const TpModel& model, base::Rng& rng) {
  const Attention attention = model.of_rank(0, 1).attention;
  const kv::Layout* layout = nullptr;
  while (layout == nullptr || layout->form(attention).order == nullptr)
    layout = &kv::layouts()[rng.below(kv::layouts().size())];
  const std::uint32_t page_tokens = 1u << rng.below(3);
  return {layout->name, 16 * model.block_tokens / page_tokens, page_tokens};
}

// Drops a pool block, and all after it in its chain, as an operator does.
inline void evict(const ClientOptions& of, const BlockHash& name) {
  Result<pool::Pool> pool = pool::Pool::open(of.pool, {});
  ASSERT_TRUE(pool) << pool.error().message;
  pool::ClientOptions options;
  options.fingerprint = fingerprint_of(of);
  options.is_operator = true;
  Result<pool::PoolClient> client = pool->attach(options);
  ASSERT_TRUE(client) << client.error().message;
  const Result<std::uint32_t> dropped = (*client)->requests().evict(name);
  ASSERT_TRUE(dropped) << dropped.error().message;
}

}  // namespace cachalot::client
