// Controller::start: from a match to pages, and the loads from L2 to L1.
#include <algorithm>
#include <cinttypes>

#include "base/check.h"
#include "base/clock.h"
#include "tier/controller/controller.h"

namespace cachalot::tier {
namespace {

// Of one load from the pool without L2.
constexpr std::size_t kPoolBlocks = 16;

}  // namespace

Result<TierStart> Controller::start(RequestId id) {
  Lock lock(mutex_);
  CACHALOT_TRY_ASSIGN(Request * request, find(id));
  if (request->is_started)
    return Error::make(Code::kInvalidArgument, "start: the request was started before");
  CACHALOT_TRY(copies_->check());
  release_fetch(*request);
  const std::size_t prompt = request->tokens.size();
  // At least one token is left: the engine needs its logits.
  const auto usable = static_cast<std::uint32_t>((prompt - 1) / block_tokens_);
  Plan plan;
  plan.blocks = tokens_to_blocks(prompt);
  plan.match =
      book_.tree().match(request->key().first(std::size_t{usable} * block_tokens_), &plan.slots);
  relock(*request, plan.match.device_node, plan.match.host_pages == 0 ? kNoNode : plan.match.node);
  CACHALOT_TRY(take_device("start", plan.blocks - plan.match.device_pages, plan.own, lock));
  if (!has_host_ && plan.match.pages() < usable) {
    const Status loaded = load_from_pool(*request, plan, lock);
    if (!loaded) {
      book_.give(Tier::kDevice, plan.own);
      return loaded.error();
    }
  }
  const std::uint32_t worth = worth_loading(plan, prompt);
  const Result<std::uint32_t> agreed = agree(*request, worth, lock);
  if (!agreed) {
    book_.give(Tier::kDevice, plan.own);
    return agreed.error();
  }
  const std::uint32_t own_before = plan.match.device_pages;
  // The ranks may have agreed on fewer, and others may have loaded some of these blocks meanwhile.
  plan.slots = {};
  plan.match =
      book_.tree().match(request->key().first(std::size_t{*agreed} * block_tokens_), &plan.slots);
  relock(*request, plan.match.device_node, plan.match.host_pages == 0 ? kNoNode : plan.match.node);
  if (plan.match.device_pages > own_before) {  // leading slots are not needed
    const std::uint32_t fewer = plan.match.device_pages - own_before;
    book_.give(Tier::kDevice, std::span(plan.own).first(fewer));
    plan.own.erase(plan.own.begin(), plan.own.begin() + fewer);
  } else if (plan.match.device_pages < own_before) {
    std::vector<Slot> more;
    const Status taken = take_device("start", own_before - plan.match.device_pages, more, lock);
    if (!taken) {
      book_.give(Tier::kDevice, plan.own);
      return taken.error();
    }
    plan.own.insert(plan.own.begin(), more.begin(), more.end());
  }
  // After the pages were taken: the last work with them of the request before is on the stream by now.
  const Result<Mark> mark = copies_->mark();
  if (!mark) {
    book_.give(Tier::kDevice, plan.own);
    return mark.error();
  }
  wait_for_loads_of_others(*request, plan);
  begin_load(*request, plan, *mark);
  const TierStart result = finish_start(*request, plan, *agreed);
  write_demoted();
  return result;
}

// Waits for copies between L1 and L2, which lock what they copy for a moment, and for writes from L1 to L3.
Status Controller::take_device(const char* call, std::uint64_t blocks, std::vector<Slot>& slots,
                               Lock& lock) {
  const SlotPool& device = book_.pool(Tier::kDevice);
  while (blocks <= device.slots()) {
    if (book_.take(Tier::kDevice, static_cast<std::uint32_t>(blocks), slots)) return {};
    if (backups_ == 0 && loads_ == 0 && writing_device_blocks_ == 0) break;
    changed_.wait(lock);
  }
  return Error::make(Code::kNoSpace,
                     "%s: %" PRIu64 " blocks of L1; %u are free, %" PRIu64
                     " can be evicted, of %u in all",
                     call, blocks, device.free_slots(),
                     book_.tree().use(Tier::kDevice).evictable_pages(), device.slots());
}

// Without L2: straight into L1. The slots are the request's own until commit().
Status Controller::load_from_pool(Request& request, Plan& plan, Lock& lock) {
  const std::shared_ptr<Shared> shared = shared_;
  const std::uint32_t first = plan.match.pages();
  if (shared == nullptr || request.fetch == nullptr || request.fetch->arrived_blocks == 0)
    return {};
  const std::uint32_t usable =
      static_cast<std::uint32_t>((request.tokens.size() - 1) / block_tokens_);
  const std::span<const BlockHash> hashes =
      std::span(request.fetch->hashes).first(usable).subspan(first);
  ++shared->jobs;
  lock.unlock();
  std::size_t loaded = 0;
  const std::uint64_t begin = base::SteadyClock::read();
  while (loaded < hashes.size()) {
    const std::size_t count = std::min(kPoolBlocks, hashes.size() - loaded);
    const Result<std::size_t> got =
        shared->tier->load(hashes.subspan(loaded, count), Tier::kDevice,
                           std::span(plan.own).subspan(loaded, count), options_.shared_timeout_ns);
    // L3 that fails is a miss.
    if (!got || *got == 0) break;
    loaded += *got;
    if (*got < count) break;
  }
  fetch_bandwidth_.add(loaded * copies_->block_bytes(), base::SteadyClock::read() - begin);
  lock.lock();
  end_job(shared);
  plan.pool_blocks = static_cast<std::uint32_t>(loaded);
  for (const BlockHash& hash : hashes.first(loaded)) written_.insert(hash);
  counts_.fetched_bytes += loaded * copies_->block_bytes();
  return {};
}

Result<std::uint32_t> Controller::agree(Request& request, std::uint32_t blocks, Lock& lock) {
  if (options_.ranks == nullptr) return blocks;
  const std::uint64_t round = request.round;
  lock.unlock();
  const Result<std::uint64_t> least =
      options_.ranks->minimum(round, blocks, options_.rank_timeout_ns);
  lock.lock();
  if (!least) return least.error();
  // Only another round's decision can be more than this rank has: nothing that it says may be trusted.
  if (*least > blocks) {
    return Error::make(Code::kStale,
                       "rank agreement: round %" PRIu64 " was decided before, at %" PRIu64
                       " blocks; expected a round that was never used in this group",
                       round, *least);
  }
  return static_cast<std::uint32_t>(*least);
}

// How many leading blocks are to be used: those of L1, and those of L2 where that is faster.
std::uint32_t Controller::worth_loading(const Plan& plan, std::uint64_t prompt_tokens) {
  const std::uint32_t found = plan.match.pages() + plan.pool_blocks;
  const double speed = copies_->load_bandwidth().bytes_per_ns();
  if (!options_.prefill || plan.match.host_pages == 0 || speed == 0) return found;
  const std::uint64_t in_device = std::uint64_t{plan.match.device_pages} * block_tokens_;
  const double saved =
      options_.prefill->cost_ns(in_device, prompt_tokens) -
      options_.prefill->cost_ns(std::uint64_t{found} * block_tokens_, prompt_tokens);
  const double bytes =
      static_cast<double>((plan.match.host_pages + loading_blocks_) * copies_->block_bytes());
  if (bytes / speed <= saved) return found;
  counts_.recomputed_tokens += std::uint64_t{plan.match.host_pages} * block_tokens_;
  return plan.match.device_pages;
}

// Blocks of L1 that another request is loading: this one waits for their layers, too.
void Controller::wait_for_loads_of_others(Request& request, const Plan& plan) {
  if (loads_ == 0) return;
  for (const Slot slot : plan.slots.device) {
    const std::shared_ptr<LoadJob>& job = loading_[slot];
    if (job != nullptr &&
        std::find(request.loads.begin(), request.loads.end(), job) == request.loads.end())
      request.loads.push_back(job);
  }
}

// Blocks in L2 are in L1's tree at once, and their bytes come layer by layer: a copy within a process does not fail, and
// after one of a GPU's that did, nothing of the tree is used (TierCopies::check).
void Controller::begin_load(Request& request, Plan& plan, const Mark& mark) {
  if (plan.match.host_pages == 0) return;
  RadixTree& tree = book_.tree();
  std::vector<SlotPair> pairs;
  std::uint32_t next = 0;
  for (const NodeId node : book_.path(plan.match.node)) {
    if (tree.node(node).is_in(Tier::kDevice)) continue;
    const std::uint32_t blocks = tree.node(node).pages;
    const std::span<const Slot> to = std::span(plan.own).subspan(next, blocks);
    const std::span<const Slot> from = tree.node(node).slots[index(Tier::kHost)].view();
    for (std::uint32_t i = 0; i < blocks; ++i) pairs.push_back({from[i], to[i]});
    const Status attached = tree.attach(Tier::kDevice, node, to);
    CACHALOT_CHECK(attached.ok());
    next += blocks;
  }
  CACHALOT_CHECK(next == plan.match.host_pages);
  const NodeId node = plan.match.node;
  tree.lock(Tier::kDevice, node);  // the job's
  tree.lock(Tier::kHost, node);
  relock(request, node, kNoNode);
  const auto job = std::make_shared<LoadJob>(std::move(pairs), mark);
  for (const SlotPair& pair : job->blocks()) loading_[pair.device] = job;
  request.loads.push_back(job);
  ++loads_;
  loading_blocks_ += job->blocks().size();
  copier_.add([this, job, node] { run_load(job, node); });
}

void Controller::run_load(const std::shared_ptr<LoadJob>& job, NodeId node) {
  const Status loaded = copies_->load(
      job->blocks(), job->mark(), [&job](Mark arrival) { job->finish_layer(std::move(arrival)); });
  if (!loaded) job->fail(loaded.error());
  const Lock lock(mutex_);
  for (const SlotPair& pair : job->blocks()) loading_[pair.device] = nullptr;
  book_.tree().unlock(Tier::kDevice, node);
  book_.tree().unlock(Tier::kHost, node);
  if (options_.exclusive) book_.drop_duplicates(node);
  if (loaded) counts_.loaded_bytes += job->blocks().size() * copies_->block_bytes();
  loading_blocks_ -= job->blocks().size();
  --loads_;
  changed_.notify_all();
}

// Of a prompt that has asked L3: blocks [first, first + used) came from there.
void Controller::count_prompt(const Request& request, std::uint32_t first, std::uint32_t used) {
  const Fetch* const fetch = request.fetch.get();
  if (fetch == nullptr || shared_ == nullptr) return;
  const auto usable = static_cast<std::uint32_t>((request.tokens.size() - 1) / block_tokens_);
  const std::uint32_t stored_end = fetch->first_block + fetch->wanted_blocks;
  const std::uint32_t from = std::max(first, stored_end - fetch->stored_blocks);
  const std::uint32_t to = std::min(first + used, stored_end);
  PromptBlocks prompt;
  prompt.asked = std::max(usable - std::min(usable, fetch->first_block), used);
  prompt.from_storage = to > from ? to - from : 0;
  prompt.from_pool = used - prompt.from_storage;
  shared_->tier->count_prompt(prompt);
}

TierStart Controller::finish_start(Request& request, const Plan& plan, std::uint32_t cached) {
  request.is_started = true;
  request.shared_blocks = cached;
  const std::uint32_t in_device = plan.match.device_pages, in_host = plan.match.host_pages;
  request.slots = plan.slots.device;
  request.slots.insert(request.slots.end(), plan.own.begin(), plan.own.end());
  request.is_own.assign(request.slots.size(), true);
  std::fill_n(request.is_own.begin(), in_device + in_host, false);

  TierStart result;
  result.cached_tokens = std::uint64_t{cached} * block_tokens_;
  result.device_tokens = std::uint64_t{in_device} * block_tokens_;
  result.host_tokens = std::uint64_t{in_host} * block_tokens_;
  const std::uint32_t from_pool = cached - in_device - in_host;
  std::uint32_t from_shared = from_pool;
  if (Fetch* fetch = request.fetch.get(); fetch != nullptr && has_host_) {
    const std::uint32_t end = std::min(cached, fetch->first_block + fetch->arrived_blocks);
    from_shared = end > fetch->first_block ? end - fetch->first_block : 0;
    fetch->used_blocks = from_shared;
    fetch->is_released = true;
    if (fetch->is_done) count_unused(*fetch);
  }
  count_prompt(request,
               has_host_ && request.fetch ? request.fetch->first_block : in_device + in_host,
               from_shared);
  result.shared_tokens = std::uint64_t{from_shared} * block_tokens_;
  result.pages = pages_of(request);
  ++counts_.requests;
  counts_.prompt_tokens += request.tokens.size();
  counts_.device_tokens += result.device_tokens;
  counts_.host_tokens += result.host_tokens;
  counts_.shared_tokens += result.shared_tokens;
  return result;
}

}  // namespace cachalot::tier
