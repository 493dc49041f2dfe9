#include "shared_context.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <string>

#include "../prefill.h"

namespace cachalot::llama {
namespace {

constexpr std::int32_t kNoRoom = 1, kAborted = 2, kInvalid = -1,
                       kFatal = -3;  // as llama_decode says it

struct Batch {
  explicit Batch(std::size_t tokens)
      : batch(llama_batch_init(static_cast<std::int32_t>(tokens), 0, 1)) {}
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() { llama_batch_free(batch); }

  void add(llama_token token, std::size_t position, llama_seq_id sequence, bool is_output) {
    const std::int32_t at = batch.n_tokens++;
    batch.token[at] = token;
    batch.pos[at] = static_cast<llama_pos>(position);
    batch.n_seq_id[at] = 1;
    batch.seq_id[at][0] = sequence;
    batch.logits[at] = is_output;
  }

  llama_batch batch;
};

}  // namespace

void say(const char* format, ...) {
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "cachalot: %s\n", text);
}

SharedContext::SharedContext(llama_context* context, std::uint32_t sequences,
                             std::unique_ptr<PromptCache> cache, bool is_verbose)
    : context_(context),
      memory_(llama_get_memory(context)),
      cache_(std::move(cache)),
      histories_(sequences),
      is_verbose_(is_verbose) {}

Result<std::unique_ptr<SharedContext>> SharedContext::open(llama_context* context,
                                                           std::uint32_t sequences,
                                                           const PromptCacheOptions& options,
                                                           bool is_verbose) {
  CACHALOT_TRY_ASSIGN(std::unique_ptr<PromptCache> cache, PromptCache::attach(context, options));
  return std::unique_ptr<SharedContext>(
      new SharedContext(context, sequences, std::move(cache), is_verbose));
}

// --- Batches -------------------------------------------------------------------------------------

std::int32_t SharedContext::decode(std::span<const Entry> batch,
                                   const std::function<std::int32_t()>& as_given) {
  places_.clear();
  std::vector<Prompt> prompts;
  if (!is_stopped_ && !is_warmup_) prompts = prompts_of(batch);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (const std::int32_t status = fill(prompts[i]); status != 0)
      return restore(std::span(prompts).first(i + 1), status);
  }
  // Whatever begins where the program thinks it does can be decoded as it is.
  const bool is_as_given = std::all_of(prompts.begin(), prompts.end(),
                                       [](const Prompt& p) { return p.base == p.before; });
  const std::int32_t status = is_as_given ? as_given() : decode_rest(batch, prompts);
  if (status != 0) return restore(prompts, status);
  note(batch, prompts);
  return 0;
}

std::vector<SharedContext::Prompt> SharedContext::prompts_of(std::span<const Entry> batch) const {
  std::vector<std::size_t> entries_of(histories_.size());
  for (const Entry& entry : batch) {
    for (const llama_seq_id sequence : entry.sequences) {
      // Not one of ours to follow: what happens to the others of the batch is the program's business.
      if (sequence < 0 || static_cast<std::size_t>(sequence) >= histories_.size()) return {};
      ++entries_of[static_cast<std::size_t>(sequence)];
    }
    if (!entry.is_plain || entry.sequences.size() != 1) return {};
  }
  std::vector<Prompt> prompts;
  for (std::size_t first = 0, next = 0; first < batch.size(); first = next) {
    const llama_seq_id sequence = batch[first].sequences[0];
    const History& history = histories_[static_cast<std::size_t>(sequence)];
    bool is_prompt = history.is_known();
    Prompt prompt{sequence, first, 0, history.tokens().size(), history.tokens()};
    for (next = first; next < batch.size() && batch[next].sequences[0] == sequence; ++next) {
      const Entry& entry = batch[next];
      // A prompt wants at most its last token's output: guesses to be verified want all.
      is_prompt = is_prompt && !prompt.has_output &&
                  static_cast<std::size_t>(entry.position) == prompt.tokens.size();
      prompt.has_output = entry.is_output;
      prompt.tokens.push_back(entry.token);
    }
    prompt.entries = next - first;
    if (is_prompt && prompt.entries > 1 &&
        prompt.entries == entries_of[static_cast<std::size_t>(sequence)]) {
      prompts.push_back(std::move(prompt));
    }
  }
  return prompts;
}

