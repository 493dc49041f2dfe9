#include "replay/pool/engine.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"

namespace cachalot::replay {
namespace {

using base::SteadyClock;

constexpr std::uint64_t kCacheBytes = std::uint64_t{64} << 20;      // of one engine
constexpr std::uint64_t kAllCacheBytes = std::uint64_t{512} << 20;  // of all engines
constexpr std::uint64_t kMostSlots = 4096;
constexpr std::uint32_t kMostStoreBlocks = 32;
constexpr std::uint64_t kMostFetchNs = 10'000'000'000;
constexpr std::uint64_t kMostNewsNs = 10'000'000'000;
// A batch is checked while it is still in the core's own cache.
constexpr std::uint64_t kReadBytes = std::uint64_t{512} << 10;
constexpr std::uint64_t kStoreBytes = std::uint64_t{32} << 20;

std::uint32_t batch_blocks(std::uint64_t bytes, std::uint64_t block_bytes) {
  return static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(bytes / block_bytes, 1, kMostStoreBlocks));
}

std::uint32_t cache_slots(const ReplayOptions& options) {
  const std::uint64_t bytes = std::min(kCacheBytes, kAllCacheBytes / options.all_engines());
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      bytes / options.block_bytes, batch_blocks(kStoreBytes, options.block_bytes), kMostSlots));
}

// Adds the time since `from_ns` to a counter. @return now
std::uint64_t count_time(ReplayCounters& counters, ReplayCounter counter, std::uint64_t from_ns) {
  const std::uint64_t now_ns = SteadyClock::read();
  counters.add(counter, now_ns - from_ns);
  return now_ns;
}

}  // namespace

Engine::Engine(const EngineTask& task, HarnessState& harness, OpaqueClient& client,
               PagedCache cache)
    : task_(task),
      options_(&task.options),
      workload_(&task.workload),
      harness_(&harness),
      host_(&harness.hosts[task.host()]),
      state_(&harness.engines[task.number]),
      pass_(&state_->passes[0]),
      client_(&client),
      cache_(std::move(cache)),
      read_blocks_(std::min(batch_blocks(kReadBytes, task.options.block_bytes), cache_.slots())),
      store_blocks_(std::min(batch_blocks(kStoreBytes, task.options.block_bytes), cache_.slots())),
      slots_(kMostStoreBlocks) {}

Result<Engine> Engine::make(const EngineTask& task, HarnessState& harness, OpaqueClient& client) {
  CACHALOT_TRY_ASSIGN(PagedCache cache,
                      PagedCache::make(task.options.block_bytes, cache_slots(task.options)));
  return Engine(task, harness, client, std::move(cache));
}

Status Engine::run() {
  const std::uint64_t requests = task_.requests.size();
  for (;;) {
    const std::uint64_t number = host_->next_request.fetch_add(1, std::memory_order_relaxed);
    if (number >= requests * options_->passes) return {};
    const auto pass = static_cast<std::uint32_t>(number / requests);
    const std::size_t request = task_.requests[number % requests];
    wait_for_turn(pass, request);
    if (options_->speed > 0) wait_for_arrival(pass, request);
    CACHALOT_TRY(serve(request));
    pass_->end_ns = SteadyClock::read();
    if (options_->hosts.is_in_order && options_->hosts.has_peers) CACHALOT_TRY(wait_for_news());
    harness_->requests_done.fetch_add(1, std::memory_order_release);
  }
}

void Engine::wait_for_turn(std::uint32_t pass, std::size_t request) {
  constexpr auto kNap = std::chrono::microseconds(50);
  const std::uint64_t before =
      workload_->requests() * pass + (options_->hosts.is_in_order ? request : 0);
  while (harness_->requests_done.load(std::memory_order_acquire) < before) {
    std::this_thread::sleep_for(kNap);
  }
  pass_ = &state_->passes[pass];
  // The first engine there says when it began.
  std::uint64_t not_yet = 0;
  const std::uint64_t start_ns =
      pass == 0 ? harness_->start_ns.load(std::memory_order_relaxed) : SteadyClock::read();
  harness_->pass_start_ns[pass].compare_exchange_strong(not_yet, start_ns);
}

void Engine::wait_for_arrival(std::uint32_t pass, std::size_t request) const {
  const double after_ns = static_cast<double>(workload_->arrival_ns(request)) / options_->speed;
  const std::uint64_t due_ns = harness_->pass_start_ns[pass].load(std::memory_order_relaxed) +
                               static_cast<std::uint64_t>(std::min(after_ns, 0x1p62));
  const std::uint64_t now_ns = SteadyClock::read();
  if (due_ns > now_ns) std::this_thread::sleep_for(std::chrono::nanoseconds(due_ns - now_ns));
}

