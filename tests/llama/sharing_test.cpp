// Which engines share, and which one computes what two need simultaneously.
#include <chrono>
#include <thread>

#include "engine_process.h"
#include "suitability.h"

namespace cachalot::llama {
namespace {

using base::FailPoint;

constexpr const char* kModel = CACHALOT_TEST_ASSETS "/models/stories260K.gguf";
constexpr std::size_t kBlock = 64;
constexpr std::size_t kBlocks = 8;
constexpr std::size_t kPromptTokens = kBlocks * kBlock + 20;
constexpr std::uint64_t kSecond = 1'000'000'000;

// --- Namespaces ----------------------------------------------------------------------------------

class Namespaces : public testing::Test {
 protected:
  Namespaces() {
    spec_.model = kModel;
    spec_.pool = keeper_.path();
    EngineProcess writer(spec_);
    EXPECT_EQ(writer.ask(prompt_).report.stored_blocks, kBlocks);
  }
  std::size_t loaded_by(const EngineSpec& spec) {
    EngineProcess reader(spec);
    const Answer answer = reader.ask(prompt_);
    EXPECT_EQ(answer.error, "");
    return answer.report.loaded_tokens;
  }

  const Tokens prompt_ = random_tokens(1, kPromptTokens);
  TestKeeper keeper_;
  EngineSpec spec_;
};

TEST_F(Namespaces, TheSameEngineFindsTheBlocks) {
  EXPECT_EQ(loaded_by(spec_), kBlocks * kBlock);
}

// By hand: the writer asked for the 8 blocks of a prompt and found none. The reader asks for those and uses them, asks for
// the 3 of another prompt and finds none, and has them itself when its sequence goes on with them: 8 of 19.
TEST_F(Namespaces, EachPromptOfTheirEnginesCountsOnce) {
  const Tokens other = random_tokens(2, 3 * kBlock + 5);
  EngineProcess reader(spec_);
  EXPECT_EQ(reader.ask(prompt_).report.loaded_tokens, kBlocks * kBlock);
  EXPECT_EQ(reader.ask(other).report.loaded_tokens, 0u);
  EXPECT_EQ(reader.ask(other, 3 * kBlock).report.kept_tokens, 3 * kBlock);
  pool::ClientCounters totals = keeper_.totals();
  for (int i = 0; i < 600 && totals[pool::ClientCounter::kPrompts] < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    totals = keeper_.totals();
  }
  EXPECT_EQ(totals[pool::ClientCounter::kPromptBlocks], 2 * kBlocks + 3);
  EXPECT_EQ(totals[pool::ClientCounter::kUsedPoolBlocks], kBlocks);
  EXPECT_EQ(totals[pool::ClientCounter::kUsedPeerBlocks], 0u);
  EXPECT_EQ(totals[pool::ClientCounter::kUsedStorageBlocks], 0u);
}

TEST_F(Namespaces, OfAnotherModelFindNothing) {
  spec_.model = quantized(kModel, LLAMA_FTYPE_MOSTLY_F16, CACHALOT_MODEL_FOLDER);
  EXPECT_EQ(loaded_by(spec_), 0u);
}

TEST_F(Namespaces, OfAnotherBlockSizeFindNothing) {
  spec_.block_tokens = 32;
  EXPECT_EQ(loaded_by(spec_), 0u);
}

TEST_F(Namespaces, OfAnotherSaltFindNothing) {
  spec_.salt = "tenant 2";
  EXPECT_EQ(loaded_by(spec_), 0u);
}

TEST_F(Namespaces, OfOtherContextsFindNothing) {
  using Change = void (*)(llama_context_params&);
  constexpr Change kChanges[] = {
      [](llama_context_params& params) { params.rope_freq_base = 12345.0f; },
      [](llama_context_params& params) { params.rope_freq_scale = 0.5f; },
      [](llama_context_params& params) { params.type_k = params.type_v = GGML_TYPE_F32; },
      [](llama_context_params& params) { params.type_v = GGML_TYPE_BF16; },
      [](llama_context_params& params) {
        params.rope_scaling_type = LLAMA_ROPE_SCALING_TYPE_YARN;
        params.rope_freq_scale = 0.5f;
        params.yarn_orig_ctx = 256;
      },
  };
  for (const Change change : kChanges) {
    spec_.change = change;
    EXPECT_EQ(loaded_by(spec_), 0u) << "change " << (&change - kChanges);
  }
}

// --- Single flight -------------------------------------------------------------------------------

#ifdef CACHALOT_FAIL_POINTS

class SingleFlight : public testing::Test {
 protected:
  SingleFlight() {
    spec_.model = kModel;
    expected_ = EngineProcess(spec_).ask(prompt_);
    spec_.pool = keeper_.path();
    // The first one stands in the middle of its third block's store, and holds what it has claimed.
    EngineSpec pausing = spec_;
    pausing.fail_at = FailPoint::kPutStored;
    pausing.fail_nth = 3;
    pausing.dies = false;
    first_.emplace(pausing);
    first_->post(prompt_);
    EXPECT_TRUE(first_->pauses());
  }

