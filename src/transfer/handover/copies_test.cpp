// Ranks of one machine that hold the same bytes fetch them once, and copy from each other.

#include "base/rng.h"
#include "testing/os/scratch_folder.h"
#include "testing/transfer/live_instance.h"
#include "testing/transfer/proofs.h"
#include "testing/transfer/raw_peer.h"
#include "transfer/engine/engine.h"
#include "transfer/handover/instance.h"
#include "transfer/handover/messages.h"

namespace cachalot {
namespace {

using namespace transfer;  // NOLINT

void meet(LiveInstance& instance) {
  std::vector<std::vector<std::string>> addresses;
  for (const TransferRank& rank : instance.ranks) addresses.push_back(rank.addresses());
  for (TransferRank& rank : instance.ranks)
    ASSERT_TRUE(rank.set_instance_addresses(addresses).ok());
}

struct CopyCase {
  const char* name;
  Attention attention;
  std::uint32_t heads, p_tp, d_tp, d_pp;
  std::vector<std::uint32_t> machines;
  std::uint32_t parts;  // of d_tp * d_pp ranks' bytes, so many are fetched
  const char* listen = "tcp:127.0.0.1:0";
};

class EveryMachine : public ::testing::TestWithParam<CopyCase> {};

TEST_P(EveryMachine, FetchesTheSameBytesOnce) {
  const CopyCase& c = GetParam();
  std::uint64_t sent[2] = {0, 0};
  for (const bool is_once : {false, true}) {
    base::Rng rng(c.p_tp * 100 + c.d_tp);
    const std::uint64_t tokens = 30 + rng.below(40);
    const std::uint64_t first = rng.below(tokens);
    const KvGeometry model = small_model(c.attention, c.heads);
    LiveInstance prefill("p", model, c.p_tp, 1, tokens, rng, c.listen);
    LiveInstance decode("d", model, c.d_tp, c.d_pp, tokens, rng, c.listen, "test", "",
                        is_once ? c.machines : std::vector<std::uint32_t>());
    meet(decode);
    // Several requests: the rank that fetches is another one each time.
    for (int request = 0; request < 4; ++request) hand_over(prefill, decode, tokens, first);
    for (TransferRank& rank : prefill.ranks) sent[is_once] += rank.statistics().sent_bytes;
    for (TransferRank& rank : decode.ranks) EXPECT_EQ(rank.statistics().open_offers, 0u);
  }
  EXPECT_EQ(sent[true] * c.d_tp * c.d_pp, sent[false] * c.parts);
}

constexpr Attention kMla = Attention::kLatent, kGqa = Attention::kGrouped;

INSTANTIATE_TEST_SUITE_P(
    Handover, EveryMachine,
    ::testing::Values(
        CopyCase{"MlaOneMachine", kMla, 8, 1, 2, 1, {0, 0}, 1},
        CopyCase{"MlaFourSources", kMla, 8, 4, 4, 1, {0, 0, 0, 0}, 1},
        CopyCase{"MlaTwoMachines", kMla, 8, 2, 4, 1, {7, 7, 9, 9}, 2},
        CopyCase{"MlaEachRankAlone", kMla, 8, 1, 4, 1, {0, 1, 2, 3}, 4},
        CopyCase{"MlaInMemory", kMla, 8, 1, 8, 1, {0, 0, 0, 0, 0, 0, 0, 0}, 1, "auto"},
        CopyCase{"MlaTwoStages", kMla, 8, 1, 2, 2, {0, 0, 0, 0}, 2},
        CopyCase{"GqaMoreRanksThanHeads", kGqa, 2, 2, 8, 1, {0, 0, 0, 0, 0, 0, 0, 0}, 2},
        CopyCase{"GqaSplitOverMachines", kGqa, 2, 1, 8, 1, {0, 1, 0, 1, 0, 1, 0, 1}, 4},
        CopyCase{"GqaNothingToShare", kGqa, 8, 1, 4, 1, {0, 0, 0, 0}, 4}),
    [](const auto& named) { return std::string(named.param.name); });

// An MLA model on two ranks of one machine: of the first request rank 0 fetches, if its id is even.
struct Copies : ::testing::Test {
  base::Rng rng{31};
  const std::uint64_t tokens = 50;
  KvGeometry model = small_model(Attention::kLatent);
  LiveInstance prefill{"p", model, 1, 1, tokens, rng, "tcp:127.0.0.1:0"};
  LiveInstance decode{"d", model, 2, 1, tokens, rng, "tcp:127.0.0.1:0", "test", "", {0, 0}};
  TransferRank &p = prefill.ranks[0], &fetcher = decode.ranks[0], &copier = decode.ranks[1];
  OfferId id = *random_offer_id();

