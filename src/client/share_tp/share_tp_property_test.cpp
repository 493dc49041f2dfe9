// Ranks of random models and tensor parallelisms store, load and evict in any order: each hit is what a model of a
// counter per group says, and each byte is that of a naive reference.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "block_hash/block_hash.h"
#include "testing/client/tp_rank.h"
#include "testing/kv/conformance.h"
#include "testing/kv/random_case.h"

namespace cachalot::client {
namespace {

class Ranks {
 public:
  static constexpr std::size_t kBlocks = 6;
  static constexpr std::uint64_t kPrompts = 2;

  explicit Ranks(std::uint64_t seed)
      : rng_(seed),
        share_tp_(any_groups()),
        model_(any_model()),
        order_(kv::block_orders()[rng_.below(kv::block_orders().size())]),
        cluster_(1 << 14, 512, rng_.chance(0.5) ? "coherent" : "noncoherent"),
        stored_(kPrompts, std::vector<std::size_t>(share_tp_, 0)) {
    for (int i = 0; i < 3; ++i) add_rank();
  }

  void run() {
    RC_LOG() << model_.heads << " heads, share_tp " << share_tp_ << ", " << order_.name
             << std::endl;
    for (int step = 0; step < 14; ++step) {
      const std::size_t rank = rng_.below(ranks_.size());
      const std::uint64_t prompt = rng_.below(kPrompts);
      switch (rng_.below(6)) {
        case 0:
        case 1:
          store(*ranks_[rank], prompt);
          break;
        case 2:
          evict_any(prompt);
          break;
        default:
          load(*ranks_[rank], prompt);
      }
    }
  }

 private:
  struct OneRank {
    std::uint32_t first_group, groups;
    TpRank rank;
    TpPages pages;
  };

  std::uint32_t any_groups() {
    static constexpr std::uint32_t kGroups[] = {1, 2, 3, 4, 6, 8};
    return kGroups[rng_.below(std::size(kGroups))];
  }
  TpModel any_model() {
    TpModel model;
    model.heads = share_tp_ * (1 + static_cast<std::uint32_t>(rng_.below(2)));
    if (share_tp_ == 1 && rng_.chance(0.5)) model.heads = 0;
    model.head_dim = 2 + static_cast<std::uint32_t>(rng_.below(9));
    model.layers = 1 + static_cast<std::uint32_t>(rng_.below(3));
    model.block_tokens = 8;
    return model;
  }

  // Of a size that divides the groups, or one that has each head on two ranks.
  void add_rank() {
    std::uint32_t tp_size = 1 + static_cast<std::uint32_t>(rng_.below(share_tp_));
    while (share_tp_ % tp_size != 0) --tp_size;
    if (model_.heads == share_tp_ && rng_.chance(0.2)) tp_size = 2 * model_.heads;
    if (model_.heads == 0) tp_size = 4;
    const auto number = static_cast<std::uint32_t>(rng_.below(tp_size));
    ClientOptions options = options_of(cluster_, model_, number, tp_size, share_tp_);
    options.block_order = order_.name;
    options.checksums = rng_.chance(0.5);
    const std::uint32_t shards = std::min(tp_size, std::max(model_.heads, 1u));
    const std::uint32_t groups = share_tp_ / shards;
    const TpPages pages = any_pages(model_, rng_);
    ranks_.push_back(std::make_unique<OneRank>(OneRank{number * shards / tp_size * groups, groups,
                                                       TpRank(model_, options, pages), pages}));
  }

  std::vector<PageId> any_page_ids(const OneRank& one) {
    return kv::some_pages(one.pages.pages,
                          static_cast<std::uint32_t>(kBlocks * one.rank.pages_per_block()), rng_);
  }
  std::size_t expected(const OneRank& one, std::uint64_t prompt) const {
    const auto first = stored_[prompt].begin() + one.first_group;
    return *std::min_element(first, first + one.groups);
  }
  bool can_store_layers(const OneRank& one) const {
    const KvGeometry group = *one.rank.client.geometry().head_group(share_tp_);
    return *order_.order(group.attention) == 'L' && group.layer_bytes() % 64 == 0;
  }

  void store(OneRank& one, std::uint64_t prompt) {
    const std::size_t blocks = 1 + rng_.below(kBlocks);
    const auto hashes = prompt_of(one.rank, prompt, blocks);
    std::vector<PageId> pages = any_page_ids(one);
    pages.resize(blocks * one.rank.pages_per_block());
    one.rank.compute(hashes, pages);
    Client& client = one.rank.client;
    const bool by_layers = can_store_layers(one) && rng_.chance(0.3);
    if (by_layers) {
      Result<Client::LayerStore> begun = client.begin_store(one.rank.cache, nullptr, hashes, pages);
      RC_ASSERT(begun.ok());
      for (std::uint32_t layer = 0; layer < model_.layers; ++layer)
        RC_ASSERT(begun->store_layer(layer).ok());
      RC_ASSERT(begun->finish()->blocks == blocks);
    } else if (rng_.chance(0.3)) {
      const Result<Token> token = client.store_async(one.rank.cache, nullptr, hashes, pages);
      RC_ASSERT(token.ok());
      const Result<Completion> done = client.wait(*token);
      RC_ASSERT(done->status.ok());
      RC_ASSERT(done->blocks == blocks);
    } else {
      const Result<Stored> stored = client.store(one.rank.cache, nullptr, hashes, pages);
      RC_ASSERT(stored.ok());
      RC_ASSERT(stored->blocks == blocks);
      const std::size_t before = expected(one, prompt);
      RC_ASSERT(stored->written == blocks - std::min(before, blocks));
    }
    for (std::uint32_t g = one.first_group; g < one.first_group + one.groups; ++g)
      stored_[prompt][g] = std::max(stored_[prompt][g], blocks);
  }