  const Tokens prompt_ = random_tokens(1, kPromptTokens);
  TestKeeper keeper_;
  EngineSpec spec_;
  Answer expected_;
  std::optional<EngineProcess> first_;
};

TEST_F(SingleFlight, OneComputesAndTheOtherTakesItsBlocks) {
  EngineProcess second(spec_);
  second.post(prompt_);
  // It is seen to wait: it cannot answer before the first one goes on.
  EXPECT_FALSE(second.answers_within(300));
  first_->resume();
  const Answer first = first_->take(), answer = second.take();
  expect_same_answer(first, expected_);
  expect_same_answer(answer, expected_);
  EXPECT_EQ(first.report.computed_tokens, kPromptTokens);
  EXPECT_EQ(answer.report.loaded_tokens, kBlocks * kBlock);
  EXPECT_EQ(answer.report.computed_tokens, kPromptTokens - kBlocks * kBlock);
  EXPECT_GT(answer.report.wait_ns, 0u);
}

TEST_F(SingleFlight, WhoHasAnotherEndWaitsForTheSharedBlocksOnly) {
  EngineProcess second(spec_);
  // Two blocks are stored, the third one is in flight, and this one's third is its own.
  const Tokens other = with_other_end(prompt_, 2 * kBlock, kPromptTokens, 2);
  const Answer answer = second.ask(other);
  EXPECT_EQ(answer.error, "");
  EXPECT_EQ(answer.report.loaded_tokens, 2 * kBlock);
  EXPECT_EQ(answer.report.wait_ns, 0u);
  first_->resume();
  expect_same_answer(first_->take(), expected_);
}

TEST_F(SingleFlight, WaitsNoLongerThanItMay) {
  spec_.flight_wait_ns = kSecond / 5;
  EngineProcess second(spec_);
  const Answer answer = second.ask(prompt_);
  expect_same_answer(answer, expected_);
  EXPECT_EQ(answer.report.loaded_tokens, 2 * kBlock);
  EXPECT_GE(answer.report.wait_ns, kSecond / 5);
  first_->resume();
  expect_same_answer(first_->take(), expected_);
}

TEST_F(SingleFlight, DoesNotWaitAtAllWhereItIsToldSo) {
  spec_.flight_wait_ns = 0;
  EngineProcess second(spec_);
  const Answer answer = second.ask(prompt_);
  expect_same_answer(answer, expected_);
  EXPECT_EQ(answer.report.wait_ns, 0u);
  first_->resume();
  (void)first_->take();
}

TEST_F(SingleFlight, TheOtherGoesOnWhereTheFirstOneDied) {
  EngineProcess second(spec_);
  second.post(prompt_);
  EXPECT_FALSE(second.answers_within(300));
  first_->kill();
  const Answer answer = second.take();
  expect_same_answer(answer, expected_);
  EXPECT_EQ(answer.report.loaded_tokens, 2 * kBlock);
  EXPECT_EQ(answer.report.stored_blocks, kBlocks - 2);
}

#endif

// --- Refusals ------------------------------------------------------------------------------------

class Refusals : public testing::Test {
 protected:
  Refusals() {
    spec_.model = kModel;
    spec_.pool = keeper_.path();
  }
  std::string refusal() { return EngineProcess(spec_).refusal(); }
  void expect_refused(const std::string& part) {
    EXPECT_NE(refusal().find(part), std::string::npos) << refusal();
  }

