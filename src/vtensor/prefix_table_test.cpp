#include "vtensor/prefix_table.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <memory>

#include "base/rng.h"
#include "testing/device_memory/faulty_backend.h"

namespace cachalot::vtensor {
namespace {

constexpr std::uint64_t kChunk = device_memory::FaultyBackend::kGranule;
using Prompt = std::vector<std::uint64_t>;  // what its blocks are

std::vector<BlockHash> hashes_of(const Prompt& prompt) {
  std::vector<BlockHash> hashes;
  BlockHash hash{1, 1};
  for (const std::uint64_t block : prompt) {
    hash.low = base::mix64(hash.low ^ block);
    hash.high = base::mix64(hash.high + block);
    hashes.push_back(hash);
  }
  return hashes;
}

// A table, requests whose chunks are all different, and a model of both: the recorder of each prefix,
// and when it was used.
class Recordings {
 public:
  Recordings(const KvShape& shape, KvLayout layout, std::uint64_t block_tokens, bool with_tails)
      : layout_(*RangeLayout::make(shape, layout, kChunk, 1000)),
        table_(layout_, block_tokens, with_tails),
        block_tokens_(block_tokens),
        with_tails_(with_tails) {}

  void record(const Prompt& prompt) {
    auto planes =
        std::make_unique<MappedPlanes>(backend_, layout_, *backend_.reserve(layout_.range_bytes()));
    PlaneChunks more{.counts = planes->missing(prompt.size() * block_tokens_), .chunks = {}};
    for (const std::uint64_t count : more.counts) {
      for (std::uint64_t i = 0; i < count; ++i) {
        more.chunks.push_back({.handle = *backend_.create(kChunk), .place = next_chunk_++});
      }
    }
    std::vector<Chunk> unused;
    ASSERT_TRUE(planes->append(more, device_memory::Access::kReadWrite, unused));
    for (const Chunk& chunk : table_.record(hashes_of(prompt), *planes).references) {
      ++references_[chunk.place];
    }
    for (std::size_t n = 1; n <= prompt.size(); ++n) {
      owner_.try_emplace(Prompt(prompt.begin(), prompt.begin() + n), planes.get());
    }
    use(prompt, prompt.size());
    all_.push_back(std::move(planes));
  }

  // What the model expects of find(), compared with what it gives.
  void find(const Prompt& prompt, std::uint64_t most_tokens) {
    std::size_t blocks = 0;
    while (blocks < prompt.size() && owner_.count(first(prompt, blocks + 1)) != 0) ++blocks;
    std::uint64_t tokens = std::min(blocks * block_tokens_, most_tokens);
    if (!with_tails_) tokens = layout_.without_tail(tokens);
    const PrefixTable::Found found = table_.find(hashes_of(prompt), most_tokens);
    ASSERT_EQ(found.tokens, tokens);
    if (tokens == 0) return;
    use(prompt, (tokens - 1) / block_tokens_ + 1);
    std::size_t chunk = 0, tail = 0;
    for (std::uint64_t p = 0; p < layout_.planes(); ++p) {
      const std::uint64_t width = layout_.plane(p).token_bytes, end = tokens * width;
      for (std::uint64_t i = 0; (i + 1) * kChunk <= end; ++i) {
        const std::uint64_t last_token = ((i + 1) * kChunk - 1) / width;
        EXPECT_EQ(found.full.chunks[chunk++].place, chunk_of(prompt, last_token, p, i));
      }
      if (end % kChunk == 0) continue;
      ASSERT_LT(tail, found.tails.size());
      EXPECT_EQ(found.tails[tail].plane, p);
      EXPECT_EQ(found.tails[tail].bytes, end % kChunk);
      EXPECT_EQ(found.tails[tail++].chunk.place, chunk_of(prompt, tokens - 1, p, end / kChunk));
    }
    EXPECT_EQ(chunk, found.full.chunks.size());
    EXPECT_EQ(tail, found.tails.size());
  }

  void evict() {
    const auto references = table_.evict();
    ASSERT_EQ(references.has_value(), !owner_.empty());
    if (!references) return;
    for (const Chunk& chunk : *references) {
      if (--references_[chunk.place] == 0) references_.erase(chunk.place);
    }
    const Prompt* oldest = nullptr;
    for (auto each = owner_.begin(); each != owner_.end(); ++each) {
      const auto next = std::next(each);  // a longer one stands right behind
      const bool is_leaf = next == owner_.end() || next->first.size() <= each->first.size() ||
                           first(next->first, each->first.size()) != each->first;
      if (is_leaf && (oldest == nullptr || last_use_[each->first] < last_use_[*oldest])) {
        oldest = &each->first;
      }
    }
    const Prompt gone = *oldest;
    owner_.erase(gone);
    EXPECT_EQ(table_.known(hashes_of(gone)), gone.size() - 1);
    EXPECT_EQ(table_.blocks(), owner_.size());
  }