// Brings all whole blocks of a prompt into its sequence, and nothing behind them. What the program had
// computed there in other shapes goes: the last part of a block, or an answer, is computed once more.
std::int32_t SharedContext::fill(Prompt& prompt) {
  const History& history = histories_[static_cast<std::size_t>(prompt.sequence)];
  const std::size_t whole = (prompt.tokens.size() - prompt.has_output) / cache_->block_tokens();
  prompt.base = whole * cache_->block_tokens();
  if (prompt.base <= history.exact()) {
    llama_memory_seq_rm(memory_, prompt.sequence, static_cast<llama_pos>(prompt.base), -1);
    return 0;
  }
  Prefill prefill(
      context_, cache_.get(), prompt.sequence,
      std::vector<llama_token>(prompt.tokens.begin(),
                               prompt.tokens.begin() + static_cast<std::ptrdiff_t>(prompt.base)),
      history.exact());
  prefill.only_fill();
  const Status filled = prefill.run();
  if (is_verbose_) {
    const Prefill::Report& report = prefill.report();
    say("sequence %d: %zu tokens, of which %zu were there, %zu came from the pool in %.2f ms, %zu "
        "were computed in %.2f ms; "
        "waited %.2f ms for others; stored %zu blocks",
        prompt.sequence, prompt.tokens.size(), report.kept_tokens, report.loaded_tokens,
        static_cast<double>(report.load_ns) / 1e6, report.computed_tokens,
        static_cast<double>(report.compute_ns) / 1e6, static_cast<double>(report.wait_ns) / 1e6,
        report.stored_blocks);
  }
  if (filled) return 0;
  if (filled.error().code == Code::kNoSpace) return kNoRoom;
  if (filled.error().code == Code::kCancelled) return kAborted;
  return filled.error().code == Code::kInvalidArgument ? kInvalid : kFatal;
}

// What is left of the prompts, and all else in the batch, whose outputs are there afterwards.
std::int32_t SharedContext::decode_rest(std::span<const Entry> batch,
                                        std::span<const Prompt> prompts) {
  std::size_t count = batch.size();
  for (const Prompt& prompt : prompts) count += prompt.tokens.size() - prompt.base;
  Batch rest(count);
  places_.assign(batch.size(), -1);
  auto next = prompts.begin();
  for (std::size_t i = 0; i < batch.size();) {
    if (next == prompts.end() || i != next->first_entry) {
      places_[i] = rest.batch.n_tokens;
      rest.add(batch[i].token, static_cast<std::size_t>(batch[i].position), batch[i].sequences[0],
               batch[i].is_output);
      ++i;
      continue;
    }
    std::size_t at = next->base;
    const std::size_t left = next->tokens.size() - at;
    // Where not all fits into one batch, what has no outputs goes before.
    if (left > 1 && count > llama_n_batch(context_)) {
      const std::size_t before = left - next->has_output;
      const std::int32_t status =
          decode_tokens(std::span(next->tokens).subspan(at, before), at, next->sequence);
      if (status != 0) return status;
      at += before;
    }
    for (; at < next->tokens.size(); ++at) {
      const bool is_last = at + 1 == next->tokens.size();
      if (at >= next->before) places_[i + at - next->before] = rest.batch.n_tokens;
      rest.add(next->tokens[at], at, next->sequence, is_last && next->has_output);
    }
    i += next->entries;
    ++next;
  }
  return rest.batch.n_tokens == 0 ? 0 : llama_decode(context_, rest.batch);
}

// Without outputs, in as many batches as it takes.
std::int32_t SharedContext::decode_tokens(std::span<const llama_token> tokens, std::size_t position,
                                          llama_seq_id sequence) {
  const std::size_t most = llama_n_batch(context_);
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t count = std::min(most, tokens.size() - done);
    Batch part(count);
    for (std::size_t i = 0; i < count; ++i)
      part.add(tokens[done + i], position + done + i, sequence, false);
    if (const std::int32_t status = llama_decode(context_, part.batch); status != 0) return status;
    done += count;
  }
  return 0;
}