Status Engine::serve(std::size_t request) {
  const std::span<const BlockHash> hashes = workload_->hashes(request);
  const std::uint64_t start_ns = SteadyClock::read();
  CACHALOT_TRY_ASSIGN(const std::size_t found, client_->lookup(hashes));
  const std::uint64_t looked_up_ns =
      count_time(pass_->counters, ReplayCounter::kLookupNs, start_ns);
  pass_->lookup_ns.record(looked_up_ns - start_ns);

  CACHALOT_TRY_ASSIGN(const std::size_t fetched, fetch(hashes, found));
  CACHALOT_TRY_ASSIGN(const std::size_t hits, read_hits(request, fetched));
  std::size_t from_storage = 0, from_peers = 0;
  for (std::size_t i = found; i < hits; ++i)
    ++(source_of(hashes[i]) == BlockSource::kPeers ? from_peers : from_storage);
  pass_->counters.add(ReplayCounter::kStorageHitBlocks, from_storage);
  pass_->counters.add(ReplayCounter::kPeerHitBlocks, from_peers);
  CACHALOT_TRY(client_->count_prompt({.asked = hashes.size(),
                                      .from_pool = hits - from_storage - from_peers,
                                      .from_peers = from_peers,
                                      .from_storage = from_storage}));
  CACHALOT_TRY(store_missing(hashes, hits));
  CACHALOT_TRY(wait_for_storage());
  count_request(request, hits);
  pass_->request_ns.record(SteadyClock::read() - start_ns);
  return {};
}

Result<std::size_t> Engine::fetch(std::span<const BlockHash> hashes, std::size_t found) {
  if (!options_->has_sources() || found == hashes.size()) return found;
  const std::uint64_t start_ns = SteadyClock::read();
  CACHALOT_TRY_ASSIGN(const Prefetched result, client_->prefetch(hashes, kMostFetchNs));
  count_time(pass_->counters, ReplayCounter::kFetchNs, start_ns);
  return result.in_pool;
}

