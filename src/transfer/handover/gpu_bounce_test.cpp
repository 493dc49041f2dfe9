// Hand-overs from and to caches on a fake GPU, whose streams do their work as late as they may.
#include <cachalot/transfer.h>
#include <gtest/gtest.h>

#include <cstring>

#include "testing/transfer/live_instance.h"

namespace cachalot {
namespace {

using namespace transfer;  // NOLINT
using client::GpuMachine;

// Layers of any page are multiples of 64 bytes.
KvGeometry model_of(Attention attention) {
  KvGeometry g;
  g.layers = 4;
  g.attention = attention;
  g.dtype = DType::kBf16;
  g.block_tokens = 4;
  if (attention == Attention::kGrouped) {
    g.kv_heads = 8;
    g.head_dim = 32;
  } else {
    g.kv_lora_rank = 64;
    g.qk_rope_head_dim = 32;
  }
  return g;
}

// After a test the GPU holds nothing and has seen no error. The default stream stays.
void expect_clean(GpuMachine& gpus) {
  EXPECT_EQ(gpus.fake.faults + gpus.fake.refused, 0u);
  EXPECT_EQ(gpus.fake.registrations(), 0u);
  EXPECT_EQ(gpus.fake.modules + gpus.fake.contexts, 0);
}

struct GpuCase {
  std::uint32_t p_tp, d_tp;
  Attention attention;
  const char* listen;
  bool gives, takes;  // from, to a GPU
};

class EveryGpuPair : public ::testing::TestWithParam<GpuCase> {};

TEST_P(EveryGpuPair, HandsOverTheBytesOfTheModelAndFreesThePages) {
  const GpuCase c = GetParam();
  GpuMachine gpus;
  base::Rng rng(c.p_tp * 10 + c.d_tp);
  const std::uint64_t tokens = 30 + rng.below(40);
  const std::uint64_t first = rng.chance(0.5) ? 0 : rng.below(tokens);
  {
    LiveInstance prefill("p", model_of(c.attention), c.p_tp, 1, tokens, rng, c.listen, "test", "",
                         {}, c.gives ? &gpus : nullptr);
    LiveInstance decode("d", model_of(c.attention), c.d_tp, 1, tokens, rng, c.listen, "test", "",
                        {}, c.takes ? &gpus : nullptr);
    hand_over(prefill, decode, tokens, first);
  }
  expect_clean(gpus);
}

std::vector<GpuCase> every_pair() {
  std::vector<GpuCase> cases;
  for (const std::uint32_t p : {1, 2, 4}) {
    for (const std::uint32_t d : {1, 2, 4}) {
      for (const Attention attention : {Attention::kGrouped, Attention::kLatent}) {
        for (const char* listen : {"auto", "tcp:127.0.0.1:0"}) {
          cases.push_back({p, d, attention, listen, true, true});
        }
        cases.push_back({p, d, attention, "auto", true, false});
        cases.push_back({p, d, attention, "auto", false, true});
      }
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(GpuBounce, EveryGpuPair, ::testing::ValuesIn(every_pair()));

// One rank on each side, both on one GPU.
class GpuOneToOne : public ::testing::Test {
 protected:
  GpuOneToOne() { prefill_.memory.fill(0, tokens_); }
  OfferOptions options_of(OfferId id) {
    return {.id = id, .pages = prefill_.pages(0, tokens_), .tokens = tokens_, .deadline_ns = kLong};
  }
  AskOptions ask_options() { return {.pages = decode_.pages(0, tokens_), .deadline_ns = kLong}; }
  KvReference reference(OfferId id) { return prefill_.reference(id, tokens_); }
  TransferOptions plain_options(const PagedCache& cache) {
    TransferOptions options;
    options.instance = "x";
    options.model = "m";
    options.geometry = model_of(Attention::kGrouped);
    options.cache = cache;
    options.listen = {"auto"};
    return options;
  }

  GpuMachine gpus_;
  base::Rng rng_{7};
  const std::uint64_t tokens_ = 50;
  LiveInstance prefill_{
      "p", model_of(Attention::kGrouped), 1, 1, tokens_, rng_, "auto", "test", "", {}, &gpus_};
  LiveInstance decode_{
      "d", model_of(Attention::kGrouped), 1, 1, tokens_, rng_, "auto", "test", "", {}, &gpus_};
  TransferRank& p_ = prefill_.ranks[0];
  TransferRank& d_ = decode_.ranks[0];
};

TEST_F(GpuOneToOne, LayersArriveAsTheyAreComputedAndTheNoteAfterThem) {
  const OfferId id = *random_offer_id();
  OfferOptions options = options_of(id);
  options.layers_ready = 1;
  options.has_note = true;
  ASSERT_TRUE(p_.offer(options).ok());
  KvReference to = reference(id);
  to.expects_note = true;
  const AskId ask = *d_.ask(to, ask_options());
  EXPECT_EQ(d_.wait(ask, kLong, 1)->layers, 1u);
  ASSERT_TRUE(p_.layers_ready(id, 3).ok());
  EXPECT_EQ(d_.wait(ask, kLong, 3)->layers, 3u);
  EXPECT_EQ(d_.status(ask)->state, HandoverState::kRunning);
  const std::byte note[] = {std::byte{7}};
  ASSERT_TRUE(p_.finish(id, note).ok());
  const AskStatus done = *d_.wait(ask);
  EXPECT_EQ(done.state, HandoverState::kDone);
  EXPECT_EQ(done.layers, 4u);
  EXPECT_EQ(done.note, std::vector<std::byte>{std::byte{7}});
  // The decode instance knows of the end first; until then, layer 9 of an open offer is an error of its own.
  ASSERT_TRUE(ended(p_).has_value());
  EXPECT_EQ(p_.layers_ready(id, 9).error().code, Code::kStale);
}

// What the engine's stream has not done yet when it is offered.
TEST_F(GpuOneToOne, AGatherFollowsTheWorkThatComputesTheLayers) {
  auto& memory = prefill_.memory.cache(0).memory();
  const std::vector<std::vector<std::uint64_t>> computed = memory;
  std::vector<std::byte*> staged;
  gpus_.enter();
  // The rank's stream is the first one that the machine made.
  for (auto& tensor : memory) {
    const std::uint64_t bytes = tensor.size() * 8;
    staged.push_back(gpus_.allocate(bytes));
    std::memcpy(staged.back(), tensor.data(), bytes);
    std::memset(tensor.data(), 0, bytes);
    ASSERT_EQ(gpus_.driver.copy(reinterpret_cast<gpu::DevicePointer>(tensor.data()),
                                reinterpret_cast<gpu::DevicePointer>(staged.back()), bytes,
                                prefill_.streams[0]),
              gpu::kSuccess);
  }
  EXPECT_NE(memory, computed);
  const auto before = decode_.memory.cache(0).memory();
  const OfferId id = *random_offer_id();
  ASSERT_TRUE(p_.offer(options_of(id)).ok());
  const AskId ask = *d_.ask(reference(id), ask_options());
  ASSERT_EQ(d_.wait(ask)->state, HandoverState::kDone);
  expect_model_bytes(decode_, 0, tokens_, {before});
  gpus_.enter();
  gpus_.finish(prefill_.streams[0]);
  for (std::byte* const at : staged) gpus_.free(at);
}

TEST_F(GpuOneToOne, BouncePagesAreUsedAgain) {
  for (int i = 0; i < 12; ++i) {
    const OfferId id = *random_offer_id();
    const Status offered = p_.offer(options_of(id));
    ASSERT_TRUE(offered.ok()) << i << ": " << offered.error().message;
    const Result<AskId> ask = d_.ask(reference(id), ask_options());
    ASSERT_TRUE(ask.ok()) << i << ": " << ask.error().message;
    ASSERT_EQ(d_.wait(*ask)->state, HandoverState::kDone);
    d_.release(*ask);
    // Whether or not it asks for the ends of its offers.
    if (i % 2 == 0) {
      ASSERT_TRUE(ended(p_).has_value());
    }
  }
}

TEST_F(GpuOneToOne, AnOfferThatIsTakenBackFailsTheAskAndFreesItsPages) {
  const OfferId id = *random_offer_id();
  OfferOptions options = options_of(id);
  options.layers_ready = 2;
  ASSERT_TRUE(p_.offer(options).ok());
  const AskId ask = *d_.ask(reference(id), ask_options());
  EXPECT_EQ(d_.wait(ask, kLong, 2)->layers, 2u);
  ASSERT_TRUE(p_.withdraw(id).ok());
  EXPECT_EQ(d_.wait(ask)->state, HandoverState::kFailed);
  const auto end = ended(p_);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->status.error().code, Code::kCancelled);
  EXPECT_EQ(p_.layers_ready(id, 4).error().code, Code::kStale);
}

TEST_F(GpuOneToOne, AFailedGatherEndsTheOfferAndAllThatComeLater) {
  gpus_.fake.failing["launch"] = 700;
  gpus_.fake.failing["copy_batch"] = 700;
  const OfferId id = *random_offer_id();
  ASSERT_TRUE(p_.offer(options_of(id)).ok());
  const auto end = ended(p_);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->status.error().code, Code::kIo);
  gpus_.fake.failing.clear();
  EXPECT_EQ(p_.offer(options_of(*random_offer_id())).error().code, Code::kIo);
  EXPECT_EQ(p_.ask(reference(id), ask_options()).error().code, Code::kIo);
}

TEST_F(GpuOneToOne, WhatAGpuCannotHaveIsRefusedByName) {
  PagedCache cache = gpus_.cache_on(0, model_of(Attention::kGrouped), 4);
  TransferOptions options = plain_options(cache);
  options.bounce_bytes = 100;
  const Error small = transfer::open(options, gpus_.opener()).error();
  EXPECT_EQ(small.code, Code::kNoSpace);
  EXPECT_NE(std::string(small.message).find("bounce_bytes is 100"), std::string::npos);
  options = plain_options(cache);
  options.cache.cuda_device = 1;
  EXPECT_NE(std::string(transfer::open(options, gpus_.opener()).error().message)
                .find("expected memory of device 1"),
            std::string::npos);
  options = plain_options(cache);
  gpus_.fake.failing["host_register"] = 2;
  EXPECT_EQ(transfer::open(options, gpus_.opener()).error().code, Code::kNoSpace);
  gpus_.fake.failing.clear();
  options.geometry.head_dim = 6;
  EXPECT_EQ(transfer::open(options, gpus_.opener()).error().code, Code::kInvalidArgument);
  // Fewer bounce pages than an offer has.
  options = plain_options(cache);
  options.bounce_bytes = 2 * options.geometry.block_bytes();
  {
    Result<TransferRank> rank = transfer::open(options, gpus_.opener());
    ASSERT_TRUE(rank) << rank.error().message;
    const PageId pages[] = {0, 1, 2};
    const Status refused =
        rank->offer({.id = *random_offer_id(), .pages = pages, .tokens = 12, .deadline_ns = kLong});
    EXPECT_EQ(refused.error().code, Code::kNoSpace);
    EXPECT_NE(std::string(refused.error().message).find("3 pages; 2 of the bounce pages"),
              std::string::npos);
    const PageId beyond[] = {4};
    EXPECT_EQ(
        rank->offer({.id = *random_offer_id(), .pages = beyond, .tokens = 4, .deadline_ns = kLong})
            .error()
            .code,
        Code::kInvalidArgument);
  }
  gpus_.free(cache);
  const Error freed = transfer::open(plain_options(cache), gpus_.opener()).error();
  EXPECT_NE(std::string(freed.message).find("nothing that CUDA knows"), std::string::npos);
  PagedCache strange = cache;
  strange.layout = "by_row";
  EXPECT_EQ(transfer::open(plain_options(strange), gpus_.opener()).error().code,
            Code::kInvalidArgument);
}

TEST_F(GpuOneToOne, AStreamThatIsBeingCapturedIsRefused) {
  const auto stream = reinterpret_cast<std::uintptr_t>(prefill_.streams[0]);
  gpus_.fake.set_capturing(stream, true);
  EXPECT_EQ(p_.offer(options_of(*random_offer_id())).error().code, Code::kInvalidArgument);
  gpus_.fake.set_capturing(stream, false);
  EXPECT_TRUE(p_.offer(options_of(*random_offer_id())).ok());
}

}  // namespace
}  // namespace cachalot
