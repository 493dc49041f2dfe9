// Batches of all kinds, as programs make them, through a SharedContext: what comes out is what a context
// of the same model without one says, but for the rounding of other shapes.
#include "preload/shared_context.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "base/rng.h"
#include "engine_process.h"

namespace cachalot::llama {
namespace {

constexpr const char* kModel = CACHALOT_TEST_ASSETS "/models/stories260K.gguf";
constexpr std::uint32_t kSequences = 3, kBatchTokens = 128, kContextTokens = 1024;
// Logits go up to 20. Other shapes of batches change them by up to 0.05, a token that is missing or
// misplaced by 1 and more.
constexpr float kRounding = 0.2f;
constexpr std::size_t kMostTokens = 250;  // of a sequence; the model was trained on 256

class Batch {
 public:
  explicit Batch(const std::vector<Entry>& entries)
      : batch(llama_batch_init(static_cast<std::int32_t>(entries.size()), 0, 1)) {
    for (const Entry& entry : entries) {
      const std::int32_t at = batch.n_tokens++;
      batch.token[at] = entry.token;
      batch.pos[at] = entry.position;
      batch.n_seq_id[at] = 1;
      batch.seq_id[at][0] = entry.sequences[0];
      batch.logits[at] = entry.is_output;
    }
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() { llama_batch_free(batch); }
  llama_batch batch;
};

// Of a context with a pool, and a sequence of ours.
PromptCacheOptions options_of(const std::string& pool) {
  PromptCacheOptions options;
  options.pool = {pool};
  options.origin.model_files = {kModel};
  llama_context_params& params = options.origin.context;
  params.n_ctx = kContextTokens;
  params.n_batch = kBatchTokens;
  params.n_ubatch = 64;
  params.kv_unified = true;
  params.n_threads = params.n_threads_batch = 1;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.n_seq_max = kSequences + 1;
  return options;
}

// A program with a few sequences that does what it likes; beside it the same without a pool.
class Program {
 public:
  Program(const std::string& pool, std::uint64_t seed) : rng_(seed), prompts_(kSequences + 1) {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
    const PromptCacheOptions options = options_of(pool);
    llama_model* const model = llama_model_load_from_file(kModel, options.origin.model);
    with_ = llama_init_from_model(model, options.origin.context);
    without_ = llama_init_from_model(model, options.origin.context);
    vocabulary_ = llama_vocab_n_tokens(llama_model_get_vocab(model));
    Result<std::unique_ptr<SharedContext>> shared =
        SharedContext::open(with_, kSequences, options, false);
    if (!shared) fail(shared.error().message);
    if (shared) shared_ = *std::move(shared);
    for (std::vector<llama_token>& prompt : prompts_) prompt = random_tokens(seed % 4, kMostTokens);
  }

  bool has_failed() const { return has_failed_; }
  const PromptCacheStatistics& statistics() const { return shared_->statistics(); }

  void step() {
    const auto sequence = static_cast<llama_seq_id>(rng_.below(kSequences));
    std::vector<llama_token>& held = held_[sequence];
    switch (rng_.below(8)) {
      case 0:
        return cut(sequence, 0);
      case 1:
        return cut(sequence, rng_.below(held.size() + 1));
      case 2:
        return copy(sequence, static_cast<llama_seq_id>(rng_.below(kSequences)));
      default:
        return decode();
    }
  }

 private:
  void fail(const char* what) {
    std::fprintf(stderr, "%s\n", what);
    has_failed_ = true;
  }

  void cut(llama_seq_id sequence, std::size_t to) {
    for (llama_context* context : {with_, without_}) {
      llama_memory_seq_rm(llama_get_memory(context), sequence, static_cast<llama_pos>(to), -1);
    }
    shared_->removed(sequence, static_cast<llama_pos>(to), -1);
    held_[sequence].resize(to);
  }

  void copy(llama_seq_id from, llama_seq_id to) {
    if (from == to) return;
    cut(to, 0);
    for (llama_context* context : {with_, without_})
      llama_memory_seq_cp(llama_get_memory(context), from, to, -1, -1);
    shared_->copied(from, to, -1, -1);
    held_[to] = held_[from];
  }

