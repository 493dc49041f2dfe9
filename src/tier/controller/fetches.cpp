// Controller: fetches from L3.
#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "tier/controller/controller.h"

namespace cachalot::tier {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kBatchBlocks = 16;
// Naps between looks at blocks that are on their way from storage to the pool; and after how many the keeper says
// whether they still are. Storage is asked once: what the pool had no room for, or has evicted again, is a miss.
constexpr auto kNap = 300us;
constexpr int kNapsPerQuestion = 40;
// A fetch that gets nothing for so long ends: storage may list blocks that it cannot deliver.
constexpr std::uint64_t kMostWaitNs = 10'000'000'000;

}  // namespace

void Controller::begin_fetch(Request& request, std::uint32_t first_block) {
  const auto blocks = static_cast<std::uint32_t>(request.tokens.size() / block_tokens_);
  if (shared_ == nullptr || blocks <= first_block) return;
  const std::uint64_t tokens = std::uint64_t{blocks - first_block} * block_tokens_;
  if (tokens < prefetch_.threshold_tokens) {
    ++counts_.skipped_fetches;
    return;
  }
  auto fetch = std::make_shared<Fetch>();
  fetch->tokens.assign(request.tokens.begin(),
                       request.tokens.begin() + std::ptrdiff_t{blocks} * block_tokens_);
  fetch->extra = request.extra;
  fetch->first_block = first_block;
  fetch->opened_ns = request.opened_ns;
  fetch->hashes.resize(blocks);
  std::vector<ExtraKeys> extra;
  if (!fetch->extra.empty()) {
    extra.push_back(
        {{"extra", std::vector<std::uint8_t>(fetch->extra.begin(), fetch->extra.end())}});
  }
  hasher_.hash_blocks(hasher_.root(), fetch->tokens, block_tokens_, fetch->hashes, extra);
  request.fetch = fetch;
  ++shared_->jobs;
  ++counts_.fetches;
  fetchers_->add([this, fetch, shared = shared_] { run_fetch(fetch, shared); });
}

void Controller::run_fetch(const std::shared_ptr<Fetch>& fetch,
                           const std::shared_ptr<Shared>& shared) {
  Lock lock(mutex_);
  find_in_shared(*fetch, *shared, lock);
  if (fetch->wanted_blocks != 0) {
    fetching_blocks_ += fetch->wanted_blocks;
    const std::uint32_t reserved = fetch->wanted_blocks;
    if (has_host_) {
      fetch_blocks(*fetch, *shared, lock);
    } else {
      await_pool(*fetch, *shared, lock);
    }
    fetching_blocks_ -= reserved;
  }
  fetch->is_done = true;
  if (fetch->stops) {  // the request has not waited for it: the blocks are evictable from now on
    book_.tree().unlock(Tier::kHost, fetch->locked);
    fetch->locked = kNoNode;
    if (fetch->is_released) count_unused(*fetch);
  }
  end_job(shared);
}

// Sets wanted_blocks; 0: not worth fetching.
void Controller::find_in_shared(Fetch& fetch, Shared& shared, Lock& lock) {
  const auto is_over = [&] { return fetch.stops || shared.is_ending; };
  if (is_over()) return;
  lock.unlock();
  const Result<Prefetched> found =
      shared.tier->find(std::span(fetch.hashes).subspan(fetch.first_block));
  lock.lock();
  fetch.is_found = true;
  if (!found || is_over()) return;  // L3 that fails is a miss
  const auto blocks = static_cast<std::uint32_t>(found->in_pool + found->in_storage);
  const std::uint64_t bytes = blocks * copies_->block_bytes();
  bool is_skipped = std::uint64_t{blocks} * block_tokens_ < prefetch_.threshold_tokens;
  // L2 is for what is in use, too.
  if (has_host_ && fetching_blocks_ + blocks > book_.pool(Tier::kHost).slots() / 2)
    is_skipped = true;
  const double speed = fetch_bandwidth_.bytes_per_ns();
  if (options_.prefill && speed != 0) {
    const std::uint64_t local = std::uint64_t{fetch.first_block} * block_tokens_;
    const std::uint64_t cached = local + std::uint64_t{blocks} * block_tokens_;
    const double saved = options_.prefill->cost_ns(local, fetch.tokens.size()) -
                         options_.prefill->cost_ns(cached, fetch.tokens.size());
    const double queued = static_cast<double>(fetching_blocks_ * copies_->block_bytes());
    if ((static_cast<double>(bytes) + queued) / speed > saved) {
      counts_.recomputed_tokens += cached - local;
      is_skipped = true;
    }
  }
  if (is_skipped) {
    if (blocks != 0) ++counts_.skipped_fetches;
    return;
  }
  fetch.wanted_blocks = blocks;
  fetch.stored_blocks = static_cast<std::uint32_t>(found->in_storage);
  changed_.notify_all();
}

