#include "tier/controller/controller.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>

#include "base/check.h"
#include "base/clock.h"

namespace cachalot::tier {
namespace {

// Of a node of the tree.
constexpr std::uint32_t kMostNodeBlocks = 256;

std::chrono::steady_clock::time_point time_at(std::uint64_t ns) {
  // SteadyClock and steady_clock are both CLOCK_MONOTONIC.
  return std::chrono::steady_clock::time_point(
      std::chrono::nanoseconds(std::min<std::uint64_t>(ns, std::uint64_t{1} << 62)));
}

std::uint64_t after(std::uint64_t now, std::uint64_t ns) {
  std::uint64_t at = 0;
  return __builtin_add_overflow(now, ns, &at) ? ~std::uint64_t{0} : at;
}

}  // namespace

Status check_writes(TierWrites writes, std::uint32_t selective_uses, bool has_host) {
  if (writes == TierWrites::kSelective && selective_uses < 2) {
    return Error::make(Code::kInvalidArgument, "selective_uses is %u; expected at least 2",
                       selective_uses);
  }
  if (writes == TierWrites::kBack && !has_host) {
    return Error::make(Code::kInvalidArgument,
                       "writes = back needs L2: set host_ratio or host_bytes");
  }
  return {};
}

Controller::Controller(const TieredCacheOptions& options, const RadixOptions& radix,
                       std::unique_ptr<TierCopies> copies, std::uint32_t host_blocks,
                       block_hash::BlockHasher hasher)
    : options_(options),
      block_tokens_(radix.page_tokens),
      copies_(std::move(copies)),
      has_host_(host_blocks != 0),
      writes_shared_(options.writes_shared.value_or(options.shared.geometry.is_first_replica())),
      prefetch_(options.prefetch),
      writes_(options.writes),
      selective_uses_(options.selective_uses),
      book_(radix, copies_->device_blocks(), host_blocks,
            [this](NodeId node, std::span<const Slot> host) {
              // By TierWrites::kBack, and where L2 takes what L1 evicts; else the block is only dropped.
              std::vector<SlotPair> pairs;
              const std::span<const Slot> device =
                  book_.tree().node(node).slots[index(Tier::kDevice)].view();
              for (std::size_t i = 0; i < host.size(); ++i) pairs.push_back({host[i], device[i]});
              // If it fails, copies_->check() does so from now on: no request gets these blocks.
              if (copies_->back_up(pairs, last_commit_))
                counts_.backed_up_bytes += pairs.size() * copies_->block_bytes();
            }),
      hasher_(std::move(hasher)),
      loading_(copies_->device_blocks()),
      fetchers_(std::make_unique<Workers>(options.fetch_threads)) {
  book_.set_demotes(options.exclusive || writes_ == TierWrites::kBack);
}

Controller::~Controller() {
  (void)detach_shared();
}

// --- L3 ---------------------------------------------------------------------------------------------

Status Controller::attach_shared(std::unique_ptr<SharedTier> shared) {
  const Lock lock(mutex_);
  if (shared_ != nullptr)
    return Error::make(Code::kBusy, "a pool is attached already; detach it first");
  shared_ = std::make_shared<Shared>();
  shared_->tier = std::move(shared);
  written_.clear();
  return {};
}

Status Controller::detach_shared() {
  Lock lock(mutex_);
  const std::shared_ptr<Shared> shared = std::move(shared_);
  shared_ = nullptr;
  if (shared == nullptr) return Error::make(Code::kNotFound, "no pool is attached");
  shared->is_ending = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return shared->jobs == 0; });
  lock.unlock();
  shared->tier.reset();
  return {};
}

bool Controller::has_shared() const {
  const Lock lock(mutex_);
  return shared_ != nullptr;
}

void Controller::end_job(std::shared_ptr<Shared> shared) {
  --shared->jobs;
  changed_.notify_all();
}

void Controller::set_prefetch(const PrefetchOptions& prefetch) {
  const Lock lock(mutex_);
  prefetch_ = prefetch;
  changed_.notify_all();
}

Status Controller::set_writes(TierWrites writes, std::uint32_t selective_uses) {
  CACHALOT_TRY(check_writes(writes, selective_uses, has_host_));
  const Lock lock(mutex_);
  writes_ = writes;
  selective_uses_ = selective_uses;
  book_.set_demotes(options_.exclusive || writes == TierWrites::kBack);
  return {};
}

