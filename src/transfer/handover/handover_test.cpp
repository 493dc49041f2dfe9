#include <cachalot/transfer.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "testing/os/scratch_folder.h"
#include "testing/transfer/etcd_server.h"
#include "testing/transfer/live_instance.h"
#include "transfer/handover/instance.h"

namespace cachalot {
namespace {

using namespace transfer;  // NOLINT

struct HandoverCase {
  std::uint32_t p_tp, d_tp, p_pp, d_pp;
  Attention attention;
  const char* listen;
};

class EveryPair : public ::testing::TestWithParam<HandoverCase> {};

TEST_P(EveryPair, HandsOverTheBytesOfTheModelAndFreesThePages) {
  const HandoverCase c = GetParam();
  base::Rng rng(c.p_tp * 1000 + c.d_tp * 100 + c.p_pp * 10 + c.d_pp);
  const std::uint64_t tokens = 30 + rng.below(40);
  const std::uint64_t first = rng.chance(0.5) ? 0 : rng.below(tokens);
  const KvGeometry model = small_model(c.attention);
  LiveInstance prefill("p", model, c.p_tp, c.p_pp, tokens, rng, c.listen);
  LiveInstance decode("d", model, c.d_tp, c.d_pp, tokens, rng, c.listen);
  hand_over(prefill, decode, tokens, first);
}

std::vector<HandoverCase> every_pair() {
  std::vector<HandoverCase> cases;
  for (const std::uint32_t p : {1, 2, 4, 8}) {
    for (const std::uint32_t d : {1, 2, 4, 8}) {
      for (const Attention attention : {Attention::kGrouped, Attention::kLatent}) {
        cases.push_back({p, d, 1, 1, attention, "auto"});
        cases.push_back({p, d, 1, 1, attention, "tcp:127.0.0.1:0"});
        if (p <= 4 && d <= 4) cases.push_back({p, d, 2, 1, attention, "auto"});
        if (p <= 4 && d <= 4) cases.push_back({p, d, 1, 2, attention, "auto"});
        if (p <= 2 && d <= 2) cases.push_back({p, d, 2, 2, attention, "tcp:127.0.0.1:0"});
        if (p <= 2 && d <= 2) cases.push_back({p, d, 1, 1, attention, "ucx:127.0.0.1:0"});
      }
    }
  }
  return cases;
}

std::string way_of(const std::string& listen) {
  if (listen == "auto") return "Memory";
  return listen.starts_with("ucx:") ? "Ucx" : "Tcp";
}

INSTANTIATE_TEST_SUITE_P(Handover, EveryPair, ::testing::ValuesIn(every_pair()),
                         [](const auto& named) {
                           const HandoverCase& c = named.param;
                           return "P" + std::to_string(c.p_tp) + "x" + std::to_string(c.p_pp) +
                                  "D" + std::to_string(c.d_tp) + "x" + std::to_string(c.d_pp) +
                                  (c.attention == Attention::kGrouped ? "Gqa" : "Mla") +
                                  way_of(c.listen);
                         });

// One rank on each side.
struct OneToOne : ::testing::Test {
  base::Rng rng{7};
  const std::uint64_t tokens = 50;
  KvGeometry model = small_model();
  LiveInstance prefill{"p", model, 1, 1, tokens, rng, "tcp:127.0.0.1:0"};
  LiveInstance decode{"d", model, 1, 1, tokens, rng, "tcp:127.0.0.1:0"};
  TransferRank& p = prefill.ranks[0];
  TransferRank& d = decode.ranks[0];
  OfferId id = *random_offer_id();

