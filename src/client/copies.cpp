#include "client/copies.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace cachalot::client {

Status Call::check_counts() const {
  const std::uint32_t per_block = cache.pages_per_block();
  if (pages.size() / per_block == hashes.size() && pages.size() % per_block == 0)
    return {};  // avoids an overflow of the product
  return Error::make(Code::kInvalidArgument,
                     "pages: %zu were given for %zu blocks, expected %u page(s) each", pages.size(),
                     hashes.size(), per_block);
}

Status Call::check() const {
  CACHALOT_TRY(session.check_usable());
  CACHALOT_TRY(check_counts());
  for (const PageId page : pages) {
    if (page < cache.cache().pages()) continue;
    return Error::make(Code::kInvalidArgument, "page: %u is not below the cache's %u", page,
                       cache.cache().pages());
  }
  return on_pool(hashes).check_time("the call");
}

// Ascending pages, the common case, need one comparison each; others an entry in a small table.
Status Call::check_pages_differ() const {
  const auto unordered = std::adjacent_find(pages.begin(), pages.end(), std::greater_equal<>());
  if (unordered == pages.end()) return {};
  constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;
  const int bits = static_cast<int>(std::bit_width(pages.size())) + 1;  // at most half full
  // Indices into `pages` plus 1; 0: empty
  std::vector<std::uint32_t> table(std::size_t{1} << bits);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    std::size_t at = (pages[i] * kGolden) >> (64 - bits);
    for (; table[at] != 0; at = (at + 1) & (table.size() - 1)) {
      if (pages[table[at] - 1] != pages[i]) continue;
      return Error::make(
          Code::kInvalidArgument,
          "pages: number %u and number %zu are both page %u, expected pages that differ",
          table[at] - 1, i, pages[i]);
    }
    table[at] = static_cast<std::uint32_t>(i + 1);
  }
  return {};
}

Status Call::gather(const GroupCopies& copies) const {
  if (behind == nullptr) return cache.gather(copies, {}, stream);
  CACHALOT_TRY_ASSIGN(const CudaStream ours, behind->stream());
  CACHALOT_TRY(cache.gather(copies, {}, ours, kv::WaitBy::kSleeping));
  behind->note_empty();
  return {};
}

Status Call::scatter(const GroupCopies& copies, kv::LayerRange layers) const {
  if (behind == nullptr) return cache.scatter(copies, layers, stream);
  CACHALOT_TRY_ASSIGN(const CudaStream ours, behind->stream());
  CACHALOT_TRY(cache.scatter(copies, layers, ours, kv::WaitBy::kSleeping));
  behind->note_empty();
  return {};
}

namespace {

// A GPU's copies are waited for one batch after the other, and a thread that sleeps wakes some 100 us late: of 2.1 GB in
// blocks of 2 MiB that was a third of the time (H100). So many bytes take 5 ms.
constexpr std::uint64_t kGpuBytesAtOnce = std::uint64_t{256} << 20;

std::size_t most_blocks_at_once(const Call& call, std::uint64_t block_bytes) {
  if (call.cache.gpu() == nullptr) return kBlocksAtOnce;
  return std::max<std::size_t>(kBlocksAtOnce, kGpuBytesAtOnce / block_bytes);
}

// Pool blocks of all head groups, block by block.
class LoadedPages final : public BlockTarget {
 public:
  LoadedPages(const Call& call, kv::LayerRange layers,
              std::span<const std::span<const TokenRange>> tokens)
      : call_(call), layers_(layers), tokens_(tokens) {}

  Status scatter(std::size_t first, std::span<const PoolBlock> blocks) override {
    const std::uint32_t groups = call_.cache.groups().count;
    GroupCopies copies(groups);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const std::size_t block = (first + i) / groups;
      kv::BlockCopy copy{blocks[i].extents, call_.pages_of(block)};
      if (!tokens_.empty()) copy.tokens = tokens_[block];
      copy.hash = blocks[i].hash;
      copies[(first + i) % groups].push_back(copy);
    }
    return call_.scatter(copies, layers_);
  }

  bool is_whole() const override {
    return tokens_.empty() && layers_.first == 0 && layers_.last == 0;
  }
  std::uint64_t copied_bytes(std::size_t blocks, std::uint64_t block_bytes) const override {
    const KvGeometry& rank = call_.cache.cache().geometry();
    const std::uint32_t groups = call_.cache.groups().count;
    std::uint64_t tokens = tokens_.empty() ? blocks / groups * rank.block_tokens : 0;
    for (const std::span<const TokenRange> ranges :
         tokens_.first(tokens_.empty() ? 0 : blocks / groups)) {
      if (ranges.empty()) tokens += rank.block_tokens;
      for (const TokenRange& range : ranges) tokens += range.last - range.first;
    }
    const std::uint32_t layers = layers_.last == 0 ? rank.layers : layers_.last - layers_.first;
    return groups * tokens * layers * (block_bytes / rank.layers / rank.block_tokens);
  }
  std::size_t blocks_at_once(std::uint64_t block_bytes) const override {
    return most_blocks_at_once(call_, block_bytes);
  }

 private:
  const Call& call_;
  const kv::LayerRange layers_;
  const std::span<const std::span<const TokenRange>> tokens_;
};

// Some rows of pool blocks of all head groups, block by block.
class LoadedRows final : public BlockTarget {
 public:
  LoadedRows(const Call& call, std::span<const kv::RowPlan> plans) : call_(call), plans_(plans) {}