// --- Requests ---------------------------------------------------------------------------------------

Result<Request*> Controller::find(RequestId id) const {
  const auto found = requests_.find(static_cast<std::uint64_t>(id));
  if (found == requests_.end()) {
    return Error::make(Code::kNotFound, "request %" PRIu64 " is not open",
                       static_cast<std::uint64_t>(id));
  }
  return found->second.get();
}

std::uint32_t Controller::tokens_to_blocks(std::uint64_t tokens) const {
  return static_cast<std::uint32_t>((tokens + block_tokens_ - 1) / block_tokens_);
}

void Controller::relock(Request& request, NodeId device, NodeId host) {
  RadixTree& tree = book_.tree();
  tree.lock(Tier::kDevice, device);
  tree.lock(Tier::kHost, host);
  tree.unlock(Tier::kDevice, request.locked_device);
  tree.unlock(Tier::kHost, request.locked_host);
  request.locked_device = device;
  request.locked_host = host;
}

Result<RequestId> Controller::open(std::span<const std::uint32_t> prompt,
                                   const RequestOptions& options) {
  if (prompt.empty()) {
    return Error::make(Code::kInvalidArgument, "the prompt has no tokens; expected at least one");
  }
  auto request = std::make_unique<Request>();
  request->tokens.assign(prompt.begin(), prompt.end());
  request->extra = options.extra;
  request->priority = options.priority;
  request->opened_ns = base::SteadyClock::read();

  const Lock lock(mutex_);
  const std::uint64_t id = next_request_++;
  request->round = options.round != 0 ? options.round : id;
  const RadixMatch match = book_.tree().match(request->key());
  relock(*request, match.device_node, match.host_pages == 0 ? kNoNode : match.node);
  begin_fetch(*request, match.pages());
  requests_.emplace(id, std::move(request));
  return RequestId{id};
}

std::uint64_t Controller::ready_at(const Request& request) const {
  const Fetch& fetch = *request.fetch;
  const std::uint64_t tokens = std::uint64_t{fetch.wanted_blocks} * block_tokens_;
  const double ns =
      static_cast<double>(prefetch_.timeout_per_ki_token_ns) * static_cast<double>(tokens) / 1024;
  const auto for_tokens = ns < 1e18 ? static_cast<std::uint64_t>(ns) : ~std::uint64_t{0};
  return after(after(request.opened_ns, prefetch_.timeout_base_ns), for_tokens);
}

bool Controller::is_ready(const Request& request, std::uint64_t now) const {
  if (request.fetch == nullptr || request.fetch->is_done) return true;
  switch (prefetch_.stop) {
    case PrefetchStop::kBestEffort:
      return true;
    case PrefetchStop::kWaitComplete:
      return false;
    case PrefetchStop::kTimeout:
      return now >= ready_at(request);
  }
  return true;
}

Result<bool> Controller::is_ready(RequestId id) const {
  const Lock lock(mutex_);
  CACHALOT_TRY_ASSIGN(const Request* request, find(id));
  return is_ready(*request, base::SteadyClock::read());
}

Result<bool> Controller::wait_ready(RequestId id, std::uint64_t timeout_ns) {
  Lock lock(mutex_);
  const std::uint64_t begin = base::SteadyClock::read();
  const std::uint64_t deadline = after(begin, timeout_ns);
  for (;;) {
    CACHALOT_TRY_ASSIGN(const Request* request, find(id));
    const std::uint64_t now = base::SteadyClock::read();
    const bool is_over = is_ready(*request, now);
    if (is_over || now >= deadline) {
      counts_.ready_wait_ns += now - begin;
      return is_over;
    }
    const bool has_limit = prefetch_.stop == PrefetchStop::kTimeout;
    const std::uint64_t until = has_limit ? std::min(deadline, ready_at(*request)) : deadline;
    changed_.wait_until(lock, time_at(until));
  }
}

Result<TierFetch> Controller::fetch_of(RequestId id) const {
  const Lock lock(mutex_);
  CACHALOT_TRY_ASSIGN(const Request* request, find(id));
  TierFetch result;
  if (const Fetch* fetch = request->fetch.get()) {
    result.is_done = fetch->is_done;
    result.wanted_tokens = std::uint64_t{fetch->wanted_blocks} * block_tokens_;
    result.arrived_tokens = std::uint64_t{fetch->arrived_blocks} * block_tokens_;
  }
  return result;
}