  AskId ask(std::size_t rank, AskOptions options = {}) {
    KvReference reference = prefill.reference(id, tokens);
    reference.expects_note = expects_note;
    options.pages = decode.pages(rank, tokens);
    if (options.deadline_ns == 0) options.deadline_ns = kLong;
    return *decode.ranks[rank].ask(reference, options);
  }
  // All whole pages, until a deadline. @return their tokens
  std::uint64_t offer_standing() {
    const std::uint64_t whole = tokens / prefill.memory.cache(0).page_tokens();
    const std::uint64_t count = whole * prefill.memory.cache(0).page_tokens();
    for (std::uint64_t i = 0; i < whole; ++i) hashes.push_back({i + 1, 5});
    prefill.memory.fill(0, tokens);
    EXPECT_TRUE(p.offer({.id = id,
                         .pages = prefill.pages(0, count),
                         .tokens = count,
                         .deadline_ns = kLong,
                         .hashes = hashes,
                         .is_standing = true})
                    .ok());
    return count;
  }
  AskId ask_standing(std::size_t rank, std::uint64_t count) {
    return *decode.ranks[rank].ask(
        prefill.reference(id, count),
        {.pages = decode.pages(rank, count), .deadline_ns = kLong, .hash = hashes.back()});
  }
  std::vector<BlockHash> hashes;
  bool expects_note = false;
  void SetUp() override {
    id.low &= ~std::uint64_t{1};
    meet(decode);
  }
};

TEST_F(Copies, LayersAndTheNotePassThroughTheRankThatFetches) {
  expects_note = true;
  offer_all(prefill, id, tokens, {.layers_ready = 0, .has_note = true});
  const InstanceMemory before = memory_of(decode);
  const AskId copy = ask(1), fetch = ask(0);  // the copy first: it waits
  for (std::uint32_t layer = 1; layer <= model.layers; ++layer) {
    ASSERT_TRUE(p.layers_ready(id, layer).ok());
    EXPECT_EQ(copier.wait(copy, kLong, layer)->layers, layer);
    EXPECT_EQ(fetcher.status(fetch)->layers, layer);
  }
  EXPECT_EQ(copier.status(copy)->state, HandoverState::kRunning);
  const std::string note = "token 17";
  ASSERT_TRUE(p.finish(id, std::as_bytes(std::span(note))).ok());
  for (const auto& [rank, number] : {std::pair{&copier, copy}, {&fetcher, fetch}}) {
    const AskStatus status = *rank->wait(number);
    ASSERT_EQ(status.state, HandoverState::kDone) << status.error.message;
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(status.note.data()), status.note.size()),
              note);
    EXPECT_EQ(rank->statistics().done_asks, 1u);
  }
  expect_model_bytes(decode, 0, tokens, before);
  EXPECT_TRUE(ended(p)->status.ok());
}

