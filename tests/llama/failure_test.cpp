// Whatever happens to engines, keepers and blocks: answers stay what they are without a pool.
#include <signal.h>

#include "engine_process.h"

namespace cachalot::llama {
namespace {

using base::FailPoint;

constexpr std::size_t kBlock = 64;
constexpr std::size_t kBlocks = 8;
constexpr std::size_t kPromptTokens = kBlocks * kBlock + 20;

class Failure : public testing::TestWithParam<const char*> {
 protected:
  Failure() : keeper_({.domain = GetParam(), .block_bytes = 64 << 10}) {
    spec_.model = CACHALOT_TEST_ASSETS "/models/stories260K.gguf";
    expected_ = EngineProcess(spec_).ask(prompt_);
    spec_.pool = keeper_.path();
  }

  // Stores the prompt, by a process that ends.
  void store() {
    EngineProcess writer(spec_);
    EXPECT_EQ(writer.ask(prompt_).report.stored_blocks, kBlocks);
  }
  // What a new process loads; its answer is checked.
  std::size_t loaded_blocks() {
    EngineProcess reader(spec_);
    const Answer answer = reader.ask(prompt_);
    expect_same_answer(answer, expected_);
    return answer.report.loaded_tokens / kBlock;
  }

  const Tokens prompt_ = random_tokens(1, kPromptTokens);
  TestKeeper keeper_;
  EngineSpec spec_;
  Answer expected_;
};

TEST_P(Failure, AKeeperThatWasKilledAndOneThatFollows) {
  store();
  keeper_.kill();
  keeper_.start();
  EXPECT_EQ(loaded_blocks(), kBlocks);
}

TEST_P(Failure, AnEngineThatServesOnWhileKeepersChange) {
  EngineProcess engine(spec_);
  ASSERT_EQ(engine.ask(prompt_).report.stored_blocks, kBlocks);
  keeper_.kill();
  // Without one: nothing is stored, and the missing keeper is seen.
  const Tokens other = random_tokens(2, kPromptTokens);
  const Answer alone = engine.ask(other);
  EXPECT_EQ(alone.error, "");
  EXPECT_EQ(alone.report.stored_blocks, 0u);
  EXPECT_GT(alone.statistics.pool_failures, 0u);
  const Answer still = engine.ask(prompt_);
  expect_same_answer(still, expected_);
  keeper_.start();
  // With the next one it stores again, and reads what it stored with the one before. When it tries again
  // is its own business: it rests a little between two attempts.
  Answer later;
  for (int attempt = 0; attempt < 200 && later.report.stored_blocks == 0; ++attempt) {
    later = engine.ask(random_tokens(100 + static_cast<std::uint64_t>(attempt), kPromptTokens));
    ASSERT_EQ(later.error, "");
  }
  EXPECT_EQ(later.report.stored_blocks, kBlocks);
  const Answer again = engine.ask(prompt_);
  expect_same_answer(again, expected_);
  EXPECT_EQ(again.report.loaded_tokens, kBlocks * kBlock);
  EXPECT_EQ(loaded_blocks(), kBlocks);
}

TEST_P(Failure, AKeeperThatHangs) {
  EngineProcess engine(spec_);
  ASSERT_EQ(engine.ask(with_other_end(prompt_, 3 * kBlock, kPromptTokens, 2)).report.stored_blocks,
            kBlocks);
  keeper_.send(SIGSTOP);
  const Answer answer = engine.ask(prompt_);
  expect_same_answer(answer, expected_);
  EXPECT_EQ(answer.report.loaded_tokens, 3 * kBlock) << "reading needs no keeper";
  keeper_.send(SIGCONT);
  EXPECT_EQ(engine.ask(prompt_).error, "");
}

#ifdef CACHALOT_FAIL_POINTS

TEST_P(Failure, AnEngineKilledWhileItStoresItsThirdBlock) {
  for (const FailPoint point :
       {FailPoint::kGrantTaken, FailPoint::kWriteBulk, FailPoint::kPutStored, FailPoint::kPutPosted,
        FailPoint::kPutAnswered}) {
    SCOPED_TRACE(base::fail_point_name(point));
    TestKeeper keeper({.domain = GetParam(), .block_bytes = 64 << 10});
    spec_.pool = keeper.path();
    spec_.fail_at = point;
    // Blocks are granted eight at a time, and of a block copied in pieces one is not all.
    spec_.fail_nth = point == FailPoint::kGrantTaken ? 1 : 3;
    EngineProcess writer(spec_);
    writer.post(prompt_);
    EXPECT_FALSE(writer.take().is_there);
    EXPECT_EQ(writer.wait_for_death(), SIGKILL);
    spec_.fail_at = FailPoint::kNone;
    const std::size_t loaded = loaded_blocks();
    // What was answered is published; what was posted may be.
    if (point == FailPoint::kPutStored) {
      EXPECT_EQ(loaded, 2u);
    }
    if (point == FailPoint::kPutPosted) {
      EXPECT_TRUE(loaded == 2 || loaded == 3) << loaded;
    }
    if (point == FailPoint::kPutAnswered) {
      EXPECT_EQ(loaded, 3u);
    }
    if (point == FailPoint::kGrantTaken) {
      EXPECT_EQ(loaded, 0u);
    }
    if (point == FailPoint::kWriteBulk) {
      EXPECT_LE(loaded, 2u);
    }
    // The rest was stored by the process after it.
    EXPECT_EQ(loaded_blocks(), kBlocks);
  }
}

TEST_P(Failure, AnEngineKilledWhileItLoads) {
  store();
  EngineSpec dying = spec_;
  dying.fail_at = FailPoint::kReadCopied;
  dying.fail_nth = 3;
  EngineProcess reader(dying);
  reader.post(prompt_);
  EXPECT_EQ(reader.wait_for_death(), SIGKILL);
  EXPECT_EQ(loaded_blocks(), kBlocks);
}

class MidLoad : public Failure {
 protected:
  // An engine that stands in the middle of a load: its second block is checked, and not taken yet.
  void pause() {
    store();
    spec_.fail_at = FailPoint::kReadCopied;
    spec_.fail_nth = 2;
    spec_.dies = false;
    reader_.emplace(spec_);
    reader_->post(prompt_);
    ASSERT_TRUE(reader_->pauses());
    spec_.fail_at = FailPoint::kNone;
  }
  Answer finish() {
    reader_->resume();
    Answer answer = reader_->take();
    expect_same_answer(answer, expected_);
    return answer;
  }
  std::optional<EngineProcess> reader_;
};

TEST_P(MidLoad, TheKeeperIsKilled) {
  pause();
  keeper_.kill();
  EXPECT_EQ(finish().report.loaded_tokens, kBlocks * kBlock)
      << "nobody can use the blocks again without a keeper";
}

TEST_P(MidLoad, AnotherKeeperTakesOver) {
  pause();
  keeper_.kill();
  keeper_.start();
  (void)finish();
  EXPECT_EQ(loaded_blocks(), kBlocks);
}

// The pin keeps the bytes as they are, and the entries say that the blocks are gone.
TEST_P(MidLoad, ItsBlocksAreEvictedAndThePoolFilledWithOthers) {
  pause();
  keeper_.evict_everything(reader_->fingerprint());
  keeper_.store_other_blocks(1);
  const Answer answer = finish();
  EXPECT_EQ(answer.report.loaded_tokens, 0u);
  EXPECT_EQ(answer.statistics.stale_blocks, kBlocks);
  EXPECT_EQ(answer.report.computed_tokens, kPromptTokens);
}

INSTANTIATE_TEST_SUITE_P(Domains, MidLoad, testing::Values("coherent", "noncoherent"));

#endif

TEST_P(Failure, BlocksThatWereDamagedAreReplaced) {
  store();
  keeper_.damage();
  EngineProcess reader(spec_);
  const Answer answer = reader.ask(prompt_);
  expect_same_answer(answer, expected_);
  EXPECT_EQ(answer.report.loaded_tokens, 0u);
  EXPECT_EQ(answer.statistics.damaged_blocks, kBlocks);
  EXPECT_EQ(answer.statistics.replaced_chains, 1u);
  EXPECT_EQ(loaded_blocks(), kBlocks);
}

// What is behind it is sound, and need not be computed.
TEST_P(Failure, ABlockThatWasDamagedIsReplacedByWhoMeetsItFirst) {
  store();
  for (const std::size_t damaged : {std::size_t{0}, std::size_t{3}, kBlocks - 1}) {
    SCOPED_TRACE(damaged);
    keeper_.damage(static_cast<int>(damaged * kBlock));
    EngineProcess reader(spec_);
    const Answer answer = reader.ask(prompt_);
    expect_same_answer(answer, expected_);
    EXPECT_EQ(answer.report.loaded_tokens, (kBlocks - 1) * kBlock);
    EXPECT_EQ(answer.report.stored_blocks, kBlocks - damaged);
    EXPECT_EQ(answer.statistics.damaged_blocks, 1u);
    EXPECT_EQ(answer.statistics.replaced_chains, 1u);
    EngineProcess next(spec_);
    const Answer again = next.ask(prompt_);
    expect_same_answer(again, expected_);
    EXPECT_EQ(again.report.loaded_tokens, kBlocks * kBlock);
    EXPECT_EQ(again.statistics.damaged_blocks, 0u);
  }
}

TEST_P(Failure, DamagedBlocksThatTwoEnginesMeetAtOnceAreReplaced) {
  store();
  EngineProcess one(spec_), two(spec_);
  std::uint64_t replaced = 0;
  for (const int position : {0, -1}) {
    keeper_.damage(position);
    one.post(prompt_);
    two.post(prompt_);
    replaced = 0;
    for (EngineProcess* engine : {&one, &two}) {
      const Answer answer = engine->take();
      expect_same_answer(answer, expected_);
      replaced += answer.statistics.replaced_chains;
    }
    // Not again by the engine that did so a moment ago, but then by the other one, or by a third.
    EXPECT_GE(replaced, 1u);
    EXPECT_LE(replaced, 2u);
    (void)loaded_blocks();
    EXPECT_EQ(loaded_blocks(), kBlocks);
  }
}

// So that two that see different bytes in one place do not replace each other's block without end.
TEST_P(Failure, AnEngineReplacesABlockOnceInAWhile) {
  store();
  EngineProcess engine(spec_);
  for (std::uint64_t times = 1; times <= 3; ++times) {
    keeper_.damage(0);
    const Answer answer = engine.ask(prompt_);
    expect_same_answer(answer, expected_);
    EXPECT_EQ(answer.report.loaded_tokens, (kBlocks - 1) * kBlock);
    EXPECT_EQ(answer.statistics.replaced_chains, 1u);
    if (times == 2) keeper_.damage(0);  // sound again
  }
  EXPECT_EQ(loaded_blocks(), kBlocks - 1) << "and another one replaces it";
  EXPECT_EQ(loaded_blocks(), kBlocks);
}

TEST_P(Failure, ADamagedBlockWithoutAKeeperFailsNoRequest) {
  store();
  EngineProcess engine(spec_);
  ASSERT_EQ(engine.ask(with_other_end(prompt_, 3 * kBlock, kPromptTokens, 2)).error, "");
  keeper_.damage(kBlock);
  keeper_.kill();
  expect_same_answer(engine.ask(prompt_), expected_);
  keeper_.start();
  EXPECT_LT(loaded_blocks(), kBlocks);
  EXPECT_EQ(loaded_blocks(), kBlocks);
}

// A pool that has room for six of the prompt's eight blocks.
TEST_P(Failure, APoolThatIsTooSmall) {
  TestKeeper small({.domain = GetParam(), .capacity_blocks = 6, .block_bytes = 64 << 10});
  spec_.pool = small.path();
  EngineProcess writer(spec_);
  const Answer written = writer.ask(prompt_);
  expect_same_answer(written, expected_);
  EXPECT_GT(written.statistics.unstored_blocks, 0u);
  const std::size_t loaded = loaded_blocks();
  EXPECT_GT(loaded, 0u);
  EXPECT_LE(loaded, 6u);
}

TEST_P(Failure, OthersThatEvictWhileItIsAsked) {
  TestKeeper small({.domain = GetParam(), .capacity_blocks = 12, .block_bytes = 64 << 10});
  spec_.pool = small.path();
  std::size_t loaded = 0;
  EngineProcess one(spec_), two(spec_);
  for (int round = 0; round < 12; ++round) {
    one.post(prompt_);
    two.post(prompt_);
    small.store_other_blocks(2);
    for (EngineProcess* engine : {&one, &two}) {
      const Answer answer = engine->take();
      expect_same_answer(answer, expected_);
      loaded += answer.report.loaded_tokens;
    }
  }
  EXPECT_GT(loaded, 0u) << "in twelve rounds no block came from another process";
}

INSTANTIATE_TEST_SUITE_P(Domains, Failure, testing::Values("coherent", "noncoherent"));

}  // namespace
}  // namespace cachalot::llama