Result<std::uint64_t> Controller::prompt_tokens(RequestId id) const {
  const Lock lock(mutex_);
  CACHALOT_TRY_ASSIGN(const Request* request, find(id));
  return std::uint64_t{request->tokens.size()};
}

Status Controller::wait_layer(RequestId id, std::uint32_t layer) {
  std::vector<std::shared_ptr<LoadJob>> loads;
  {
    const Lock lock(mutex_);
    CACHALOT_TRY_ASSIGN(const Request* request, find(id));
    const std::uint32_t layers = options_.shared.geometry.layers;
    if (!request->is_started || layer >= layers) {
      return Error::make(
          Code::kInvalidArgument, "wait_layer %u: %s", layer,
          request->is_started ? "there is no such layer" : "the request was not started");
    }
    loads = request->loads;
  }
  const std::uint64_t begin = base::SteadyClock::read();
  Status outcome;
  for (const auto& load : loads) {
    const Result<Mark> arrival = load->wait_layer(layer);
    const Status loaded = !arrival              ? Status(arrival.error())
                          : *arrival == nullptr ? Status()
                                                : copies_->follow(*arrival);
    if (outcome) outcome = loaded;
  }
  if (!loads.empty()) {
    const Lock lock(mutex_);
    counts_.layer_wait_ns += base::SteadyClock::read() - begin;
  }
  return outcome;
}

std::vector<PageId> Controller::pages_of(const Request& request) const {
  const std::uint32_t pages = copies_->pages_per_block();
  std::vector<PageId> all;
  all.reserve(request.slots.size() * pages);
  for (const Slot slot : request.slots) {
    for (std::uint32_t i = 0; i < pages; ++i) all.push_back(slot * pages + i);
  }
  return all;
}

Result<std::vector<PageId>> Controller::grow(RequestId id, std::uint64_t tokens) {
  Lock lock(mutex_);
  CACHALOT_TRY_ASSIGN(Request * request, find(id));
  if (!request->is_started)
    return Error::make(Code::kInvalidArgument, "grow: the request was not started");
  const std::uint64_t blocks = tokens / block_tokens_ + (tokens % block_tokens_ != 0 ? 1 : 0);
  if (blocks > request->slots.size()) {
    CACHALOT_TRY(take_device("grow", blocks - request->slots.size(), request->slots, lock));
    request->is_own.resize(request->slots.size(), true);
    write_demoted();
  }
  return pages_of(*request);
}

Status Controller::commit(RequestId id, std::span<const std::uint32_t> tokens) {
  const Lock lock(mutex_);
  CACHALOT_TRY_ASSIGN(Request * request, find(id));
  if (!request->is_started)
    return Error::make(Code::kInvalidArgument, "commit: the request was not started");
  CACHALOT_TRY_ASSIGN(Mark computed, copies_->mark());
  if (tokens.size() > request->slots.size() * std::uint64_t{block_tokens_}) {
    return Error::make(Code::kInvalidArgument,
                       "commit: %zu tokens; expected at most those of the request's %zu blocks",
                       tokens.size(), request->slots.size());
  }
  const auto blocks = static_cast<std::uint32_t>(tokens.size() / block_tokens_);
  const std::size_t shared = std::size_t{request->shared_blocks} * block_tokens_;
  if (tokens.size() < shared ||
      !std::equal(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(shared),
                  request->tokens.begin())) {
    return Error::make(Code::kInvalidArgument,
                       "commit: %zu tokens; expected that they begin with the %zu that were cached "
                       "or committed before: their pages are shared",
                       tokens.size(), shared);
  }
  request->tokens.assign(tokens.begin(), tokens.end());
  if (blocks == 0) return {};
  last_commit_ = std::move(computed);
  CACHALOT_TRY(insert_in_pieces(*request, blocks));
  const RadixKey key = request->key().first(std::size_t{blocks} * block_tokens_);
  std::vector<Slot> surplus;
  const std::span<const Slot> slots = std::span(request->slots).first(blocks);
  CACHALOT_TRY_ASSIGN(
      const Inserted inserted,
      book_.tree().insert(key, slots,
                          {.priority = request->priority, .counts_use = !request->is_committed},
                          surplus));
  request->is_committed = true;
  request->shared_blocks = blocks;
  // Surplus: the tree has other slots for these blocks. The engine may be using ours: they stay until close().
  std::sort(surplus.begin(), surplus.end());
  for (std::uint32_t i = 0; i < blocks; ++i)
    request->is_own[i] = std::binary_search(surplus.begin(), surplus.end(), request->slots[i]);
  relock(*request, inserted.node, kNoNode);
  write_out(inserted.node);
  return {};
}

