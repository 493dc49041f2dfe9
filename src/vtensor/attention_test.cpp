// The point of a vTensor: attention by a plain loop over addresses, without a page table, gives what
// the same loop gives over vectors that never were in chunks.

#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <cstring>
#include <map>

#include "base/rng.h"
#include "device_memory/memfd/memfd_backend.h"
#include "os/child.h"
#include "vtensor/vtensor_set.h"

namespace cachalot::vtensor {
namespace {

// Grouped queries: two heads of queries for each of keys and values.
constexpr std::uint64_t kLayers = 3, kQueryHeads = 8, kKvHeads = 4, kDim = 128;
constexpr std::uint64_t kRow =
    kKvHeads * kDim;  // numbers that a layer keeps of a token, of each part
constexpr std::uint64_t kBlockTokens = 48, kMaxTokens = 4096;

// Keys or values of one layer: contiguous rows, `stride` numbers from one to the next.
struct Rows {
  const float* first = nullptr;
  std::uint64_t stride = 0;
  const float* at(std::uint64_t token, std::uint64_t head) const {
    return first + token * stride + head * kDim;
  }
};

std::vector<float> attention(const std::vector<float>& query, const Rows& keys, const Rows& values,
                             std::uint64_t tokens) {
  std::vector<float> out(kQueryHeads * kDim), weights(tokens);
  for (std::uint64_t head = 0; head < kQueryHeads; ++head) {
    const std::uint64_t kv_head = head / (kQueryHeads / kKvHeads);
    const float* const q = query.data() + head * kDim;
    float largest = -INFINITY, sum = 0;
    for (std::uint64_t token = 0; token < tokens; ++token) {
      const float* const k = keys.at(token, kv_head);
      float dot = 0;
      for (std::uint64_t i = 0; i < kDim; ++i) dot += q[i] * k[i];
      weights[token] = dot / std::sqrt(static_cast<float>(kDim));
      largest = std::max(largest, weights[token]);
    }
    for (float& weight : weights) sum += weight = std::exp(weight - largest);
    for (std::uint64_t token = 0; token < tokens; ++token) {
      const float* const v = values.at(token, kv_head);
      for (std::uint64_t i = 0; i < kDim; ++i) out[head * kDim + i] += weights[token] / sum * v[i];
    }
  }
  return out;
}

// What a token leaves in a layer's part depends on its text, which is all tokens so far.
void compute_row(std::uint64_t text, std::uint64_t layer, std::uint64_t part, float* row) {
  base::Rng rng(base::mix64(text) + layer * 2 + part);
  for (std::uint64_t i = 0; i < kRow; ++i) {
    row[i] = static_cast<float>(rng.next() >> 40) / static_cast<float>(1 << 23) - 1;
  }
}

// A request as an engine has it, and beside it plain vectors with the same numbers.
class Sequence {
 public:
  Sequence(VTensorSet& set, VTensor* vtensor) : set_(set), vtensor_(vtensor) {}

  // Texts of the tokens, of which the first `present` have their KV in the range already.
  void append(const std::vector<std::uint64_t>& texts, std::uint64_t present = 0) {
    for (std::uint64_t i = 0; i < texts.size(); ++i) {
      if (i >= present) {
        ASSERT_TRUE(set_.extend(*vtensor_, tokens_ + 1));
      }
      for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
        for (std::uint64_t part = 0; part < 2; ++part) {
          std::vector<float>& plain = plain_[{layer, part}];
          plain.resize((tokens_ + 1) * kRow);
          compute_row(texts[i], layer, part, plain.data() + tokens_ * kRow);
          if (i < present) continue;
          const Rows rows = in_range(layer, part);
          std::memcpy(const_cast<float*>(rows.at(tokens_, 0)), plain.data() + tokens_ * kRow,
                      kRow * sizeof(float));
        }
      }
      ++tokens_;
    }
  }

  // Bit for bit: the loop is the same, and so must the numbers be.
  void expect_attention() const {
    std::vector<float> query(kQueryHeads * kDim);
    base::Rng rng(tokens_);
    for (float& number : query) number = static_cast<float>(rng.below(2000)) / 1000 - 1;
    for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
      const auto found = attention(query, in_range(layer, 0), in_range(layer, 1), tokens_);
      const auto expected = attention(query, {plain_.at({layer, 0}).data(), kRow},
                                      {plain_.at({layer, 1}).data(), kRow}, tokens_);
      ASSERT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0)
          << "layer " << layer << ", " << tokens_ << " tokens";
    }
  }

  // NaN in all memory that no other request may read.
  void poison(std::uint64_t first_token) {
    const std::uint64_t ready = vtensor_->ready_tokens();
    for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
      for (std::uint64_t part = 0; part < 2; ++part) {
        for (std::uint64_t token = first_token; token < ready; ++token) {
          const Rows rows = in_range(layer, part);
          std::memset(const_cast<float*>(rows.at(token, 0)), 0xff, kRow * sizeof(float));
        }
      }
    }
  }

  VTensor& vtensor() { return *vtensor_; }
  Rows in_range(std::uint64_t layer, std::uint64_t part) const {
    const RangeLayout::View view = set_.layout().view(layer, part);
    return {reinterpret_cast<const float*>(vtensor_->base() + view.offset),
            view.stride / sizeof(float)};
  }

 private:
  VTensorSet& set_;
  VTensor* vtensor_;
  std::uint64_t tokens_ = 0;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<float>> plain_;
};