  OneToOne() { prefill.memory.fill(0, tokens); }
  Status offer(OfferOptions options = {}) {
    options.id = id;
    options.pages = prefill.pages(0, tokens);
    options.tokens = tokens;
    if (options.deadline_ns == 0) options.deadline_ns = kLong;
    return p.offer(options);
  }
  Result<AskId> ask(AskOptions options = {}) {
    options.pages = decode.pages(0, tokens);
    if (options.deadline_ns == 0) options.deadline_ns = kLong;
    return d.ask(prefill.reference(id, tokens), options);
  }
};

TEST_F(OneToOne, AReferenceOfAnUnknownRequestIsRefused) {
  const AskStatus status = *d.wait(*ask());
  EXPECT_EQ(status.state, HandoverState::kFailed);
  EXPECT_EQ(status.error.code, Code::kNotFound);
}

TEST_F(OneToOne, AReferenceIsUsedOnce) {
  ASSERT_TRUE(offer().ok());
  EXPECT_EQ(d.wait(*ask())->state, HandoverState::kDone);
  ASSERT_TRUE(ended(p).has_value());
  const AskStatus again = *d.wait(*ask());
  EXPECT_EQ(again.state, HandoverState::kFailed);
  EXPECT_EQ(again.error.code, Code::kStale);
  EXPECT_NE(std::string(again.error.message).find("it was taken"), std::string::npos);
}

TEST_F(OneToOne, ARankTakesAnOfferOnceAtATime) {
  ASSERT_TRUE(offer({.layers_ready = 1}).ok());
  const AskId first = *ask();
  ASSERT_EQ(d.wait(first, kLong, 1)->layers, 1u);
  const AskStatus second = *d.wait(*ask());
  EXPECT_EQ(second.state, HandoverState::kFailed);
  EXPECT_EQ(second.error.code, Code::kRefused);
  // The first one goes on.
  ASSERT_TRUE(p.layers_ready(id, model.layers).ok());
  EXPECT_EQ(d.wait(first)->state, HandoverState::kDone);
}

TEST_F(OneToOne, AReferenceWithOtherTokensIsRefused) {
  ASSERT_TRUE(offer().ok());
  const AskStatus status =
      *d.wait(*d.ask(prefill.reference(id, tokens - 1),
                     {.pages = decode.pages(0, tokens - 1), .deadline_ns = kLong}));
  EXPECT_EQ(status.state, HandoverState::kFailed);
  EXPECT_EQ(status.error.code, Code::kInvalidArgument);
  EXPECT_EQ(d.wait(*ask())->state, HandoverState::kDone);
}

TEST_F(OneToOne, AnOfferThatNothingAsksForExpires) {
  ASSERT_TRUE(offer({.deadline_ns = kSecond / 20}).ok());
  const auto end = ended(p);
  ASSERT_TRUE(end.has_value());
  ASSERT_FALSE(end->status.ok());
  EXPECT_EQ(end->status.error().code, Code::kTimeout);
  const AskStatus late = *d.wait(*ask());
  EXPECT_EQ(late.error.code, Code::kStale);
  EXPECT_NE(std::string(late.error.message).find("expired"), std::string::npos);
}

TEST_F(OneToOne, AnAskWhosePrefillNeverEndsFailsAtItsDeadline) {
  ASSERT_TRUE(offer({.layers_ready = 2}).ok());
  const AskId number = *ask({.deadline_ns = kSecond / 5});
  const AskStatus status = *d.wait(number);
  EXPECT_EQ(status.state, HandoverState::kFailed);
  EXPECT_EQ(status.error.code, Code::kTimeout);
  // The prefill side hears of it: its pages are free before its own deadline.
  const auto end = ended(p);
  ASSERT_TRUE(end.has_value());
  EXPECT_FALSE(end->status.ok());
}

TEST_F(OneToOne, LayersArriveAsTheyAreComputed) {
  ASSERT_TRUE(offer({.layers_ready = 0, .has_note = true}).ok());
  KvReference reference = prefill.reference(id, tokens);
  reference.expects_note = true;
  const AskId number = *d.ask(reference, {.pages = decode.pages(0, tokens), .deadline_ns = kLong});
  for (std::uint32_t layer = 1; layer <= model.layers; ++layer) {
    ASSERT_TRUE(p.layers_ready(id, layer).ok());
    EXPECT_EQ(d.wait(number, kLong, layer)->layers, layer);
  }
  EXPECT_EQ(d.status(number)->state, HandoverState::kRunning);
  const std::string note = "token 17";
  ASSERT_TRUE(p.finish(id, std::as_bytes(std::span(note))).ok());
  const AskStatus status = *d.wait(number);
  EXPECT_EQ(status.state, HandoverState::kDone);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(status.note.data()), status.note.size()),
            note);
  EXPECT_TRUE(ended(p)->status.ok());
}

