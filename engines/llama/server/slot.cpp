#include "slot.h"

#include <algorithm>
#include <ctime>
#include <random>

#include "../suitability.h"
#include "os/memory.h"

namespace cachalot::llama {
namespace {

std::uint64_t since(Job::Clock::time_point begin) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Job::Clock::now() - begin).count());
}

std::uint64_t thread_cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

llama_context_params context_params(const SlotOptions& options) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = options.context_tokens;
  // One block is one micro-batch: what a block's KV is, does not depend on its neighbours.
  params.n_batch = params.n_ubatch = options.block_tokens;
  params.n_seq_max = 2;  // the conversation, and the scratch sequence by which blocks come and go
  params.kv_unified = true;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.n_threads = params.n_threads_batch = options.threads;
  params.type_k = params.type_v = options.kv_type;
  params.no_perf = true;
  return params;
}

llama_sampler* make_sampler(const Sampling& sampling) {
  llama_sampler_chain_params params = llama_sampler_chain_default_params();
  params.no_perf = true;
  llama_sampler* const chain = llama_sampler_chain_init(params);
  constexpr float kColdest = 1e-3F;  // below, logits divided by it may overflow
  if (sampling.temperature < kColdest) {
    llama_sampler_chain_add(chain, llama_sampler_init_greedy());
    return chain;
  }
  // Temperature first, so that top_p is of the distribution that is drawn from, as OpenAI has it.
  if (sampling.top_k > 0) llama_sampler_chain_add(chain, llama_sampler_init_top_k(sampling.top_k));
  llama_sampler_chain_add(chain, llama_sampler_init_temp(sampling.temperature));
  if (sampling.top_p < 1)
    llama_sampler_chain_add(chain, llama_sampler_init_top_p(sampling.top_p, 1));
  const std::uint32_t seed = sampling.seed ? *sampling.seed : std::random_device()();
  // The largest number asks libllama for a seed of its own.
  llama_sampler_chain_add(chain, llama_sampler_init_dist(std::min(seed, LLAMA_DEFAULT_SEED - 1)));
  return chain;
}

constexpr llama_seq_id kSequence = 0, kScratch = 1;

Result<Context> make_context(const Model& model, const llama_context_params& params) {
  Context context(llama_init_from_model(model.get(), params));
  if (context) return context;
  return Error::make(
      Code::kNoSpace,
      "libllama cannot create a context of %u tokens for this model (--verbose shows why)",
      params.n_ctx);
}

}  // namespace

Status check_memory(const Model& model, const SlotOptions& options, std::size_t slots) {
  constexpr double kGiB = 1 << 30;
  const std::uint64_t a_token = model.kv_bytes_per_token(options.kv_type);
  const std::uint64_t most_tokens = UINT64_MAX / slots / std::max<std::uint64_t>(a_token, 1);
  const os::AvailableMemory memory = os::available_memory();
  const std::uint64_t wanted =
      options.context_tokens > most_tokens ? UINT64_MAX : a_token * options.context_tokens * slots;
  if (wanted <= memory.bytes) return {};
  return Error::make(Code::kNoSpace,
                     "--slots %zu of --context %u: their KV caches take %.2f GiB, %llu bytes a "
                     "token, and %.60s has "
                     "%.2f GiB left: expected at most %llu tokens in all",
                     slots, options.context_tokens, static_cast<double>(wanted) / kGiB,
                     static_cast<unsigned long long>(a_token), memory.limited_by.c_str(),
                     static_cast<double>(memory.bytes) / kGiB,
                     static_cast<unsigned long long>(memory.bytes / a_token));
}

Result<std::uint64_t> block_bytes_of(const Model& model, const SlotOptions& options) {
  // A pool's blocks are whole lines. Storage reads and writes whole pages without a copy, so larger blocks are pages.
  constexpr std::uint64_t kLineBytes = 64, kPageBytes = 4096, kLargeBytes = 64 << 10;
  constexpr std::uint32_t kSmallContext = 256;
  llama_context_params params = context_params(options);
  // A block is the same in any context that it fits in.
  params.n_ctx = std::min(params.n_ctx, std::max(kSmallContext, 2 * options.block_tokens));
  CACHALOT_TRY_ASSIGN(const Context context, make_context(model, params));
  CACHALOT_TRY_ASSIGN(const BlobLayout layout,
                      try_context(context.get(), params, kScratch, options.block_tokens));
  const std::uint64_t unit = layout.bytes() > kLargeBytes ? kPageBytes : kLineBytes;
  return (layout.bytes() + unit - 1) / unit * unit;
}

Result<Slot> Slot::make(const Model& model, const SlotOptions& options) {
  const llama_context_params params = context_params(options);
  CACHALOT_TRY_ASSIGN(Context context, make_context(model, params));
  Slot slot(model, std::move(context), options.block_tokens);
  if (!options.cache) return slot;
  PromptCacheOptions pool = *options.cache;
  pool.origin.context = params;
  pool.block_tokens = options.block_tokens;
  pool.scratch_seq = kScratch;
  CACHALOT_TRY_ASSIGN(slot.cache_, PromptCache::attach(slot.context_.get(), pool));
  return slot;
}