  Status scatter(std::size_t first, std::span<const PoolBlock> blocks) override {
    GroupRows rows(plans_.size());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      rows[(first + i) % plans_.size()].push_back({blocks[i].extents, (first + i) / plans_.size()});
    }
    return call_.cache.scatter_rows(plans_, rows, call_.stream);
  }
  bool is_whole() const override { return false; }
  std::uint64_t copied_bytes(std::size_t blocks, std::uint64_t) const override {
    std::uint64_t bytes = 0;
    for (const kv::RowPlan& plan : plans_) bytes += plan.copied_bytes(blocks / plans_.size());
    return bytes;
  }
  std::size_t blocks_at_once(std::uint64_t block_bytes) const override {
    return most_blocks_at_once(call_, block_bytes);
  }

 private:
  const Call& call_;
  const std::span<const kv::RowPlan> plans_;
};

// Pool blocks of one head group.
class StoredPages final : public BlockSource {
 public:
  StoredPages(const Call& call, std::uint32_t group) : call_(call), group_(group) {}

  Status gather(std::size_t first, std::span<const PoolBlock> blocks) override {
    GroupCopies copies(call_.cache.groups().count);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      kv::BlockCopy copy{blocks[i].extents, call_.pages_of(first + i)};
      copy.hash = blocks[i].hash;
      copies[group_].push_back(copy);
    }
    return call_.gather(copies);
  }

  // A GPU that failed in an unknown way may still store.
  bool may_still_copy(const Error& error) const override { return error.code == Code::kIo; }

 private:
  const Call& call_;
  const std::uint32_t group_;
};

// All blocks of a checked call.
Result<std::size_t> load_into(const Call& call, kv::LayerRange layers, BlockTarget& target) {
  const HeadGroups& groups = call.cache.groups();
  const PoolNames names(groups, call.hashes);
  BlockCall on_pool = call.on_pool(names.get());
  on_pool.groups = groups.count;
  // Later layers of blocks that are counted already.
  if (layers.first != 0) return load_blocks(on_pool, target);
  return call.session.prompts().load(call.hashes, [&] { return load_blocks(on_pool, target); });
}

}  // namespace

Result<std::size_t> load(const Call& call, kv::LayerRange layers,
                         std::span<const std::span<const TokenRange>> tokens) {
  CACHALOT_TRY(call.check());
  CACHALOT_TRY(call.check_pages_differ());
  if (!tokens.empty() && tokens.size() != call.hashes.size()) {
    return Error::make(Code::kInvalidArgument, "tokens: of %zu blocks, for %zu", tokens.size(),
                       call.hashes.size());
  }
  LoadedPages pages(call, layers, tokens);
  return load_into(call, layers, pages);
}

Result<std::size_t> load_head_tokens(const Call& call, kv::LayerRange layers,
                                     std::span<const std::span<const std::uint32_t>> tokens,
                                     TokenPlace place) {
  CACHALOT_TRY(call.session.check_usable());
  CACHALOT_TRY(call.check_pages_differ());
  kv::RowChoice choice;
  choice.tokens = tokens;
  choice.pages = call.pages;
  choice.place = place;
  choice.blocks = call.hashes.size();
  CACHALOT_TRY_ASSIGN(const std::vector<kv::RowPlan> plans, call.cache.plan_rows(choice, layers));
  CACHALOT_TRY(call.on_pool(call.hashes).check_time("the call"));
  LoadedRows rows(call, plans);
  return load_into(call, layers, rows);
}

Status Call::check_tokens() const {
  const std::uint64_t each = cache.cache().geometry().block_tokens;
  if (tokens.empty() || tokens.size() == hashes.size() * each) return {};
  return Error::make(Code::kInvalidArgument, "tokens: %zu, expected %llu for each of %zu blocks",
                     tokens.size(), static_cast<unsigned long long>(each), hashes.size());
}

namespace {

// What a store needs of one head group.
class GroupStore {
 public:
  GroupStore(const Call& call, const BlockHash* parent, std::uint32_t number)
      : names_(PoolNames::of_group(call.cache.groups(), number, call.hashes)),
        is_named_like_blocks_(call.cache.groups().first + number == 0),
        pages_(call, number) {
    if (parent != nullptr) parent_ = call.cache.groups().name_of(*parent, number);
  }
  // One group's pool blocks keep the tokens: those with the names that the engine knows.
  StoredChain chain(const Call& call) {
    BlockCall on_pool = call.on_pool(names_.get());
    if (is_named_like_blocks_) on_pool.tokens = call.tokens;
    return {on_pool, parent_ ? &*parent_ : nullptr, pages_};
  }

 private:
  PoolNames names_;
  std::optional<BlockHash> parent_;
  bool is_named_like_blocks_;
  StoredPages pages_;
};

}  // namespace

Result<Stored> store(const Call& call, const BlockHash* parent) {
  CACHALOT_TRY(call.check());
  CACHALOT_TRY(call.check_tokens());
  std::vector<GroupStore> groups;
  for (std::uint32_t i = 0; i < call.cache.groups().count; ++i)
    groups.emplace_back(call, parent, i);
  std::vector<StoredChain> chains;
  for (GroupStore& group : groups) chains.push_back(group.chain(call));
  call.session.prompts().store(call.hashes);
  return store_chains(chains);
}

}  // namespace cachalot::client