// The first stage of decode has all its layers, and its transfer has ended, when the last layer of the second stage is
// computed.
TEST(Handover, AStageWhoseTransferHasEndedDoesNotKeepLayersFromTheNextOne) {
  base::Rng rng(11);
  const std::uint64_t tokens = 50;
  const KvGeometry model = small_model(Attention::kGrouped, 8, 8);
  LiveInstance prefill("p", model, 1, 1, tokens, rng, "tcp:127.0.0.1:0");
  std::optional<LiveInstance> decode;
  do decode.emplace("d", model, 1, 2, tokens, rng, "tcp:127.0.0.1:0");
  while (decode->shape.stage_layers[1] < 2);
  prefill.memory.fill(0, tokens);
  const std::uint32_t first = decode->shape.stage_layers[0];
  TransferRank& p = prefill.ranks[0];
  const OfferId id = *random_offer_id();
  const auto ask = [&](std::size_t rank, OfferId offer) {
    return *decode->ranks[rank].ask(prefill.reference(offer, tokens),
                                    {.pages = decode->pages(rank, tokens), .deadline_ns = kLong});
  };
  ASSERT_TRUE(p.offer({.id = id,
                       .pages = prefill.pages(0, tokens),
                       .tokens = tokens,
                       .deadline_ns = kLong,
                       .layers_ready = 1})
                  .ok());
  // In this order: prefill serves the first stage first.
  const AskId one = ask(0, id);
  ASSERT_EQ(decode->ranks[0].wait(one, kLong, 1)->layers, 1u);
  const AskId two = ask(1, id);
  ASSERT_TRUE(p.layers_ready(id, first + 1).ok());
  ASSERT_EQ(decode->ranks[1].wait(two, kLong, 1)->layers, 1u);
  ASSERT_EQ(decode->ranks[0].wait(one)->state, HandoverState::kDone);
  // An answer on the same connection: prefill has heard before that the first stage has all.
  ASSERT_EQ(decode->ranks[0].wait(ask(0, *random_offer_id()))->error.code, Code::kNotFound);
  ASSERT_TRUE(p.layers_ready(id, model.layers).ok());
  const AskStatus status = *decode->ranks[1].wait(two);
  EXPECT_EQ(status.state, HandoverState::kDone) << status.error.message;
  EXPECT_TRUE(ended(p)->status.ok());
}

TEST_F(OneToOne, AnAskMayComeBeforeItsOffer) {
  const AskId number = *ask({.waits_for_offer = true});
  EXPECT_EQ(d.wait(number, kSecond / 20)->state, HandoverState::kRunning);
  ASSERT_TRUE(offer().ok());
  EXPECT_EQ(d.wait(number)->state, HandoverState::kDone);
}

TEST_F(OneToOne, WithdrawnPagesAreNotRead) {
  ASSERT_TRUE(offer({.layers_ready = 1}).ok());
  const AskId number = *ask();
  ASSERT_EQ(d.wait(number, kLong, 1)->layers, 1u);
  ASSERT_TRUE(p.withdraw(id).ok());
  const AskStatus status = *d.wait(number);
  EXPECT_EQ(status.state, HandoverState::kFailed);
  EXPECT_EQ(p.layers_ready(id, 2).error().code, Code::kStale);
  EXPECT_EQ(p.statistics().open_offers, 0u);
}

