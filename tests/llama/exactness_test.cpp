// An answer is the same to the bit, whether its prompt was computed or came from the pool, where another
// process stored it.
#include <filesystem>
#include <string>
#include <tuple>

#include "engine_process.h"

namespace cachalot::llama {
namespace {

constexpr std::size_t kBlock = 64;
constexpr std::size_t kBlocks = 8;
constexpr std::size_t kPromptTokens = kBlocks * kBlock + 20;

struct ModelKind {
  const char* name;
  const char* path;
  llama_ftype type;
};

constexpr ModelKind kModels[] = {
    {"TrainedF32", CACHALOT_TEST_ASSETS "/models/stories260K.gguf", LLAMA_FTYPE_ALL_F32},
    {"TrainedF16", CACHALOT_TEST_ASSETS "/models/stories260K.gguf", LLAMA_FTYPE_MOSTLY_F16},
    {"TrainedQ8", CACHALOT_TEST_ASSETS "/models/stories260K.gguf", LLAMA_FTYPE_MOSTLY_Q8_0},
    {"RandomF16", CACHALOT_RANDOM_MODEL, LLAMA_FTYPE_MOSTLY_F16},
    {"RandomQ8", CACHALOT_RANDOM_MODEL, LLAMA_FTYPE_MOSTLY_Q8_0},
};

std::string model_of(const ModelKind& kind) {
  return kind.type == LLAMA_FTYPE_ALL_F32 ? kind.path
                                          : quantized(kind.path, kind.type, CACHALOT_MODEL_FOLDER);
}

class Exactness : public testing::TestWithParam<std::tuple<ModelKind, const char*>> {
 protected:
  Exactness() : keeper_({.domain = std::get<1>(GetParam())}) {
    spec_.model = model_of(std::get<0>(GetParam()));
    EngineSpec alone = spec_;
    expected_ = EngineProcess(alone).ask(prompt_);
    spec_.pool = keeper_.path();
  }