// Long prompts become several nodes: a node is evicted, and copied to L2 under the mutex, as a whole.
Status Controller::insert_in_pieces(const Request& request, std::uint32_t blocks) {
  const SlotPool& tightest = book_.pool(has_host_ ? Tier::kHost : Tier::kDevice);
  const std::uint32_t piece = std::clamp(tightest.slots() / 8, 1u, kMostNodeBlocks);
  for (std::uint32_t end = request.shared_blocks + piece; end < blocks; end += piece) {
    std::vector<Slot> surplus;  // commit() sees the same ones again
    const Result<Inserted> inserted = book_.tree().insert(
        request.key().first(std::size_t{end} * block_tokens_), std::span(request.slots).first(end),
        {.priority = request.priority, .counts_use = false}, surplus);
    if (!inserted) return inserted.error();
  }
  return {};
}

Status Controller::close(RequestId id) {
  const Lock lock(mutex_);
  CACHALOT_TRY_ASSIGN(Request * request, find(id));
  release_fetch(*request);
  if (Fetch* fetch = request->fetch.get(); fetch != nullptr && !fetch->is_released) {
    fetch->is_released = true;
    if (fetch->is_done) count_unused(*fetch);
  }
  relock(*request, kNoNode, kNoNode);
  std::vector<Slot> own;
  for (std::size_t i = 0; i < request->slots.size(); ++i) {
    if (request->is_own[i]) own.push_back(request->slots[i]);
  }
  book_.give(Tier::kDevice, own);
  requests_.erase(static_cast<std::uint64_t>(id));
  changed_.notify_all();
  return {};
}

Status Controller::flush(std::uint64_t timeout_ns) {
  Lock lock(mutex_);
  const auto is_idle = [this] { return backups_ == 0 && writes_in_flight_ == 0 && loads_ == 0; };
  if (changed_.wait_until(lock, time_at(after(base::SteadyClock::read(), timeout_ns)), is_idle))
    return {};
  return Error::make(Code::kTimeout, "flush: %u backups and %u writes are in flight", backups_,
                     writes_in_flight_);
}

Status Controller::clear() {
  Lock lock(mutex_);
  if (!requests_.empty()) {
    return Error::make(Code::kBusy, "clear: %zu requests are open; expected none",
                       requests_.size());
  }
  changed_.wait(lock, [this] {
    return backups_ == 0 && writes_in_flight_ == 0 && loads_ == 0 && fetching_blocks_ == 0;
  });
  return book_.clear();
}

TierStatistics Controller::statistics() const {
  const Lock lock(mutex_);
  TierStatistics result = counts_;
  result.device_blocks = book_.pool(Tier::kDevice).slots();
  result.free_device_blocks = book_.pool(Tier::kDevice).free_slots();
  result.host_blocks = book_.pool(Tier::kHost).slots();
  result.free_host_blocks = book_.pool(Tier::kHost).free_slots();
  result.evicted_device_blocks = book_.counts().device_blocks;
  result.evicted_host_blocks = book_.counts().host_blocks;
  result.demoted_blocks = book_.counts().demoted_blocks;
  return result;
}

bool Controller::is_valid() const {
  const Lock lock(mutex_);
  std::uint64_t own = 0;
  for (const auto& [id, request] : requests_)
    own += static_cast<std::uint64_t>(
        std::count(request->is_own.begin(), request->is_own.end(), true));
  const SlotPool& device = book_.pool(Tier::kDevice);
  return book_.is_valid() &&
         own + device.free_slots() + book_.tree().use(Tier::kDevice).pages == device.slots();
}

}  // namespace cachalot::tier