// A batch that failed leaves its sequences as they were: what was added goes, what was taken away to be
// computed again is computed again.
std::int32_t SharedContext::restore(std::span<const Prompt> prompts, std::int32_t status) {
  places_.clear();
  for (const Prompt& prompt : prompts) {
    History& history = histories_[static_cast<std::size_t>(prompt.sequence)];
    llama_memory_seq_rm(memory_, prompt.sequence, static_cast<llama_pos>(prompt.before), -1);
    const auto held =
        static_cast<std::size_t>(llama_memory_seq_pos_max(memory_, prompt.sequence) + 1);
    const auto lost =
        std::span(prompt.tokens).first(prompt.before).subspan(std::min(held, prompt.before));
    if (!lost.empty() && decode_tokens(lost, held, prompt.sequence) != 0) {
      history.forget();
      status = kFatal;
    } else {
      history.set(std::span(prompt.tokens).first(prompt.before), std::min(history.exact(), held));
    }
  }
  return status;
}

void SharedContext::note(std::span<const Entry> batch, std::span<const Prompt> prompts) {
  for (const Prompt& prompt : prompts) {
    histories_[static_cast<std::size_t>(prompt.sequence)].set(prompt.tokens, prompt.base);
  }
  auto next = prompts.begin();
  for (std::size_t i = 0; i < batch.size();) {
    if (next != prompts.end() && i == next->first_entry) {
      i += next->entries;
      ++next;
      continue;
    }
    for (const llama_seq_id sequence : batch[i].sequences) {
      if (sequence < 0 || static_cast<std::size_t>(sequence) >= histories_.size()) continue;
      History& history = histories_[static_cast<std::size_t>(sequence)];
      if (batch[i].is_plain)
        history.add(batch[i].token, batch[i].position);
      else
        history.forget();
    }
    ++i;
  }
}

std::int32_t SharedContext::output_index(std::int32_t index) const {
  const bool is_moved = index >= 0 && static_cast<std::size_t>(index) < places_.size();
  return is_moved && places_[static_cast<std::size_t>(index)] >= 0
             ? places_[static_cast<std::size_t>(index)]
             : index;
}

// --- What the program does -----------------------------------------------------------------------

void SharedContext::removed(llama_seq_id sequence, llama_pos from, llama_pos to) {
  for (std::size_t i = 0; i < histories_.size(); ++i) {
    if (sequence < 0 || static_cast<std::size_t>(sequence) == i) histories_[i].remove(from, to);
  }
}

void SharedContext::copied(llama_seq_id from, llama_seq_id to, llama_pos first, llama_pos last) {
  const std::size_t count = histories_.size();
  if (from < 0 || to < 0 || from == to || static_cast<std::size_t>(from) >= count ||
      static_cast<std::size_t>(to) >= count)
    return;
  shares_cells_ = true;
  histories_[static_cast<std::size_t>(to)].copy(histories_[static_cast<std::size_t>(from)], first,
                                                last);
}

void SharedContext::kept_only(llama_seq_id sequence) {
  for (std::size_t i = 0; i < histories_.size(); ++i) {
    if (static_cast<std::size_t>(sequence) != i) histories_[i].clear();
  }
}

void SharedContext::changed(llama_seq_id sequence) {
  for (std::size_t i = 0; i < histories_.size(); ++i) {
    if (sequence < 0 || static_cast<std::size_t>(sequence) == i) histories_[i].forget();
  }
}

void SharedContext::shifted(llama_seq_id sequence) {
  changed(shares_cells_ ? -1 : sequence);
}

void SharedContext::cleared() {
  shares_cells_ = false;
  for (History& history : histories_) history.clear();
}

void SharedContext::stop(const char* why) {
  if (!is_stopped_) say("prompts are no longer shared: %s", why);
  is_stopped_ = true;
}

}  // namespace cachalot::llama
