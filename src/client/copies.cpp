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
  return blocks().check_time("the call");
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

Status Call::gather(std::span<const kv::BlockCopy> blocks) const {
  if (behind == nullptr) return cache.gather(blocks, {}, stream);
  CACHALOT_TRY_ASSIGN(const CudaStream ours, behind->stream());
  CACHALOT_TRY(cache.gather(blocks, {}, ours, kv::WaitBy::kSleeping));
  behind->note_empty();
  return {};
}

Status Call::scatter(std::span<const kv::BlockCopy> blocks, kv::LayerRange layers) const {
  if (behind == nullptr) return cache.scatter(blocks, layers, stream);
  CACHALOT_TRY_ASSIGN(const CudaStream ours, behind->stream());
  CACHALOT_TRY(cache.scatter(blocks, layers, ours, kv::WaitBy::kSleeping));
  behind->note_empty();
  return {};
}

namespace {

class LoadedPages final : public BlockTarget {
 public:
  LoadedPages(const Call& call, kv::LayerRange layers,
              std::span<const std::span<const TokenRange>> tokens)
      : call_(call), layers_(layers), tokens_(tokens) {}

  Status scatter(std::size_t first, std::span<const PoolBlock> blocks) override {
    std::vector<kv::BlockCopy> copies;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      kv::BlockCopy copy{blocks[i].extents, call_.pages_of(first + i)};
      if (!tokens_.empty()) copy.tokens = tokens_[first + i];
      copy.hash = blocks[i].hash;
      copies.push_back(copy);
    }
    return call_.scatter(copies, layers_);
  }

  bool is_whole() const override {
    return tokens_.empty() && layers_.first == 0 && layers_.last == 0;
  }

 private:
  const Call& call_;
  const kv::LayerRange layers_;
  const std::span<const std::span<const TokenRange>> tokens_;
};

class StoredPages final : public BlockSource {
 public:
  explicit StoredPages(const Call& call) : call_(call) {}

  Status gather(std::size_t first, std::span<const PoolBlock> blocks) override {
    std::vector<kv::BlockCopy> copies;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      kv::BlockCopy copy{blocks[i].extents, call_.pages_of(first + i)};
      copy.hash = blocks[i].hash;
      copies.push_back(copy);
    }
    return call_.gather(copies);
  }

  // A GPU that failed in an unknown way may still store.
  bool may_still_copy(const Error& error) const override { return error.code == Code::kIo; }

 private:
  const Call& call_;
};

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
  return load_blocks(call.blocks(), pages);
}

Status Call::check_tokens() const {
  const std::uint64_t each = cache.cache().geometry().block_tokens;
  if (tokens.empty() || tokens.size() == hashes.size() * each) return {};
  return Error::make(Code::kInvalidArgument, "tokens: %zu, expected %llu for each of %zu blocks",
                     tokens.size(), static_cast<unsigned long long>(each), hashes.size());
}

Result<Stored> store(const Call& call, const BlockHash* parent) {
  CACHALOT_TRY(call.check());
  CACHALOT_TRY(call.check_tokens());
  StoredPages pages(call);
  return store_blocks(call.blocks(), parent, pages);
}

}  // namespace cachalot::client