// One engine waits for all of it: then what is stored does not depend on the disk's speed, and the hits repeat.
Status Engine::wait_for_storage() {
  if (options_->storage.uris.empty()) return {};
  const std::uint64_t most = options_->engines == 1 ? 0 : options_->capacity_blocks / 16;
  const std::uint64_t start_ns = SteadyClock::read();
  for (;;) {
    CACHALOT_TRY_ASSIGN(const std::uint64_t backlog, client_->storage_backlog());
    if (backlog <= most) break;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  count_time(pass_->counters, ReplayCounter::kArchiveNs, start_ns);
  return {};
}

BlockSource Engine::source_of(const BlockHash& hash) const {
  if (task_.marks != nullptr) return task_.marks->of(hash);
  return options_->hosts.has_peers ? BlockSource::kPeers : BlockSource::kStorage;
}

Status Engine::wait_for_news() {
  // An answer: the keeper has done, and told its observers, what was asked of it before.
  const Result<std::uint64_t> answered = client_->storage_backlog();
  if (!answered) return answered.error();
  const std::uint64_t until_ns = SteadyClock::read() + kMostNewsNs;
  while (!is_news_known()) {
    if (SteadyClock::read() < until_ns) continue;
    return Error::make(Code::kTimeout,
                       "peers: some do not know yet what a request has stored %llu s ago",
                       static_cast<unsigned long long>(kMostNewsNs / 1'000'000'000));
  }
  return {};
}

// Keepers that have told all their changes tell no more until the next request. If all that they have told was heard, it
// is known everywhere.
bool Engine::is_news_known() {
  constexpr auto kNap = std::chrono::microseconds(20);
  const std::uint64_t round = harness_->news_round.fetch_add(1, std::memory_order_acq_rel) + 1;
  const std::uint64_t until_ns = SteadyClock::read() + kMostNewsNs;
  std::uint64_t told = 0, heard = 0, untold = 0;
  for (const HostState& host : std::span(harness_->hosts, options_->host_count())) {
    while (host.news.round.load(std::memory_order_acquire) < round) {
      if (SteadyClock::read() >= until_ns) return false;
      std::this_thread::sleep_for(kNap);
    }
    told += host.news.told.load(std::memory_order_relaxed);
    heard += host.news.heard.load(std::memory_order_relaxed);
    untold += host.news.untold.load(std::memory_order_relaxed);
  }
  return untold == 0 && told == heard;
}

Result<std::size_t> Engine::read_hits(std::size_t request, std::size_t found) {
  std::size_t hits = 0;
  while (hits < found) {
    const std::size_t n = std::min<std::size_t>(found - hits, read_blocks_);
    CACHALOT_TRY_ASSIGN(const std::size_t valid, read_batch(request, hits, n, hits + n < found));
    hits += valid;
    if (valid < n) break;
  }
  return hits;
}

Result<std::size_t> Engine::read_batch(std::size_t request, std::size_t first, std::size_t count,
                                       bool goes_on) {
  for (std::size_t i = 0; i < count; ++i) slots_[i] = cache_.take();

  ReplayCounters& counters = pass_->counters;
  const Statistics before = client_->statistics();
  std::uint64_t now_ns = SteadyClock::read();
  CACHALOT_TRY_ASSIGN(const std::size_t valid,
                      client_->load(workload_->hashes(request).subspan(first, count),
                                    std::span(slots_).first(count), {.goes_on = goes_on}));
  now_ns = count_time(counters, ReplayCounter::kReadNs, now_ns);
  const Statistics after = client_->statistics();
  counters.add(ReplayCounter::kBytesRead, after.copied_bytes - before.copied_bytes);
  counters.add(ReplayCounter::kStaleReads, after.stale_blocks != before.stale_blocks);
  counters.add(ReplayCounter::kDamagedReads, after.damaged_blocks - before.damaged_blocks);
  for (std::size_t i = 0; i < valid; ++i) check_block(request, first + i, slots_[i]);
  count_time(counters, ReplayCounter::kVerifyNs, now_ns);
  return valid;
}

void Engine::check_block(std::size_t request, std::size_t block, const std::byte* bytes) {
  const PayloadCheck check =
      check_payload(workload_->hashes(request)[block], options_->all_engines(), options_->verify,
                    {bytes, options_->block_bytes});
  ReplayCounters& counters = pass_->counters;
  counters.add(ReplayCounter::kHitBlocks, 1);
  if (check.stamp.writer != task_.number) counters.add(ReplayCounter::kRemoteHitBlocks, 1);
  if (options_->verify == VerifyMode::kOff) return;
  counters.add(ReplayCounter::kCheckedBlocks, 1);
  counters.add(ReplayCounter::kCheckedBytes, check.checked_bytes);
  if (check.ok()) return;
  counters.add(ReplayCounter::kVerifyErrors, 1);
  if (!state_->fault.is_set) {
    state_->fault = {true, request, block, check.first_bad_byte, check.stamp.writer};
  }
}

Status Engine::store_missing(std::span<const BlockHash> hashes, std::size_t hits) {
  std::size_t stored = hits;
  while (stored < hashes.size()) {
    const std::size_t n = std::min<std::size_t>(hashes.size() - stored, store_blocks_);
    const BlockHash* parent = stored == 0 ? nullptr : &hashes[stored - 1];
    CACHALOT_TRY_ASSIGN(const std::size_t done, store_batch(parent, hashes.subspan(stored, n)));
    stored += done;
    if (done < n) break;
  }
  pass_->counters.add(ReplayCounter::kUnstoredBlocks, hashes.size() - stored);
  return {};
}

Result<std::size_t> Engine::store_batch(const BlockHash* parent,
                                        std::span<const BlockHash> hashes) {
  ReplayCounters& counters = pass_->counters;
  std::uint64_t now_ns = SteadyClock::read();
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const std::span<std::byte> bytes(cache_.take(), options_->block_bytes);
    fill_payload(hashes[i], {task_.number, computed_blocks_++}, bytes);
    slots_[i] = bytes.data();
  }
  now_ns = count_time(counters, ReplayCounter::kComputeNs, now_ns);
  const std::uint64_t copied_before = client_->statistics().copied_bytes;
  CACHALOT_TRY_ASSIGN(const Stored stored,
                      client_->store(parent, hashes, std::span(slots_).first(hashes.size())));
  count_time(counters, ReplayCounter::kWriteNs, now_ns);
  counters.add(ReplayCounter::kBytesWritten, client_->statistics().copied_bytes - copied_before);
  counters.add(ReplayCounter::kDuplicateBlocks, stored.blocks - stored.written);
  counters.add(ReplayCounter::kWrittenBlocks, stored.written);
  return stored.blocks;
}

void Engine::count_request(std::size_t request, std::size_t hits) {
  std::uint64_t hit_tokens = 0;
  if (__builtin_mul_overflow(std::uint64_t{hits}, options_->block_tokens, &hit_tokens)) {
    hit_tokens = ~std::uint64_t{0};
  }
  ReplayCounters& counters = pass_->counters;
  counters.add(ReplayCounter::kInputTokens, workload_->input_tokens(request));
  counters.add(ReplayCounter::kHitTokens, std::min(hit_tokens, workload_->input_tokens(request)));
  counters.add(ReplayCounter::kBlocks, workload_->hashes(request).size());
  counters.add(ReplayCounter::kRequests, 1);
}

}  // namespace cachalot::replay