TEST_F(Copies, ThePagesAreReadUntilTheCopyIsDone) {
  offer_all(prefill, id, tokens);
  const AskId fetch = ask(0);
  ASSERT_EQ(fetcher.wait(fetch, kLong, model.layers)->layers, model.layers);
  EXPECT_TRUE(ended(p).has_value());  // the prefill rank has nothing to do with the copies
  EXPECT_EQ(fetcher.wait(fetch, kSecond / 20)->state, HandoverState::kRunning);
  EXPECT_EQ(copier.wait(ask(1))->state, HandoverState::kDone);
  EXPECT_EQ(fetcher.wait(fetch)->state, HandoverState::kDone);
}

TEST_F(Copies, ARankThatNeverCopiesHoldsTheOtherOneToItsDeadline) {
  offer_all(prefill, id, tokens);
  const AskId fetch = ask(0, {.deadline_ns = kSecond / 2});
  const AskStatus status = *fetcher.wait(fetch);
  EXPECT_EQ(status.state, HandoverState::kDone) << status.error.message;
  EXPECT_EQ(status.layers, model.layers);
}

TEST_F(Copies, ARankThatNeverCopiesHoldsTheOtherOneNoLongerThanASilentPeer) {
  offer_all(prefill, id, tokens);
  const AskId fetch = ask(0, {.deadline_ns = 1000 * kSecond});
  const AskStatus status = *fetcher.wait(fetch, kLong);
  EXPECT_EQ(status.state, HandoverState::kDone) << status.error.message;
  const AskStatus late = *copier.wait(ask(1, {.deadline_ns = 1000 * kSecond}), kLong);
  EXPECT_EQ(late.error.code, Code::kTimeout) << late.error.message;
}

TEST_F(Copies, ACopyThatIsLateNamesTheRankThatDidNotFetch) {
  offer_all(prefill, id, tokens);
  const AskStatus status = *copier.wait(ask(1, {.deadline_ns = kSecond}));
  EXPECT_EQ(status.error.code, Code::kTimeout);
  EXPECT_STREQ(status.error.message,
               "rank d/0 of this machine, to copy from, had not asked for the same tokens at the "
               "deadline of the ask");
}

TEST_F(Copies, ACopyThatIsCancelledEndsTheWait) {
  offer_all(prefill, id, tokens, {.layers_ready = 1});
  const AskId fetch = ask(0), copy = ask(1);
  ASSERT_EQ(copier.wait(copy, kLong, 1)->layers, 1u);
  copier.release(copy);
  ASSERT_TRUE(p.layers_ready(id, model.layers).ok());
  EXPECT_EQ(fetcher.wait(fetch)->state, HandoverState::kDone);
  EXPECT_TRUE(ended(p)->status.ok());
}

TEST_F(Copies, ARankThatDiesEndsTheWait) {
  offer_all(prefill, id, tokens, {.layers_ready = 1});
  const AskId fetch = ask(0);
  ASSERT_EQ(copier.wait(ask(1), kLong, 1)->layers, 1u);
  { const TransferRank dead = std::move(copier); }
  ASSERT_TRUE(p.layers_ready(id, model.layers).ok());
  EXPECT_EQ(fetcher.wait(fetch)->state, HandoverState::kDone);
  decode.start(1, "tcp:127.0.0.1:0");
}

TEST_F(Copies, AFetchThatFailsEndsTheCopiesAlsoLaterOnes) {
  offer_all(prefill, id, tokens, {.layers_ready = 1});
  const AskId fetch = ask(0), copy = ask(1);
  ASSERT_EQ(copier.wait(copy, kLong, 1)->layers, 1u);
  fetcher.release(fetch);
  EXPECT_EQ(copier.wait(copy)->state, HandoverState::kFailed);
  EXPECT_FALSE(ended(p)->status.ok());
  const AskStatus late = *copier.wait(ask(1));
  EXPECT_EQ(late.error.code, Code::kCancelled) << late.error.message;

  // An offer that does not exist: the copy has asked before.
  id = *random_offer_id();
  id.low &= ~std::uint64_t{1};
  const AskId early = ask(1);
  EXPECT_EQ(copier.wait(early, kSecond / 20)->state, HandoverState::kRunning);
  EXPECT_EQ(fetcher.wait(ask(0))->error.code, Code::kNotFound);
  EXPECT_EQ(copier.wait(early)->error.code, Code::kNotFound);
  EXPECT_EQ(copier.wait(ask(1))->error.code, Code::kNotFound);
}