  TestKeeper keeper_;
  EngineSpec spec_;
};

TEST_F(Refusals, AreNoneForAContextThatCanShare) {
  EXPECT_EQ(refusal(), "");
}

TEST_F(Refusals, OfARecurrentModel) {
  spec_.model = CACHALOT_RECURRENT_MODEL;
  expect_refused("the model is recurrent");
}

TEST_F(Refusals, OfAModelWithASlidingWindow) {
  spec_.model = CACHALOT_WINDOWED_MODEL;
  expect_refused("sliding-window attention");
  // However large its window's cache is.
  spec_.change = [](llama_context_params& params) { params.swa_full = true; };
  expect_refused("sliding-window attention");
}

TEST_F(Refusals, OfACacheThatIsNotUnified) {
  spec_.change = [](llama_context_params& params) { params.kv_unified = false; };
  expect_refused("not unified (kv_unified)");
}

TEST_F(Refusals, OfTransposedValues) {
  spec_.change = [](llama_context_params& params) {
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  };
  expect_refused("flash attention");
}

TEST_F(Refusals, OfAContextWithoutASpareSequence) {
  spec_.change = [](llama_context_params& params) { params.n_seq_max = 1; };
  expect_refused("n_seq_max");
}

TEST_F(Refusals, OfEmbeddings) {
  spec_.change = [](llama_context_params& params) { params.embeddings = true; };
  expect_refused("embeddings");
}

TEST_F(Refusals, OfACallbackThatSeesAllThatIsComputed) {
  spec_.change = [](llama_context_params& params) {
    params.cb_eval = [](ggml_tensor*, bool, void*) { return false; };
  };
  expect_refused("cb_eval");
}

TEST_F(Refusals, OfAttentionThatIsNotCausal) {
  spec_.change = [](llama_context_params& params) {
    params.attention_type = LLAMA_ATTENTION_TYPE_NON_CAUSAL;
  };
  expect_refused("not causal");
}

TEST_F(Refusals, OfBlocksThatAreLongerThanAMicroBatch) {
  spec_.change = [](llama_context_params& params) { params.n_ubatch = 32; };
  expect_refused("n_ubatch = 32");
}

TEST_F(Refusals, OfBlocksThatDoNotFitThePool) {
  TestKeeper small({.block_bytes = 4096});
  spec_.pool = small.path();
  expect_refused("--block-bytes 41920");
}

TEST_F(Refusals, OfAPoolThatIsNotThere) {
  spec_.pool = "/dev/shm/cachalot_llama_test.no_such";
  expect_refused("no_such");
}

TEST_F(Refusals, OfAPoolWithoutAKeeper) {
  keeper_.kill();
  expect_refused("no keeper serves this pool");
  keeper_.start();
}

// --- Prompts that cannot be ----------------------------------------------------------------------

TEST(Prompts, ThatCannotBeComputedAreRefusedAndTheNextOneIsNot) {
  EngineSpec spec;
  spec.model = kModel;
  EngineProcess engine(spec);
  EXPECT_NE(engine.ask({}).error.find("empty"), std::string::npos);
  EXPECT_NE(engine.ask({5, -1, 7}).error.find("token -1"), std::string::npos);
  EXPECT_NE(engine.ask({5, 512}).error.find("token 512"), std::string::npos);
  EXPECT_NE(engine.ask(random_tokens(1, 1025)).error.find("1025 tokens"), std::string::npos);
  EXPECT_EQ(engine.ask(random_tokens(1, 900)).error, "");
}

}  // namespace
}  // namespace cachalot::llama