  // Each chunk that is full of recorded blocks is owned once; without tails that is all.
  void expect_no_double_references() const {
    if (with_tails_) return;
    for (const auto& [place, count] : references_) EXPECT_EQ(count, 1u) << "chunk " << place;
  }
  bool holds_nothing() const { return references_.empty() && table_.blocks() == 0; }

 private:
  static Prompt first(const Prompt& prompt, std::size_t n) {
    return Prompt(prompt.begin(), prompt.begin() + n);
  }
  void use(const Prompt& prompt, std::size_t blocks) {
    ++now_;
    for (std::size_t n = 1; n <= blocks; ++n) last_use_[first(prompt, n)] = now_;
  }
  std::uint64_t chunk_of(const Prompt& prompt, std::uint64_t token, std::uint64_t p,
                         std::uint64_t i) const {
    return owner_.at(first(prompt, token / block_tokens_ + 1))->plane(p)[i].place;
  }

  device_memory::FaultyBackend backend_;
  RangeLayout layout_;
  PrefixTable table_;
  std::uint64_t block_tokens_;
  bool with_tails_;
  std::uint64_t next_chunk_ = 0, now_ = 0;
  std::vector<std::unique_ptr<MappedPlanes>> all_;
  std::map<Prompt, const MappedPlanes*> owner_;
  std::map<Prompt, std::uint64_t> last_use_;
  std::map<std::uint64_t, std::uint64_t> references_;
};

RC_GTEST_PROP(PrefixTable, FindsAndForgetsWhatAModelDoes, (std::uint64_t seed)) {
  base::Rng rng(seed);
  const KvShape shape = {.layers = 1 + rng.below(3),
                         .part_bytes = {1 + rng.below(30), 1 + rng.below(30)}};
  const auto layout = static_cast<KvLayout>(rng.below(3));
  Recordings recordings(shape, layout, 1 + rng.below(9), rng.chance(0.5));
  const auto prompt = [&] {
    Prompt blocks(rng.below(7));
    for (auto& block : blocks) block = rng.below(2);
    return blocks;
  };
  for (int step = 0; step < 40; ++step) {
    switch (rng.below(4)) {
      case 0:
        recordings.record(prompt());
        break;
      case 1:
        recordings.evict();
        break;
      default:
        recordings.find(prompt(), rng.chance(0.5) ? 1000 : rng.below(60));
    }
    recordings.expect_no_double_references();
    RC_ASSERT(!testing::Test::HasFailure());
  }
  for (int i = 0; i < 200; ++i) recordings.evict();
  RC_ASSERT(recordings.holds_nothing());
}

TEST(PrefixTable, APinnedLeafStays) {
  const RangeLayout layout =
      *RangeLayout::make({.layers = 1, .part_bytes = {64}}, KvLayout::kFolded, kChunk, 100);
  device_memory::FaultyBackend backend;
  MappedPlanes planes(backend, layout, *backend.reserve(layout.range_bytes()));
  PlaneChunks more{.counts = {4}, .chunks = {}};
  for (std::uint64_t i = 0; i < 4; ++i) more.chunks.push_back({*backend.create(kChunk), i});
  std::vector<Chunk> unused;
  ASSERT_TRUE(planes.append(more, device_memory::Access::kReadWrite, unused));
  PrefixTable table(layout, 2, false);
  const auto recorded = table.record(hashes_of({1, 2}), planes);
  table.pin(recorded.last);
  EXPECT_FALSE(table.evict());
  const auto other = hashes_of({7});
  table.record(other, planes);
  ASSERT_TRUE(table.evict());
  EXPECT_EQ(table.known(other), 0u);
  EXPECT_FALSE(table.evict());
  table.unpin(recorded.last);
  EXPECT_TRUE(table.evict());
  EXPECT_TRUE(table.evict());
  EXPECT_FALSE(table.evict());
}

TEST(PrefixTable, WithoutBlocksItFindsNothing) {
  const RangeLayout layout =
      *RangeLayout::make({.layers = 1, .part_bytes = {64}}, KvLayout::kFolded, kChunk, 100);
  PrefixTable table(layout, 0, true);
  EXPECT_EQ(table.find(hashes_of({1}), 10).tokens, 0u);
}

}  // namespace
}  // namespace cachalot::vtensor