TEST_F(Copies, APrefillRankThatDiesAfterTheFetchFailsNothing) {
  offer_all(prefill, id, tokens);
  const AskId fetch = ask(0);
  ASSERT_EQ(fetcher.wait(fetch, kLong, model.layers)->layers, model.layers);
  ASSERT_TRUE(ended(p).has_value());
  { const TransferRank dead = std::move(p); }
  EXPECT_EQ(fetcher.wait(fetch, kSecond / 10)->state, HandoverState::kRunning);
  prefill.start(0, "tcp:127.0.0.1:0");
  EXPECT_EQ(copier.wait(ask(1))->state, HandoverState::kDone);
  const AskStatus status = *fetcher.wait(fetch);
  EXPECT_EQ(status.state, HandoverState::kDone) << status.error.message;
}

TEST_F(Copies, AFetcherThatDiesEndsTheCopies) {
  offer_all(prefill, id, tokens, {.layers_ready = 1});
  ask(0);
  const AskId copy = ask(1);
  ASSERT_EQ(copier.wait(copy, kLong, 1)->layers, 1u);
  { const TransferRank dead = std::move(fetcher); }
  EXPECT_EQ(copier.wait(copy)->state, HandoverState::kFailed);
  EXPECT_FALSE(ended(p)->status.ok());
  decode.start(0, "tcp:127.0.0.1:0");
}

TEST_F(Copies, TheSameBytesAreTakenTwiceAtATime) {
  const std::uint64_t count = offer_standing();
  std::vector<std::pair<std::size_t, AskId>> asks;
  for (const std::size_t rank : {1, 0, 0, 1, 1, 0})
    asks.emplace_back(rank, ask_standing(rank, count));
  for (const auto& [rank, number] : asks) {
    const AskStatus status = *decode.ranks[rank].wait(number);
    EXPECT_EQ(status.state, HandoverState::kDone) << status.error.message;
  }
}

TEST_F(Copies, AFetchThatFailedIsForgottenWhenItsRankFetchesAgain) {
  const std::uint64_t count = offer_standing();
  fetcher.release(ask_standing(0, count));
  EXPECT_EQ(copier.wait(ask_standing(1, count))->error.code, Code::kCancelled);
  const AskId fetch = ask_standing(0, count);
  EXPECT_EQ(copier.wait(ask_standing(1, count))->state, HandoverState::kDone);
  EXPECT_EQ(fetcher.wait(fetch)->state, HandoverState::kDone);
}