void Slot::begin(std::shared_ptr<Job> job, std::uint64_t number) {
  job_ = std::move(job);
  last_used_ = number;
  job_->usage.prompt_tokens = job_->tokens.size();
  job_->usage.queue_ns = since(job_->arrived);
  const std::size_t kept = reusable_tokens(cached_, job_->tokens, block_tokens_);
  cached_.clear();
  prefill_.emplace(context_.get(), cache_.get(), kSequence, job_->tokens, kept, block_tokens_);
  prefill_->expect(job_->stored);
  if (job_->request.kv_transfer.reference)
    prefill_->take_over(*job_->request.kv_transfer.reference);
  sampler_.reset(make_sampler(job_->request.sampling));
  text_.emplace(job_->request.stops);
}

bool Slot::step() {
  if (job_->is_cancelled()) {
    if (prefill_) keep_prompt();
    end();
    return true;
  }
  if (prefill_) return step_prompt();
  decode_last();
  return true;
}

bool Slot::step_prompt() {
  const std::uint64_t cpu_before = thread_cpu_ns();
  const Result<Prefill::State> state = prefill_->step();
  job_->usage.prompt_cpu_ns += thread_cpu_ns() - cpu_before;
  if (!state) {
    fail(state.error());
    return true;
  }
  if (*state == Prefill::State::kDone) end_prompt();
  return *state != Prefill::State::kWaiting;
}

// What of the prompt is in the context for the next request.
void Slot::keep_prompt() {
  if (!model_->keeps_all_tokens()) return;
  const auto keepable = static_cast<std::ptrdiff_t>(prefill_->keepable_tokens());
  cached_.assign(job_->tokens.begin(), job_->tokens.begin() + keepable);
}

void Slot::end_prompt() {
  const Prefill::Report& report = prefill_->report();
  Usage& usage = job_->usage;
  usage.own_tokens = report.kept_tokens;
  usage.host_tokens = report.host_tokens;
  usage.pool_tokens = report.loaded_tokens;
  usage.transfer_tokens = report.transferred_tokens;
  usage.load_ns = report.load_ns;
  usage.compute_ns = report.compute_ns;
  usage.store_ns = report.store_ns;
  usage.wait_ns = report.wait_ns;
  usage.transfer_wait_ns = report.transfer_wait_ns;
  usage.storage_tokens = report.storage_tokens;
  usage.unused_storage_tokens = report.unused_storage_tokens;
  usage.storage_wait_ns = report.storage_wait_ns;
  keep_prompt();
  prefill_.reset();
  offer_prompt();
  position_ = static_cast<std::int32_t>(job_->tokens.size()) - 1;
  sample();
}

// To the process that goes on with this prompt.
void Slot::offer_prompt() {
  if (!cache_ || !job_->request.kv_transfer.do_remote_decode) return;
  const Job::Clock::time_point began = Job::Clock::now();
  job_->reference = cache_->offer(kSequence, job_->tokens);
  job_->usage.store_ns += since(began);
}

void Slot::decode_last() {
  llama_seq_id sequence = kSequence;
  llama_seq_id* sequences = &sequence;
  std::int32_t sequence_count = 1;
  std::int8_t wants_logits = 1;
  const llama_batch batch = {.n_tokens = 1,
                             .token = &last_,
                             .embd = nullptr,
                             .pos = &position_,
                             .n_seq_id = &sequence_count,
                             .seq_id = &sequences,
                             .logits = &wants_logits};
  const std::int32_t code = llama_decode(context_.get(), batch);
  if (code != 0) {
    return fail(
        Error::make(Code::kInternal, "llama_decode returned %d at position %d", code, position_));
  }
  sample();
}

// Takes the next token from the logits at hand, and ends the request where it is the last one.
void Slot::sample() {
  Usage& usage = job_->usage;
  last_ = llama_sampler_sample(sampler_.get(), context_.get(), -1);
  ++position_;
  if (usage.completion_tokens++ == 0) usage.first_token_ns = since(job_->arrived);
  if (model_->ends(last_) && !job_->request.ignore_eos) return finish(Finish::kStop);
  std::string text = text_->add(model_->bytes_of(last_));
  if (!text.empty()) job_->put({.text = std::move(text)});
  if (text_->is_stopped()) return finish(Finish::kStop);
  const bool is_full = static_cast<std::uint32_t>(position_) >= context_tokens();
  if (usage.completion_tokens >= job_->max_tokens || is_full) finish(Finish::kLength);
}

void Slot::finish(Finish reason) {
  job_->usage.total_ns = since(job_->arrived);
  job_->put({.text = text_->finish(), .finish = reason});
  end();
}

void Slot::fail(const Error& error) {
  if (!job_) return;
  job_->put({.error = error});
  end();
}

void Slot::end() {
  prefill_.reset();
  sampler_.reset();
  text_.reset();
  job_.reset();
}

}  // namespace cachalot::llama