TEST_F(OneToOne, ACancelledAskFreesTheOffer) {
  ASSERT_TRUE(offer({.layers_ready = 1}).ok());
  const AskId number = *ask();
  ASSERT_EQ(d.wait(number, kLong, 1)->layers, 1u);
  d.release(number);
  const auto end = ended(p);
  ASSERT_TRUE(end.has_value());
  EXPECT_FALSE(end->status.ok());
  EXPECT_FALSE(d.status(number).ok());
}

TEST_F(OneToOne, ADecodeRankThatEndsFreesTheOffer) {
  ASSERT_TRUE(offer({.layers_ready = 1}).ok());
  ASSERT_EQ(d.wait(*ask(), kLong, 1)->layers, 1u);
  { const TransferRank gone = std::move(d); }
  const auto end = ended(p);
  ASSERT_TRUE(end.has_value());
  EXPECT_FALSE(end->status.ok());
  // For the destructor of the fixture.
  decode.start(0, "tcp:127.0.0.1:0");
}

TEST_F(OneToOne, CloseOfADecodeRankEndsWhatOtherThreadsWaitFor) {
  ASSERT_TRUE(offer({.layers_ready = 1}).ok());
  const AskId number = *ask();
  ASSERT_EQ(d.wait(number, kLong, 1)->layers, 1u);
  const auto is_cancelled = [](const Result<AskStatus>& status) {
    ASSERT_TRUE(status.ok());
    EXPECT_EQ(status->state, HandoverState::kFailed);
    EXPECT_EQ(status->error.code, Code::kCancelled) << status->error.message;
  };
  std::vector<std::thread> threads;
  threads.emplace_back([&] { is_cancelled(d.wait(number)); });
  threads.emplace_back([&] { is_cancelled(d.wait(number, kNoTimeout, 2)); });
  for (int i = 0; i < 2; ++i) threads.emplace_back([&] { d.close(); });
  for (std::thread& thread : threads) thread.join();
  const auto before = decode.memory.cache(0).memory();
  // The prefill's pages are free, and nothing is sent any more.
  ASSERT_FALSE(ended(p)->status.ok());
  EXPECT_FALSE(p.layers_ready(id, model.layers).ok());
  EXPECT_EQ(decode.memory.cache(0).memory(), before);
  is_cancelled(d.status(number));
  EXPECT_EQ(d.statistics().open_asks, 0u);
  const Result<AskId> late = ask();
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::string(late.error().message).find("rank d/0: it was closed"), std::string::npos)
      << late.error().message;
  EXPECT_TRUE(d.decline(prefill.reference(id, tokens), kLong).ok());
  d.release(number);
  d.close();
}

TEST_F(OneToOne, CloseOfAPrefillRankEndsItsOffersAndFreesItsAddress) {
  ASSERT_TRUE(offer({.layers_ready = 1}).ok());
  const AskId number = *ask(), early = *d.ask(prefill.reference(*random_offer_id(), tokens),
                                              {.pages = decode.pages(0, tokens),
                                               .deadline_ns = kLong,
                                               .waits_for_offer = true});
  ASSERT_EQ(d.wait(number, kLong, 1)->layers, 1u);
  const std::string address = p.addresses().front();
  std::thread polls([&] {
    const auto end = ended(p);
    ASSERT_TRUE(end.has_value());
    ASSERT_FALSE(end->status.ok());
    EXPECT_EQ(end->id, id);
    EXPECT_EQ(end->status.error().code, Code::kCancelled) << end->status.error().message;
  });
  std::thread computes([&] {
    while (p.layers_ready(id, 2).ok()) std::this_thread::yield();
  });
  p.close();
  polls.join();
  computes.join();
  for (const AskId each : {number, early})
    EXPECT_EQ(d.wait(each, kLong)->state, HandoverState::kFailed);
  EXPECT_EQ(p.statistics().open_offers, 0u);
  EXPECT_EQ(p.layers_ready(id, 3).error().code, Code::kStale);
  EXPECT_EQ(p.withdraw(id).error().code, Code::kStale);
  const Status late = p.offer({.id = *random_offer_id(),
                               .pages = prefill.pages(0, tokens),
                               .tokens = tokens,
                               .deadline_ns = kLong});
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code, Code::kInvalidArgument);
  // While the closed one lives.
  prefill.start(0, address);
  ASSERT_TRUE(offer().ok());
  EXPECT_EQ(d.wait(*ask(), kLong)->state, HandoverState::kDone);
}