  // Some tokens more for some sequences: a piece of the common prompt, or something else; outputs of the
  // last one, of none, or of all.
  void decode() {
    std::vector<Entry> entries;
    for (llama_seq_id sequence = 0; sequence < static_cast<llama_seq_id>(kSequences); ++sequence) {
      std::vector<llama_token>& held = held_[sequence];
      const std::size_t room = std::min(kMostTokens - held.size(), kBatchTokens - entries.size());
      if (rng_.below(3) == 0 || room == 0) continue;
      const std::size_t count = rng_.below(3) == 0 ? 1 : 1 + rng_.below(room);
      const bool is_common = rng_.below(4) != 0;
      const std::uint64_t outputs = rng_.below(4);
      for (std::size_t i = 0; i < count; ++i) {
        Entry entry;
        entry.token =
            is_common ? prompts_[0][held.size()] : static_cast<llama_token>(3 + rng_.below(500));
        entry.position = static_cast<llama_pos>(held.size());
        entry.sequences = {sequence};
        entry.is_output = outputs == 0 || (outputs != 1 && i + 1 == count);
        held.push_back(entry.token);
        entries.push_back(entry);
      }
    }
    if (entries.empty()) return;
    const Batch batch(entries);
    if (llama_decode(without_, batch.batch) != 0)
      return fail("the context without a pool cannot decode");
    if (shared_->decode(entries, [&] { return llama_decode(with_, batch.batch); }) != 0)
      return fail("the shared context cannot decode");
    compare(entries);
  }

  void compare(const std::vector<Entry>& entries) {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const llama_seq_id sequence = entries[i].sequences[0];
      const llama_pos last = llama_memory_seq_pos_max(llama_get_memory(with_), sequence);
      if (last + 1 != static_cast<llama_pos>(held_[sequence].size()))
        return fail("a sequence has another length");
      if (!entries[i].is_output) continue;
      const float* const expected = llama_get_logits_ith(without_, static_cast<std::int32_t>(i));
      const float* const logits =
          llama_get_logits_ith(with_, shared_->output_index(static_cast<std::int32_t>(i)));
      if (expected == nullptr || logits == nullptr) return fail("an output is not there");
      for (std::int32_t token = 0; token < vocabulary_; ++token) {
        if (std::abs(expected[token] - logits[token]) > kRounding)
          return fail("a logit is another one");
      }
    }
  }

  base::Rng rng_;
  llama_context *with_ = nullptr, *without_ = nullptr;
  std::unique_ptr<SharedContext> shared_;
  std::vector<std::vector<llama_token>> prompts_;
  std::vector<llama_token> held_[kSequences];
  std::int32_t vocabulary_ = 0;
  bool has_failed_ = false;
};

TEST(SharedContext, TakesBatchesOfAllKinds) {
  TestKeeper keeper({.block_bytes = 64 << 10});
  const char* const given = std::getenv("CACHALOT_TEST_SEED");
  const std::uint64_t first = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  for (std::uint64_t seed = first; seed < first + (given != nullptr ? 1 : 8); ++seed) {
    SCOPED_TRACE("CACHALOT_TEST_SEED=" + std::to_string(seed));
    auto child = os::Child::start([&] {
      Program program(keeper.path(), seed);
      for (int step = 0; step < 120 && !program.has_failed(); ++step) program.step();
      if (program.has_failed()) return 1;
      // There are four common prompts: from the fifth process on, an earlier one has stored it.
      return seed < first + 4 || program.statistics().loaded_blocks != 0 ? 0 : 2;
    });
    ASSERT_TRUE(child);
    const auto status = child->wait();
    ASSERT_TRUE(status);
    EXPECT_TRUE(status->ok()) << status->text();
  }
}

// Whole blocks are filled in there without a need for their logits: also the last one may be
// damaged.
TEST(SharedContext, TakesBlocksThatAreDamagedMeanwhile) {
  TestKeeper keeper({.block_bytes = 64 << 10});
  constexpr int kReplaced = 3;
  int replacing = 0;
  for (const std::uint64_t seed : {4, 8, 12, 16}) {  // one common prompt
    SCOPED_TRACE(seed);
    auto child = os::Child::start([&] {
      Program program(keeper.path(), seed);
      for (int step = 0; step < 60 && !program.has_failed(); ++step) {
        if (step % 8 == 3) keeper.damage(step / 8 % 4 * 64);
        program.step();
      }
      if (program.has_failed()) return 1;
      return program.statistics().replaced_chains == 0 ? 0 : kReplaced;
    });
    ASSERT_TRUE(child);
    const auto status = child->wait();
    ASSERT_TRUE(status);
    EXPECT_TRUE(status->ok() || status->exit_code == kReplaced) << status->text();
    replacing += status->exit_code == kReplaced;
  }
  EXPECT_GT(replacing, 0) << "nobody met a damaged block";
}

// A program that decodes parts of one prompt.
class PromptProgram {
 public:
  explicit PromptProgram(const std::string& pool) {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
    const PromptCacheOptions options = options_of(pool);
    llama_model* const model = llama_model_load_from_file(kModel, options.origin.model);
    context = llama_init_from_model(model, options.origin.context);
    Result<std::unique_ptr<SharedContext>> opened =
        SharedContext::open(context, kSequences, options, false);
    if (opened) shared = *std::move(opened);
  }