  const Tokens prompt_ = random_tokens(1, kPromptTokens);
  TestKeeper keeper_;
  EngineSpec spec_;
  Answer expected_;
};

TEST_P(Exactness, AColdAnswerWithThePoolIsTheOneWithout) {
  const Answer answer = EngineProcess(spec_).ask(prompt_);
  expect_same_answer(answer, expected_);
  EXPECT_EQ(answer.report.loaded_tokens, 0u);
  EXPECT_EQ(answer.report.computed_tokens, kPromptTokens);
  EXPECT_EQ(answer.report.stored_blocks, kBlocks);
}

TEST_P(Exactness, HitsOfAnyNumberOfBlocksGiveTheSameAnswer) {
  for (const std::size_t hit : {std::size_t{1}, std::size_t{7}, kBlocks}) {
    TestKeeper keeper({.domain = std::get<1>(GetParam())});
    spec_.pool = keeper.path();
    EngineProcess writer(spec_);
    const Answer written = writer.ask(
        with_other_end(prompt_, hit * kBlock + (hit == kBlocks ? 20 : 0), kPromptTokens, 2));
    ASSERT_EQ(written.report.stored_blocks, kBlocks) << written.error;
    const Answer answer = EngineProcess(spec_).ask(prompt_);
    expect_same_answer(answer, expected_);
    EXPECT_EQ(answer.report.loaded_tokens, hit * kBlock);
    EXPECT_EQ(answer.statistics.loaded_blocks, hit);
    EXPECT_EQ(answer.report.computed_tokens, kPromptTokens - hit * kBlock);
    EXPECT_EQ(answer.report.stored_blocks, kBlocks - hit);
  }
}

TEST_P(Exactness, SoDoBlocksThatTheSequenceKeeps) {
  EngineProcess writer(spec_);
  ASSERT_EQ(writer.ask(prompt_).report.stored_blocks, kBlocks);
  EngineProcess reader(spec_);
  // Of another prompt three blocks are kept, which are also the first of this one.
  (void)reader.ask(with_other_end(prompt_, 3 * kBlock, 200, 3));
  const Answer answer = reader.ask(prompt_, 3 * kBlock);
  expect_same_answer(answer, expected_);
  EXPECT_EQ(answer.report.kept_tokens, 3 * kBlock);
  EXPECT_EQ(answer.report.loaded_tokens, (kBlocks - 3) * kBlock);
  // All of it again: what was generated goes, what was loaded stays.
  const Answer again = reader.ask(prompt_, kBlocks * kBlock);
  expect_same_answer(again, expected_);
  EXPECT_EQ(again.report.kept_tokens, kBlocks * kBlock);
  EXPECT_EQ(again.report.loaded_tokens, 0u);
}

INSTANTIATE_TEST_SUITE_P(Models, Exactness,
                         testing::Combine(testing::ValuesIn(kModels),
                                          testing::Values("coherent", "noncoherent")),
                         [](const auto& model) {
                           return std::string(std::get<0>(model.param).name) + "_" +
                                  std::get<1>(model.param);
                         });

class OtherShapes : public testing::Test {
 protected:
  // What the second of two engines loads and says, beside one without a pool.
  void expect_shared(EngineSpec spec, std::size_t prompt_tokens, std::size_t loaded,
                     const PoolSpec& pool = {}) {
    const Tokens prompt = random_tokens(5, prompt_tokens);
    const Answer expected = EngineProcess(spec).ask(prompt);
    TestKeeper keeper(pool);
    spec.pool = keeper.path();
    EngineProcess writer(spec);
    EXPECT_EQ(writer.refusal(), "");
    (void)writer.ask(prompt);
    const Answer answer = EngineProcess(spec).ask(prompt);
    expect_same_answer(answer, expected);
    EXPECT_EQ(answer.report.loaded_tokens, loaded);
  }
  EngineSpec trained() const {
    EngineSpec spec;
    spec.model = kModels[0].path;
    return spec;
  }
};

TEST_F(OtherShapes, BlocksOf16And256Tokens) {
  EngineSpec spec = trained();
  spec.block_tokens = 16;
  expect_shared(spec, 100, 96);
  spec.block_tokens = 256;
  expect_shared(spec, 600, 512);
}

TEST_F(OtherShapes, APromptOfWholeBlocksIsComputedInItsLastOne) {
  expect_shared(trained(), 3 * kBlock, 2 * kBlock);
  expect_shared(trained(), 3 * kBlock + 1, 3 * kBlock);
  expect_shared(trained(), kBlock, 0);
  expect_shared(trained(), 1, 0);
}

TEST_F(OtherShapes, QuantizedKeysAndValues) {
  EngineSpec spec;
  spec.model = model_of(kModels[3]);
  spec.change = [](llama_context_params& params) {
    params.type_k = params.type_v = GGML_TYPE_Q8_0;
  };
  expect_shared(spec, kPromptTokens, kBlocks * kBlock);
}

TEST_F(OtherShapes, AWriterOfTwoThreads) {
  EngineSpec spec;
  spec.model = model_of(kModels[3]);
  const Tokens prompt = random_tokens(5, kPromptTokens);
  const Answer expected = EngineProcess(spec).ask(prompt);
  TestKeeper keeper;
  spec.pool = keeper.path();
  EngineSpec two = spec;
  two.threads = 2;
  EXPECT_EQ(EngineProcess(two).ask(prompt).report.stored_blocks, kBlocks);
  const Answer answer = EngineProcess(spec).ask(prompt);
  expect_same_answer(answer, expected);
  EXPECT_EQ(answer.report.loaded_tokens, kBlocks * kBlock);
}

// Blocks that lie in two pieces pass a buffer.
TEST_F(OtherShapes, APoolOfTwoDevices) {
  expect_shared(trained(), kPromptTokens, kBlocks * kBlock,
                {.block_bytes = 1536 << 10, .devices = 2});
  expect_shared(trained(), kPromptTokens, kBlocks * kBlock,
                {.domain = "noncoherent", .block_bytes = 1536 << 10, .devices = 2});
}

}  // namespace
}  // namespace cachalot::llama