TEST_F(OneToOne, APrefillRankThatRestartsIsAnotherOne) {
  ASSERT_TRUE(offer({.layers_ready = 1}).ok());
  const AskId number = *ask();
  ASSERT_EQ(d.wait(number, kLong, 1)->layers, 1u);
  const std::string address = p.addresses().front();
  { const TransferRank gone = std::move(p); }
  prefill.start(0, address);
  EXPECT_EQ(d.wait(number)->state, HandoverState::kFailed);
  // The same reference, at the same address.
  const AskStatus again = *d.wait(*ask());
  EXPECT_EQ(again.state, HandoverState::kFailed);
  EXPECT_EQ(again.error.code, Code::kNotFound);
}

TEST_F(OneToOne, UnlikeModelsNeverExchangeKv) {
  ASSERT_TRUE(offer().ok());
  LiveInstance other("other", model, 1, 1, tokens, rng, "tcp:127.0.0.1:0", "other weights");
  const AskStatus status = *other.ranks[0].wait(*other.ranks[0].ask(
      prefill.reference(id, tokens), {.pages = other.pages(0, tokens), .deadline_ns = kLong}));
  EXPECT_EQ(status.state, HandoverState::kFailed);
  EXPECT_EQ(status.error.code, Code::kRefused);
  EXPECT_NE(std::string(status.error.message).find("other weights"), std::string::npos);
}

TEST_F(OneToOne, BadInputIsOneClearError) {
  const auto message = [](const auto& result) {
    return std::string(result.ok() ? "" : result.error().message);
  };
  const std::vector<PageId> few = {0}, wrong(100, 1'000'000);
  EXPECT_NE(message(p.offer({.id = id, .pages = few, .tokens = 1000, .deadline_ns = 1}))
                .find("1 pages for 1000 tokens"),
            std::string::npos);
  const std::uint64_t page_tokens = prefill.memory.cache(0).page_tokens();
  EXPECT_NE(
      message(p.offer({.id = id, .pages = wrong, .tokens = 100 * page_tokens, .deadline_ns = 1}))
          .find("page 1000000"),
      std::string::npos);
  KvReference reference = prefill.reference(id, tokens);
  reference.shape.tp_size = 3;
  reference.addresses.resize(3);
  EXPECT_NE(message(d.ask(reference, {.pages = decode.pages(0, tokens), .deadline_ns = 1}))
                .find("3 ranks"),
            std::string::npos);
  reference = prefill.reference(id, tokens);
  reference.addresses.push_back({});
  EXPECT_NE(message(d.ask(reference, {.pages = decode.pages(0, tokens), .deadline_ns = 1}))
                .find("addresses of 2 ranks"),
            std::string::npos);
}

TEST_F(OneToOne, APageIsWrittenOnce) {
  ASSERT_GE(decode.pages(0, tokens).size(), 2u);
  std::vector<PageId> twice(decode.pages(0, tokens).begin(), decode.pages(0, tokens).end());
  twice.back() = twice.front();
  const Result<AskId> refused =
      d.ask(prefill.reference(id, tokens), {.pages = twice, .deadline_ns = kLong});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::string(refused.error().message)
                .find("page " + std::to_string(twice.front()) + " is given twice"),
            std::string::npos)
      << refused.error().message;
}