std::vector<std::uint64_t> texts(std::uint64_t name, std::uint64_t first, std::uint64_t count) {
  std::vector<std::uint64_t> result(count);
  for (std::uint64_t i = 0; i < count; ++i) result[i] = name * 100'000 + first + i;
  return result;
}
std::vector<BlockHash> hashes(std::uint64_t name, std::uint64_t blocks) {
  std::vector<BlockHash> result(blocks);
  for (std::uint64_t i = 0; i < blocks; ++i) result[i] = {name, i + 1};
  return result;
}

class AttentionTest : public testing::TestWithParam<KvLayout> {
 protected:
  AttentionTest() {
    backend_ = *device_memory::MemfdBackend::open();
    set_ = *VTensorSet::open(
        *backend_, budget_,
        {.shape = {.layers = kLayers, .part_bytes = {kRow * sizeof(float), kRow * sizeof(float)}},
         .layout = GetParam(),
         .max_tokens = kMaxTokens,
         .block_tokens = kBlockTokens,
         .copy = copy_by_processor,
         .with_thread = false});
  }
  Sequence begin(std::uint64_t tokens, std::span<const BlockHash> prompt = {}) {
    const auto created = set_->create(tokens, kMaxTokens, prompt);
    EXPECT_TRUE(created) << created.error().message;
    shared_tokens_ = created->shared_tokens;
    return {*set_, created->vtensor};
  }

  std::unique_ptr<device_memory::MemfdBackend> backend_;
  LocalBudget budget_;
  std::unique_ptr<VTensorSet> set_;
  std::uint64_t shared_tokens_ = 0;
};

TEST_P(AttentionTest, IsTheSameWhileTheRangeGrowsChunkByChunk) {
  Sequence sequence = begin(1);
  std::uint64_t tokens = 0, chunks = 0;
  while (tokens < 2200) {
    sequence.append(texts(1, tokens, 1));
    ++tokens;
    const std::uint64_t now = set_->layout().chunks(tokens);
    if (now == chunks) continue;
    chunks = now;  // the token that is first in new chunks, perhaps half of it in the old
    sequence.expect_attention();
  }
  EXPECT_GE(chunks, 13u);
}

TEST_P(AttentionTest, IsTheSameOverASharedPrefix) {
  const std::uint64_t blocks = 25,
                      prefix = blocks * kBlockTokens;  // 1,200: more than a chunk a layer
  Sequence first = begin(prefix);
  first.append(texts(1, 0, prefix));
  ASSERT_TRUE(set_->record(first.vtensor(), hashes(1, blocks)));

  Sequence second = begin(prefix + 1, hashes(1, blocks));
  ASSERT_EQ(shared_tokens_, prefix);
  EXPECT_GT(set_->stats().borrowed_chunks, 0u);
  second.append(texts(1, 0, prefix), prefix);
  second.expect_attention();
  // Both go on in their own ways, and a third begins in the middle of a block.
  Sequence third = begin(700, hashes(1, blocks));
  EXPECT_EQ(shared_tokens_, 699u);
  third.append(texts(1, 0, 699), 699);
  first.append(texts(1, prefix, 300));
  second.append(texts(2, prefix, 300));
  third.append(texts(3, 699, 600));
  first.expect_attention();
  second.expect_attention();
  third.expect_attention();
}

TEST_P(AttentionTest, IsTheSameAfterMemoryWasUsedByOthers) {
  const std::uint64_t blocks = 25, prefix = blocks * kBlockTokens;
  Sequence first = begin(prefix);
  first.append(texts(1, 0, prefix));
  ASSERT_TRUE(set_->record(first.vtensor(), hashes(1, blocks)));
  first.append(texts(1, prefix, 500));
  first.poison(prefix);
  set_->release(&first.vtensor());
  Sequence plain = begin(1500);
  plain.append(texts(4, 0, 1500));
  plain.expect_attention();
  plain.poison(0);
  set_->release(&plain.vtensor());

  Sequence again = begin(1600);  // the same chunks, with the poison in them
  EXPECT_EQ(&again.vtensor(), &plain.vtensor());
  again.append(texts(5, 0, 1600));
  again.expect_attention();
  Sequence match = begin(prefix + 400, hashes(1, blocks));
  ASSERT_EQ(shared_tokens_, prefix);
  match.append(texts(1, 0, prefix), prefix);
  match.append(texts(6, prefix, 400));
  match.expect_attention();
}

// A write into a shared chunk by mistake is noticed.
TEST_P(AttentionTest, WritingToAFullSharedChunkFaults) {
  const std::uint64_t blocks = 25, prefix = blocks * kBlockTokens;
  Sequence first = begin(prefix);
  first.append(texts(1, 0, prefix));
  const auto write_first_token = [](Sequence& sequence) {
    auto child = os::Child::start([&] {
      signal(SIGSEGV, SIG_DFL);
      *const_cast<float*>(sequence.in_range(0, 0).at(0, 0)) = 0;
      return 0;
    });
    return child->wait()->signal;
  };
  EXPECT_EQ(write_first_token(first), 0);
  ASSERT_TRUE(set_->record(first.vtensor(), hashes(1, blocks)));
  Sequence second = begin(prefix + 1, hashes(1, blocks));
  EXPECT_EQ(write_first_token(first), SIGSEGV);
  EXPECT_EQ(write_first_token(second), SIGSEGV);
}

INSTANTIATE_TEST_SUITE_P(Layouts, AttentionTest,
                         testing::Values(KvLayout::kPerLayer, KvLayout::kFolded,
                                         KvLayout::kFoldedParts),
                         [](const auto& layout) { return kv_layout_name(layout.param); });

}  // namespace
}  // namespace cachalot::vtensor