  // Tokens [first, end) of the prompt. @return as llama_decode
  std::int32_t decode(llama_seq_id sequence, std::size_t first, std::size_t end) {
    std::vector<Entry> entries;
    for (std::size_t i = first; i < end; ++i) {
      Entry entry;
      entry.token = prompt_[i];
      entry.position = static_cast<llama_pos>(i);
      entry.sequences = {sequence};
      entries.push_back(entry);
    }
    const Batch batch(entries);
    return shared->decode(entries, [&] { return llama_decode(context, batch.batch); });
  }
  void clear() {
    llama_memory_clear(llama_get_memory(context), true);
    shared->cleared();
  }
  std::uint64_t stored_blocks() const { return shared->statistics().stored_blocks; }

  llama_context* context = nullptr;
  std::unique_ptr<SharedContext> shared;

 private:
  const Tokens prompt_ = random_tokens(1, kMostTokens);
};

// Runs in a process of its own. @param body  returns what is wrong, 0: nothing
void expect_right(const std::function<int(PromptProgram&)>& body) {
  TestKeeper keeper({.block_bytes = 64 << 10});
  auto child = os::Child::start([&] {
    PromptProgram program(keeper.path());
    return program.shared ? body(program) : 100;
  });
  ASSERT_TRUE(child);
  const auto status = child->wait();
  ASSERT_TRUE(status);
  EXPECT_TRUE(status->ok()) << status->text();
}

TEST(SharedContext, SaysThatAPromptWasAborted) {
  expect_right([](PromptProgram& program) {
    llama_set_abort_callback(
        program.context, [](void*) { return true; }, nullptr);
    if (program.decode(0, 0, 128) != 2) return 1;  // as llama_decode says it
    llama_set_abort_callback(program.context, nullptr, nullptr);
    if (program.decode(0, 0, 128) != 0) return 2;
    return program.stored_blocks() == 2 ? 0 : 3;
  });
}

TEST(SharedContext, StoresNothingOfAWarmup) {
  expect_right([](PromptProgram& program) {
    program.shared->set_warmup(true);
    if (program.decode(0, 0, 128) != 0 || program.stored_blocks() != 0) return 1;
    program.shared->set_warmup(false);
    // What the warm-up computed is computed again before it is stored.
    if (program.decode(0, 128, 192) != 0 || program.stored_blocks() != 3) return 2;
    const llama_pos last = llama_memory_seq_pos_max(llama_get_memory(program.context), 0);
    if (last != 191) return 3;
    program.clear();
    return program.decode(0, 0, 128) == 0 && program.stored_blocks() == 3 ? 0 : 4;
  });
}

// llama.cpp moves the cells that a copy shares for both sequences.
TEST(SharedContext, KnowsNothingOfACopyWhoseOtherSequenceWasShifted) {
  expect_right([](PromptProgram& program) {
    const llama_memory_t memory = llama_get_memory(program.context);
    if (program.decode(0, 0, 128) != 0 || program.stored_blocks() != 2) return 1;
    llama_memory_seq_cp(memory, 0, 1, -1, -1);
    program.shared->copied(0, 1, -1, -1);
    // A context shift of sequence 1.
    llama_memory_seq_rm(memory, 1, 0, 64);
    program.shared->removed(1, 0, 64);
    llama_memory_seq_add(memory, 1, 64, -1, -64);
    program.shared->shifted(1);
    if (llama_memory_seq_pos_max(memory, 0) != 63) return 2;  // it was, too
    (void)program.decode(0, 128, 192);
    if (program.stored_blocks() != 2) return 3;
    program.clear();
    return program.decode(0, 0, 192) == 0 && program.stored_blocks() == 3 ? 0 : 4;
  });
}

}  // namespace
}  // namespace cachalot::llama