TEST_F(OneToOne, ARankHasNoMoreLayersThanItsGeometrySays) {
  const auto is_refused = [](const Status& status) {
    return !status.ok() && status.error().code == Code::kInvalidArgument &&
           std::string(status.error().message) == "5 layers are ready; this rank has 4 layers";
  };
  ASSERT_EQ(model.layers, 4u);
  EXPECT_TRUE(is_refused(offer({.layers_ready = 5})));
  ASSERT_TRUE(offer({.layers_ready = 0}).ok());
  EXPECT_TRUE(is_refused(p.layers_ready(id, 5)));
  EXPECT_TRUE(p.layers_ready(id, 4).ok());
}

TEST(Handover, AStageHasTheLayersOfItsGeometry) {
  base::Rng rng(5);
  const std::uint64_t tokens = 20;
  LiveInstance decode("d", small_model(), 1, 1, tokens, rng);
  TestCache& cache = decode.memory.cache(0);
  TransferOptions options;
  options.instance = "other";
  options.model = "test";
  options.geometry = cache.view().geometry();
  options.shape.stage_layers = {3};
  options.cache.layout = cache.layout().name;
  options.cache.page_tokens = cache.page_tokens();
  options.cache.pages = cache.view().pages();
  for (auto& tensor : cache.memory())
    options.cache.tensors.push_back({tensor.data(), tensor.size() * 8});
  const Result<TransferRank> opened = TransferRank::open(options);
  ASSERT_FALSE(opened.ok());
  EXPECT_STREQ(opened.error().message,
               "stage_layers: stage 0 has 3 layers; the geometry of this rank has 4");
}

// A reference that says another division than the instance has: at once, with both, and nothing is written.
TEST(Handover, AReferenceOfAnotherDivisionIsRefusedAtOnce) {
  base::Rng rng(37);
  const std::uint64_t tokens = 50;
  LiveInstance prefill("p", small_model(), 1, 2, tokens, rng, "tcp:127.0.0.1:0");
  LiveInstance decode("d", small_model(), 1, 1, tokens, rng, "tcp:127.0.0.1:0");
  const OfferId id = *random_offer_id();
  for (std::size_t r = 0; r < 2; ++r) {
    ASSERT_TRUE(prefill.ranks[r]
                    .offer({.id = id,
                            .pages = prefill.pages(r, tokens),
                            .tokens = tokens,
                            .deadline_ns = kLong})
                    .ok());
  }
  const std::uint32_t first = prefill.shape.stage_layers[0];
  KvReference one_stage = prefill.reference(id, tokens);
  one_stage.shape = {1, 1, {}, {}};
  one_stage.addresses.resize(1);
  KvReference other_layers = prefill.reference(id, tokens);
  other_layers.shape.stage_layers = {first % 3 + 1, 3 - first % 3};
  const auto before = decode.memory.cache(0).memory();
  for (const KvReference& reference : {one_stage, other_layers}) {
    const AskStatus status = *decode.ranks[0].wait(
        *decode.ranks[0].ask(reference, {.pages = decode.pages(0, tokens), .deadline_ns = kLong}),
        kLong / 2);
    EXPECT_EQ(status.state, HandoverState::kFailed);
    EXPECT_EQ(status.error.code, Code::kInvalidArgument);
    const std::string layers = std::to_string(first) + "+" + std::to_string(4 - first);
    EXPECT_NE(std::string(status.error.message).find("TP 1, PP 2, layers " + layers + "; the"),
              std::string::npos)
        << status.error.message;
  }
  EXPECT_EQ(before, decode.memory.cache(0).memory());
}