TEST_F(Copies, OtherInstancesGetNoCopy) {
  offer_all(prefill, id, tokens, {.layers_ready = 1});
  const AskId fetch = ask(0);
  ASSERT_EQ(fetcher.wait(fetch, kLong, 1)->layers, 1u);
  const std::map<std::string, std::string> facts = {
      {"model", "test"},
      {"kv", *model_text(decode.memory.cache(0).view().geometry(), decode.shape)}};
  AskMessage m;
  m.ask = 1;
  m.offer = name_of(id);
  m.shape = decode.shape;
  m.rank = 1;
  m.tokens = tokens;
  m.is_copy = true;
  m.fetches.resize(1);
  const auto answer_to = [&](const std::string& name, AskMessage message, const OfferId& known) {
    RawPeer peer = RawPeer::connect(fetcher.addresses().front());
    peer.send(hello_of(name, 77, facts, "d/0"));
    peer.send(reads_of());
    const auto heard = peer.receive(FrameType::kHello);
    if (!heard) return Error::make(Code::kIo, "no hello");
    message = proven(message, known, {name, 77}, party_in(*heard));
    peer.send({FrameType::kMessage, BodyWriter().bytes(encode(message)).take()});
    const auto frame = peer.receive(FrameType::kMessage);
    if (!frame) return Error::make(Code::kIo, "no answer");
    BodyReader body(frame->body);
    Result<Message> read = transfer::decode(body.bytes(kMostMessageBytes));
    const auto* refusal = read ? std::get_if<RefusalMessage>(&*read) : nullptr;
    return refusal ? refusal->error : Error::make(Code::kIo, "another message");
  };
  // Of another instance, of another rank, of another shape.
  EXPECT_EQ(answer_to("x/1", m, id).code, Code::kRefused);
  EXPECT_EQ(answer_to("d/3", m, id).code, Code::kRefused);
  // Of one that does not know the offer.
  EXPECT_EQ(answer_to("d/1", m, *random_offer_id()).code, Code::kRefused);
  AskMessage other = m;
  other.shape.machines = {0, 1};
  EXPECT_EQ(answer_to("d/1", other, id).code, Code::kRefused);
  // Of the right rank, without a transfer, or with a shape that nothing has.
  other = m;
  other.fetches.clear();
  EXPECT_EQ(answer_to("d/1", other, id).code, Code::kInvalidArgument);
  EXPECT_EQ(answer_to("d/1", m, id).code, Code::kInvalidArgument);
  // The fetch itself is no offer.
  other = m;
  other.is_copy = false;
  EXPECT_EQ(answer_to("d/1", other, id).code, Code::kNotFound);
}

TEST_F(Copies, WithoutAddressesOrWithWrongOnesIsOneClearError) {
  LiveInstance alone("e", model, 2, 1, tokens, rng, "tcp:127.0.0.1:0", "test", "", {0, 0});
  id.low &= ~std::uint64_t{1};
  const Result<AskId> ask = alone.ranks[1].ask(
      prefill.reference(id, tokens), {.pages = alone.pages(1, tokens), .deadline_ns = kLong});
  ASSERT_FALSE(ask.ok());
  EXPECT_EQ(ask.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::string(ask.error().message).find("addresses are unknown"), std::string::npos);
  const Status few = alone.ranks[1].set_instance_addresses({{"tcp:127.0.0.1:1"}});
  ASSERT_FALSE(few.ok());
  EXPECT_NE(std::string(few.error().message).find("addresses of 1 ranks"), std::string::npos);

  TransferOptions options;
  options.instance = "f";
  options.model = "test";
  options.geometry = decode.memory.cache(0).view().geometry();
  options.shape = decode.shape;
  options.shape.machines = {0, 0, 0};
  const Result<TransferRank> opened = TransferRank::open(options);
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(std::string(opened.error().message).find("machines of 3 ranks"), std::string::npos);
}

TEST_F(Copies, RanksFindEachOtherInARegistry) {
  const os::ScratchFolder folder;
  LiveInstance found("r", model, 2, 1, tokens, rng, "tcp:127.0.0.1:0", "test",
                     "file:" + folder.path(), {0, 0});
  offer_all(prefill, id, tokens);
  const InstanceMemory before = memory_of(found);
  std::vector<AskId> asks;
  for (std::size_t r = 0; r < 2; ++r) {
    asks.push_back(*found.ranks[r].ask(prefill.reference(id, tokens),
                                       {.pages = found.pages(r, tokens), .deadline_ns = kLong}));
  }
  for (std::size_t r = 0; r < 2; ++r) {
    const AskStatus status = *found.ranks[r].wait(asks[r]);
    EXPECT_EQ(status.state, HandoverState::kDone) << status.error.message;
  }
  expect_model_bytes(found, 0, tokens, before);
}

}  // namespace
}  // namespace cachalot
