#include "client/hit_rate/prompt_counts.h"

#include <algorithm>
#include <cinttypes>

namespace cachalot::client {
namespace {

constexpr std::size_t kNowhere = ~std::size_t{0};

// Where `run` begins in a prompt that has all of it.
std::size_t place_of(std::span<const BlockHash> run, std::span<const BlockHash> prompt) {
  const auto found = std::find(prompt.begin(), prompt.end(), run[0]);
  const auto first = static_cast<std::size_t>(found - prompt.begin());
  if (prompt.size() - first < run.size()) return kNowhere;
  return prompt[first + run.size() - 1] == run.back() ? first : kNowhere;
}

std::size_t overlap(std::size_t first, std::size_t end, std::size_t other_first,
                    std::size_t other_end) {
  const std::size_t from = std::max(first, other_first), to = std::min(end, other_end);
  return to > from ? to - from : 0;
}

}  // namespace

void PromptCounts::count_asked(std::size_t blocks) {
  Counters::add(counters_.prompts, 1);
  Counters::add(counters_.prompt_blocks, blocks);
}

PromptCounts::Prompt& PromptCounts::find_or_ask(std::span<const BlockHash> hashes) {
  const auto known = std::find_if(prompts_.begin(), prompts_.end(), [&](const Prompt& prompt) {
    return prompt.hashes.size() == hashes.size() && prompt.hashes.back() == hashes.back();
  });
  if (known != prompts_.end() && known->next == 0) return *known;
  count_asked(hashes.size());
  Prompt prompt;
  prompt.number = ++last_number_;
  if (known != prompts_.end()) {
    std::swap(prompt.hashes, known->hashes);
    prompts_.erase(known);
  } else {
    if (prompts_.size() == kMostPrompts) prompts_.erase(prompts_.begin());
    prompt.hashes.assign(hashes.begin(), hashes.end());
  }
  return prompts_.emplace_back(std::move(prompt));
}

void PromptCounts::ask(std::span<const BlockHash> hashes) {
  if (!is_active_ || hashes.empty()) return;
  const std::lock_guard lock(mutex_);
  (void)find_or_ask(hashes);
}

void PromptCounts::ask(std::span<const BlockHash> hashes, const Prefetched& found) {
  if (!is_active_ || hashes.empty()) return;
  const std::lock_guard lock(mutex_);
  Prompt& prompt = find_or_ask(hashes);
  if (found.in_storage == 0) return;
  const std::size_t end = found.in_pool + found.in_storage;
  const bool is_first = prompt.stored_end == 0;
  prompt.stored_first = is_first ? found.in_pool : std::min(prompt.stored_first, found.in_pool);
  prompt.stored_end = std::max(prompt.stored_end, end);
}

PromptCounts::Load PromptCounts::begin(Prompt& prompt, std::size_t first) {
  const auto after = [&](std::size_t block) { return block - std::min(block, first); };
  return {prompt.number, first, std::exchange(prompt.next, first + 1), after(prompt.stored_first),
          after(prompt.stored_end)};
}

PromptCounts::Load PromptCounts::begin_load(std::span<const BlockHash> hashes) {
  if (!is_active_ || hashes.empty()) return {};
  const std::lock_guard lock(mutex_);
  Prompt* equal = nullptr;  // has loaded these blocks
  for (auto at = prompts_.rbegin(); at != prompts_.rend(); ++at) {
    const std::size_t first = place_of(hashes, at->hashes);
    if (first == kNowhere) continue;
    if (first >= at->next) return begin(*at, first);
    if (equal == nullptr) equal = &*at;
  }
  count_asked(equal == nullptr ? hashes.size() : equal->hashes.size());
  if (equal == nullptr) return {};
  equal->stored_first = equal->stored_end = 0;  // what storage has brought is in the pool
  return begin(*equal, place_of(hashes, equal->hashes));
}

void PromptCounts::end_load(const Load& load, std::size_t blocks) {
  if (!is_active_) return;
  const std::size_t stored = overlap(0, blocks, load.stored_first, load.stored_end);
  Counters::add(counters_.used_pool_blocks, blocks - stored);
  Counters::add(counters_.used_storage_blocks, stored);
  if (blocks != 0 || load.prompt == 0) return;
  // It is as if it had not begun: an engine may try again until the blocks are there.
  const std::lock_guard lock(mutex_);
  for (Prompt& prompt : prompts_) {
    if (prompt.number == load.prompt && prompt.next == load.first + 1)
      prompt.next = load.next_before;
  }
}

void PromptCounts::store(std::span<const BlockHash> hashes) {
  if (!is_active_ || hashes.empty()) return;
  const std::lock_guard lock(mutex_);
  std::erase_if(prompts_, [&](const Prompt& prompt) {
    return std::find(hashes.begin(), hashes.end(), prompt.hashes.back()) != hashes.end();
  });
}

Status PromptCounts::count(const PromptBlocks& prompt) {
  if (is_active_) {
    return Error::make(Code::kInvalidArgument,
                       "count_prompt: counts_prompts is not set, so this client's lookups and "
                       "loads count its prompts");
  }
  // One after the other: the sum might overflow.
  std::uint64_t left = prompt.asked;
  for (const std::uint64_t used : {prompt.from_pool, prompt.from_peers, prompt.from_storage}) {
    if (used > left) {
      return Error::make(Code::kInvalidArgument,
                         "count_prompt: %" PRIu64 " blocks from the pool, %" PRIu64
                         " from peers and %" PRIu64 " from storage, expected at most the %" PRIu64
                         " that were asked for",
                         prompt.from_pool, prompt.from_peers, prompt.from_storage, prompt.asked);
    }
    left -= used;
  }
  if (prompt.asked == 0) return {};
  count_asked(prompt.asked);
  Counters::add(counters_.used_pool_blocks, prompt.from_pool);
  Counters::add(counters_.used_peer_blocks, prompt.from_peers);
  Counters::add(counters_.used_storage_blocks, prompt.from_storage);
  return {};
}

}  // namespace cachalot::client