// At the deadline the error says what is missing.
TEST_F(OneToOne, AnAskThatIsLateSaysWhatIsMissing) {
  const auto message = [&](AskId number) { return std::string(d.wait(number)->error.message); };
  EXPECT_EQ(message(*ask({.deadline_ns = kSecond, .waits_for_offer = true})),
            "rank p/0 had not made the offer at the deadline of the ask");
  id = *random_offer_id();
  ASSERT_TRUE(offer({.has_note = true}).ok());
  KvReference reference = prefill.reference(id, tokens);
  reference.expects_note = true;
  EXPECT_EQ(message(*d.ask(reference, {.pages = decode.pages(0, tokens), .deadline_ns = kSecond})),
            "rank p/0 had sent all bytes, but not the note of finish() that is expected at the "
            "deadline of the ask");
}

// --- Registries ---

struct InRegistry : ::testing::Test {
  base::Rng rng{11};
  const std::uint64_t tokens = 50;
  KvGeometry model = small_model();

  // Ranks that find each other by name: a hand-over with a reference that has no addresses.
  static KvReference nameless(const LiveInstance& prefill, OfferId id, std::uint64_t tokens) {
    KvReference reference = prefill.reference(id, tokens);
    reference.addresses.clear();
    return reference;
  }
  AskId ask_all(LiveInstance& prefill, LiveInstance& decode, OfferId id,
                std::uint32_t ready = ~0u) {
    for (std::size_t r = 0; r < prefill.ranks.size(); ++r) {
      prefill.memory.fill(r, 0, tokens);
      EXPECT_TRUE(prefill.ranks[r]
                      .offer({.id = id,
                              .pages = prefill.pages(r, tokens),
                              .tokens = tokens,
                              .deadline_ns = kLong,
                              .layers_ready = ready})
                      .ok());
    }
    return *decode.ranks[0].ask(nameless(prefill, id, tokens),
                                {.pages = decode.pages(0, tokens), .deadline_ns = kLong});
  }
};

TEST_F(InRegistry, RanksOfADirectoryFindEachOtherByName) {
  const os::ScratchFolder folder;
  const std::string registry = "file:" + folder.path();
  LiveInstance prefill("p", model, 2, 1, tokens, rng, "tcp:127.0.0.1:0", "test", registry);
  LiveInstance decode("d", model, 1, 1, tokens, rng, "auto", "test", registry);
  const InstanceMemory before = {decode.memory.cache(0).memory()};
  const AskStatus status = *decode.ranks[0].wait(ask_all(prefill, decode, *random_offer_id()));
  EXPECT_EQ(status.state, HandoverState::kDone) << status.error.message;
  expect_model_bytes(decode, 0, tokens, before);

  KvReference unknown = nameless(prefill, *random_offer_id(), tokens);
  unknown.instance = "nobody";
  const AskStatus none = *decode.ranks[0].wait(
      *decode.ranks[0].ask(unknown, {.pages = decode.pages(0, tokens), .deadline_ns = kLong}));
  EXPECT_EQ(none.error.code, Code::kNotFound);
  EXPECT_NE(std::string(none.error.message).find("nobody/"), std::string::npos)
      << none.error.message;
}