  void evict_any(std::uint64_t prompt) {
    const auto group = static_cast<std::uint32_t>(rng_.below(share_tp_));
    std::size_t& stored = stored_[prompt][group];
    if (stored == 0) return;
    const std::size_t block = rng_.below(stored);
    TpRank& any = ranks_[0]->rank;
    const auto hashes = prompt_of(any, prompt, kBlocks);
    evict(options_of(cluster_, model_, 0, 1, share_tp_, order_.name),
          block_hash::hash_head_group(hashes[block], group));
    stored = block;
  }

  void load(OneRank& one, std::uint64_t prompt) {
    const auto hashes = prompt_of(one.rank, prompt, kBlocks);
    const auto pages = any_page_ids(one);
    const std::size_t hit = expected(one, prompt);
    Client& client = one.rank.client;
    RC_ASSERT(*client.lookup(hashes) == hit);
    one.rank.remember();
    switch (rng_.below(6)) {
      case 4:
        return load_rows(one, hashes, pages, hit);
      case 0: {
        const std::vector<TokenRange> some = {{1, 3}, {6, 8}};
        const std::vector<std::span<const TokenRange>> tokens(kBlocks, some);
        RC_ASSERT(*client.load_tokens(one.rank.cache, hashes, pages, tokens) == hit);
        return RC_ASSERT(one.rank.is_changed_by(hashes, pages, hit, {}, some));
      }
      case 1: {
        const auto first = static_cast<std::uint32_t>(rng_.below(model_.layers));
        CopyOptions options;
        options.first_layer = first;
        options.layers = 1;
        RC_ASSERT(*client.load(one.rank.cache, hashes, pages, options) == hit);
        return RC_ASSERT(one.rank.is_changed_by(hashes, pages, hit, {first, first + 1}));
      }
      case 2: {
        Result<Client::LayerLoad> load = client.begin_load(one.rank.cache, hashes, pages);
        RC_ASSERT(load->blocks() == hit);
        for (std::uint32_t layer = model_.layers; layer-- > 0 && hit != 0;)
          RC_ASSERT(*load->load_layer(layer) == hit);
        break;
      }
      case 3:
        RC_ASSERT(client.wait(*client.load_async(one.rank.cache, hashes, pages))->blocks == hit);
        break;
      default:
        RC_ASSERT(*client.load(one.rank.cache, hashes, pages) == hit);
    }
    RC_ASSERT(one.rank.is_changed_by(hashes, pages, hit));
    RC_ASSERT(client.statistics().damaged_blocks == 0u);
  }

  // Of each layer and head its own tokens, to their places or packed.
  void load_rows(OneRank& one, std::span<const BlockHash> hashes, std::vector<PageId> pages,
                 std::size_t hit) {
    const auto first = static_cast<std::uint32_t>(rng_.below(model_.layers));
    const auto layers = 1 + static_cast<std::uint32_t>(rng_.below(model_.layers - first));
    const auto place = rng_.chance(0.5) ? TokenPlace::kOwn : TokenPlace::kPacked;
    const std::uint32_t tokens = kBlocks * model_.block_tokens;
    const auto lists = kv::any_lists(layers * one.rank.heads(), tokens, rng_);
    if (place == TokenPlace::kPacked) {
      std::size_t longest = 0;
      for (const auto& list : lists) longest = std::max(longest, list.size());
      pages.resize((longest + one.rank.page_tokens() - 1) / one.rank.page_tokens());
    }
    const std::vector<std::span<const std::uint32_t>> spans(lists.begin(), lists.end());
    CopyOptions options;
    options.first_layer = first;
    options.layers = layers;
    const Result<std::size_t> loaded =
        one.rank.client.load_head_tokens(one.rank.cache, hashes, pages, spans, place, options);
    RC_ASSERT(loaded.ok());
    RC_ASSERT(*loaded == hit);
    RC_ASSERT(one.rank.is_changed_by_rows(hashes, pages, hit, first, lists, place));
  }

  base::Rng rng_;
  const std::uint32_t share_tp_;
  const TpModel model_;
  const kv::BlockOrder& order_;
  Cluster cluster_;
  std::vector<std::vector<std::size_t>> stored_;  // of each prompt and group: leading blocks
  std::vector<std::unique_ptr<OneRank>> ranks_;
};

RC_GTEST_PROP(ShareTp, EachHitIsTheShortestOfTheGroupsAndEachByteRight, (std::uint64_t seed)) {
  Ranks(seed).run();
}

}  // namespace
}  // namespace cachalot::client