void Controller::fetch_blocks(Fetch& fetch, Shared& shared, Lock& lock) {
  const std::span<const BlockHash> stored = std::span(fetch.hashes)
                                                .first(fetch.first_block + fetch.wanted_blocks)
                                                .last(fetch.stored_blocks);
  std::vector<Slot> slots;
  int naps = 0;
  bool comes = !stored.empty();
  std::uint64_t begin = base::SteadyClock::read();
  while (fetch.arrived_blocks < fetch.wanted_blocks && !fetch.stops && !shared.is_ending &&
         base::SteadyClock::read() - begin < kMostWaitNs) {
    const std::uint32_t first = fetch.first_block + fetch.arrived_blocks;
    const std::uint32_t count = std::min(kBatchBlocks, fetch.wanted_blocks - fetch.arrived_blocks);
    if (slots.size() < count &&
        !book_.take(Tier::kHost, count - static_cast<std::uint32_t>(slots.size()), slots))
      break;
    lock.unlock();
    const Result<std::size_t> got =
        shared.tier->load(std::span(fetch.hashes).subspan(first, count), Tier::kHost,
                          std::span(slots).first(count), options_.shared_timeout_ns);
    lock.lock();
    if (!got) break;
    if (*got != 0) {
      counts_.fetched_bytes += *got * copies_->block_bytes();
      const bool is_in = insert_fetched(fetch, std::span(slots).first(*got));
      slots.erase(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(*got));
      const std::uint64_t now = base::SteadyClock::read();
      fetch_bandwidth_.add(*got * copies_->block_bytes(), now - begin);
      begin = now;
      changed_.notify_all();
      if (!is_in) break;
      continue;
    }
    if (!comes) break;
    if (++naps % kNapsPerQuestion == 0) {
      lock.unlock();
      const Result<bool> answer = shared.tier->is_fetching(stored);
      lock.lock();
      comes = answer && *answer;  // if not, one more look
    } else {
      changed_.wait_for(lock, kNap);
    }
  }
  book_.give(Tier::kHost, slots);
}

// Without L2: until what storage has is in the pool.
void Controller::await_pool(Fetch& fetch, Shared& shared, Lock& lock) {
  const std::span<const BlockHash> hashes =
      std::span(fetch.hashes).subspan(fetch.first_block, fetch.wanted_blocks);
  const std::span<const BlockHash> stored = hashes.last(fetch.stored_blocks);
  std::uint64_t progress_ns = base::SteadyClock::read();
  while (!fetch.stops && !shared.is_ending &&
         base::SteadyClock::read() - progress_ns < kMostWaitNs) {
    lock.unlock();
    const Result<bool> comes = shared.tier->is_fetching(stored);
    const Result<std::size_t> in_pool = shared.tier->count(hashes);
    lock.lock();
    if (!in_pool) break;
    if (*in_pool > fetch.arrived_blocks) progress_ns = base::SteadyClock::read();
    fetch.arrived_blocks = static_cast<std::uint32_t>(*in_pool);
    changed_.notify_all();
    if (!comes || !*comes || *in_pool == hashes.size()) break;
    changed_.wait_for(lock, kNap * 4);
  }
}

// The blocks have arrived in L2: into the tree, where the request and others find them. False: their prefix is gone.
bool Controller::insert_fetched(Fetch& fetch, std::span<const Slot> slots) {
  const std::uint32_t first = fetch.first_block + fetch.arrived_blocks;
  const auto end = first + static_cast<std::uint32_t>(slots.size());
  RadixTree& tree = book_.tree();
  std::vector<Slot> surplus;
  const Result<Inserted> inserted = tree.insert(
      fetch.key(end, block_tokens_), slots,
      {.tier = Tier::kHost, .owned_pages = first, .counts_use = false, .hashes = fetch.hashes},
      surplus);
  book_.give(Tier::kHost, inserted ? std::span<const Slot>(surplus) : slots);
  if (!inserted || inserted->refused_pages != 0) return false;
  tree.lock(Tier::kHost, inserted->node);
  tree.unlock(Tier::kHost, fetch.locked);
  fetch.locked = inserted->node;
  fetch.arrived_blocks += static_cast<std::uint32_t>(slots.size());
  for (std::uint32_t block = first; block < end; ++block) written_.insert(fetch.hashes[block]);
  return true;
}

// The request no longer waits for its fetch: what has arrived is in the tree.
void Controller::release_fetch(Request& request) {
  Fetch* const fetch = request.fetch.get();
  if (fetch == nullptr || fetch->stops) return;
  fetch->stops = true;
  changed_.notify_all();
  if (!fetch->is_done) return;  // run_fetch() does the rest
  if (fetch->locked != kNoNode) {
    // Until the request has locks of its own.
    book_.tree().lock(Tier::kHost, fetch->locked);
    book_.tree().unlock(Tier::kHost, request.locked_host);
    book_.tree().unlock(Tier::kHost, fetch->locked);
    request.locked_host = fetch->locked;
    fetch->locked = kNoNode;
  }
}

void Controller::count_unused(Fetch& fetch) {
  if (fetch.is_counted) return;
  fetch.is_counted = true;
  const std::uint32_t unused =
      fetch.arrived_blocks - std::min(fetch.arrived_blocks, fetch.used_blocks);
  counts_.unused_fetched_bytes += unused * copies_->block_bytes();
}

}  // namespace cachalot::tier