TEST_F(InRegistry, RanksWithTheSameClusterKeyHandOverAndOthersGetNothing) {
  const os::ScratchFolder folder;
  const std::string registry = "file:" + folder.path("peers");
  std::string keys[2];
  for (std::size_t i = 0; i < 2; ++i) {
    keys[i] = folder.path("key" + std::to_string(i));
    std::ofstream(keys[i]) << std::string(64, static_cast<char>('a' + i));
    std::filesystem::permissions(keys[i], std::filesystem::perms::owner_read);
  }
  const auto instance = [&](const char* name, const std::string& key) {
    return LiveInstance(name, model, 1, 1, tokens, rng, "tcp:127.0.0.1:0", "test", registry, {},
                        nullptr, key);
  };
  LiveInstance prefill = instance("p", keys[0]), decode = instance("d", keys[0]);
  LiveInstance another = instance("d2", keys[1]), none = instance("d3", "");
  const InstanceMemory before = {decode.memory.cache(0).memory()};
  const AskStatus status = *decode.ranks[0].wait(ask_all(prefill, decode, *random_offer_id()));
  EXPECT_EQ(status.state, HandoverState::kDone) << status.error.message;
  expect_model_bytes(decode, 0, tokens, before);
  // By name: the record has another tag. By address: the link does not open.
  const AskStatus by_name = *another.ranks[0].wait(ask_all(prefill, another, *random_offer_id()));
  EXPECT_EQ(by_name.error.code, Code::kPermission) << by_name.error.message;
  for (LiveInstance* const stranger : {&another, &none}) {
    const AskStatus by_address = *stranger->ranks[0].wait(
        *stranger->ranks[0].ask(prefill.reference(*random_offer_id(), tokens),
                                {.pages = stranger->pages(0, tokens), .deadline_ns = kLong}));
    EXPECT_EQ(by_address.error.code, Code::kPermission) << by_address.error.message;
  }
}

TEST_F(InRegistry, AClosedRankIsNotFoundAndItsNameIsFree) {
  const os::ScratchFolder folder;
  const std::string registry = "file:" + folder.path();
  LiveInstance prefill("p", model, 1, 1, tokens, rng, "tcp:127.0.0.1:0", "test", registry);
  LiveInstance decode("d", model, 1, 1, tokens, rng, "auto", "test", registry);
  prefill.ranks[0].close();
  const AskStatus none = *decode.ranks[0].wait(
      *decode.ranks[0].ask(nameless(prefill, *random_offer_id(), tokens),
                           {.pages = decode.pages(0, tokens), .deadline_ns = kLong}));
  EXPECT_EQ(none.error.code, Code::kNotFound) << none.error.message;
  prefill.start(0, "auto");  // while the closed one lives
  const AskStatus again = *decode.ranks[0].wait(ask_all(prefill, decode, *random_offer_id()));
  EXPECT_EQ(again.state, HandoverState::kDone) << again.error.message;
}

TEST_F(InRegistry, HandOversGoOnWhileEtcdIsDownAndNewPeersAreFoundAfterwards) {
  ASSERT_TRUE(EtcdServer::is_installed());
  const auto etcd = *EtcdServer::start();
  const std::string registry = "etcd://" + etcd->endpoint() + "/cachalot?ttl_s=3";
  LiveInstance prefill("p", model, 1, 1, tokens, rng, "tcp:127.0.0.1:0", "test", registry);
  LiveInstance decode("d", model, 1, 1, tokens, rng, "tcp:127.0.0.1:0", "test", registry);
  const InstanceMemory before = {decode.memory.cache(0).memory()};

  const OfferId first = *random_offer_id(), second = *random_offer_id();
  const AskId running = ask_all(prefill, decode, first, 1);
  ASSERT_EQ(decode.ranks[0].wait(running, kLong, 1)->layers, 1u);
  etcd->kill();
  ASSERT_TRUE(prefill.ranks[0].layers_ready(first, model.layers).ok());
  EXPECT_EQ(decode.ranks[0].wait(running)->state, HandoverState::kDone);
  expect_model_bytes(decode, 0, tokens, before);
  ASSERT_TRUE(ended(prefill.ranks[0]).has_value());  // its pages are free again
  // A known peer needs no registry.
  const AskStatus known = *decode.ranks[0].wait(ask_all(prefill, decode, second));
  EXPECT_EQ(known.state, HandoverState::kDone) << known.error.message;

  ASSERT_TRUE(etcd->restart().ok());
  LiveInstance other("p2", model, 1, 1, tokens, rng, "tcp:127.0.0.1:0", "test", registry);
  const AskStatus found = *decode.ranks[0].wait(ask_all(other, decode, *random_offer_id()));
  EXPECT_EQ(found.state, HandoverState::kDone) << found.error.message;
}

}  // namespace
}  // namespace cachalot
