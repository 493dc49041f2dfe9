#include "node/archive/fetcher.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "base/clock.h"
#include "base/log.h"
#include "pool/format/notes.h"

namespace cachalot::node {
namespace {

using pool::kNoBlock;
using storage::ObjectKey;

constexpr std::size_t kBatchBlocks = pool::kMaxCommitItems;  // of one commit
// Of one question to a store, so that its work and the way to it are shared by many small blocks.
constexpr std::size_t kMostBatches = 4;
constexpr std::uint64_t kMostBytes = 16u << 20;  // beyond the first batch
constexpr std::size_t kPoolShare = 8;            // of the pool's blocks, beyond the first batch
constexpr std::uint64_t kAttachPauseNs = 1'000'000'000;

}  // namespace

Fetcher::Fetcher(pool::Pool& pool, Sources& sources, FetchedBlocks& fetched,
                 const ArchiveOptions& options)
    : pool_(pool), sources_(sources), fetched_(fetched), options_(options), thread_([this] {
        run();
      }) {}

Fetcher::~Fetcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Fetcher::ask(std::uint32_t namespace_id, const BlockHash& space,
                  std::span<const BlockHash> hashes) {
  const ObjectKey last{space, hashes.back()};
  {
    const std::lock_guard lock(mutex_);
    if (const auto at = asked_.find(last); at != asked_.end()) {
      at->second = in_work_ == last;
      return;
    }
    if (queue_.size() >= options_.queued_fetches) {
      refused_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    asked_[last] = false;
    queue_.push_back({namespace_id, space, {hashes.begin(), hashes.end()}});
  }
  wake_.notify_one();
}

bool Fetcher::is_fetching(const BlockHash& space, std::span<const BlockHash> lasts) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(lasts.begin(), lasts.end(), [&](const BlockHash& last) {
    return asked_.contains({space, last});
  });
}

std::uint64_t Fetcher::queued() const {
  const std::lock_guard lock(mutex_);
  return asked_.size();
}

void Fetcher::run() {
  for (;;) {
    Request request;
    {
      std::unique_lock lock(mutex_);
      step_ns_.store(0, std::memory_order_relaxed);
      await_request(lock);
      if (stop_) break;
      step_ns_.store(base::SteadyClock::read(), std::memory_order_relaxed);
      request = std::move(queue_.front());
      queue_.pop_front();
      in_work_ = ObjectKey{request.space, request.hashes.back()};
    }
    fetch(request);
    const std::lock_guard lock(mutex_);
    if (const auto at = asked_.find(*in_work_); std::exchange(at->second, false)) {
      queue_.push_back(std::move(request));
    } else {
      asked_.erase(at);
    }
    in_work_.reset();
  }
  // The keeper does not run any more, or serves nothing: do not wait for it.
  if (client_) (*client_)->set_deadline(base::SteadyClock::read());
}

// Blocks that it holds in advance keep no device that a growable pool gives up.
void Fetcher::await_request(std::unique_lock<std::mutex>& lock) {
  constexpr std::chrono::milliseconds kBetweenReturns(500);
  const auto is_over = [this] { return stop_ || !queue_.empty(); };
  if (pool_.expansions() == nullptr) return wake_.wait(lock, is_over);
  while (!wake_.wait_for(lock, kBetweenReturns, is_over)) {
    if (!client_) continue;
    lock.unlock();
    (*client_)->return_inaccessible();
    lock.lock();
  }
}

Status Fetcher::attach() {
  if (client_) return {};
  const std::uint64_t now_ns = base::SteadyClock::read();
  if (now_ns < next_attach_ns_) return Error::make(Code::kBusy, "archive: attaches later");
  next_attach_ns_ = now_ns + kAttachPauseNs;
  pool::ClientOptions options;
  options.chooses_namespaces = true;
  options.name = "storage";
  options.timeout_ns = options_.io_timeout_ns;
  Result<pool::PoolClient> client = pool_.attach(options);
  if (!client) {
    if (std::exchange(is_told_, true)) return client.error();
    base::log(base::LogLevel::kWarn, "archive", "nothing comes back from storage: %s",
              client.error().message);
    return client.error();
  }
  is_told_ = false;
  client_.emplace(*std::move(client));
  return {};
}

// Whether the block before block `first` of the chain is in the pool, so that it can be committed.
bool Fetcher::stands_in_pool(const Request& request, std::size_t first) {
  BlockHash before{};
  if (first != 0) {
    before = request.hashes[first - 1];
  } else {
    const std::optional<storage::ObjectHead> head =
        sources_.find({request.space, request.hashes[0]});
    if (!head) return false;
    if (head->is_root()) return true;
    before = head->parent;
  }
  pool::Found found;
  return (*client_)->lookup({&before, 1}, {&found, 1}) == 1;
}

// Of a block that storage has, also one that others have put there unseen.
std::optional<storage::ObjectHead> Fetcher::head_of(const ObjectKey& key) {
  const std::uint64_t deadline_ns = base::SteadyClock::read() + options_.io_timeout_ns;
  bool is_there = false;
  (void)sources_.learn({&key, 1}, {&is_there, 1}, deadline_ns);
  return sources_.find(key);
}

// A chain may be asked for from its middle: the blocks before it that the pool lacks come first. Not if the pool is
// too small for them all: the next part of a chain that does not fit would read its beginning again.
void Fetcher::begin_in_pool(Request& request) {
  std::vector<BlockHash> before;  // the nearest first
  std::optional<storage::ObjectHead> head = sources_.find({request.space, request.hashes.front()});
  const std::size_t capacity = pool_.state().capacity_blocks();
  while (head && !head->is_root() && !stop_) {
    step_ns_.store(base::SteadyClock::read(), std::memory_order_relaxed);
    if (before.size() + request.hashes.size() >= capacity) return;
    const BlockHash parent = head->parent;
    pool::Found found;
    if ((*client_)->lookup({&parent, 1}, {&found, 1}) == 1) break;
    before.push_back(parent);
    head = head_of({request.space, parent});
  }
  request.hashes.insert(request.hashes.begin(), before.rbegin(), before.rend());
}

void Fetcher::fetch(Request request) {
  if (!attach()) return;
  (*client_)->choose_namespace(request.namespace_id);
  begin_in_pool(request);
  std::vector<pool::Found> found(request.hashes.size());
  std::size_t done = (*client_)->lookup(request.hashes, found);
  // What the chain stands on must not be what is evicted for it.
  if (done != 0) (*client_)->report_hit(found[done - 1]);
  while (done < request.hashes.size() && !stop_) {
    step_ns_.store(base::SteadyClock::read(), std::memory_order_relaxed);
    const std::size_t more = fetch_some(request, done);
    if (more == 0) return;
    done += more;
    // An engine that did not wait may have computed and stored more of them meanwhile.
    done = std::max(done, (*client_)->lookup(request.hashes, found));
  }
}

// Blocks of a chain that are on their way, as many as one commit takes.
struct Fetcher::Batch {
  std::size_t first = 0;  // of the request
  std::span<const BlockHash> hashes = {};
  std::span<storage::Get> gets = {};
  std::span<const std::uint64_t> checksums = {};
  std::variant<pool::OpenReservation, pool::WrittenReservation> reservation;
  std::vector<pool::WrittenBlock> written = {};
};

// The lengths of the next blocks of a chain, as far as they are asked for at once.
std::vector<PoolPayloads::Target> Fetcher::next_targets(const Request& request,
                                                        std::size_t first) const {
  const auto& geometry = pool_.access().geometry;
  const std::size_t most = std::clamp<std::size_t>(pool_.state().capacity_blocks() / kPoolShare,
                                                   kBatchBlocks, kMostBatches * kBatchBlocks);
  std::vector<PoolPayloads::Target> targets;
  std::uint64_t bytes = 0;
  for (std::size_t i = first; i < request.hashes.size() && targets.size() < most; ++i) {
    const std::optional<storage::ObjectHead> known =
        sources_.find({request.space, request.hashes[i]});
    if (!known || known->payload_bytes > geometry.block_bytes) break;
    bytes += known->payload_bytes;
    if (targets.size() >= kBatchBlocks && bytes > kMostBytes) break;
    targets.push_back({kNoBlock, static_cast<std::uint32_t>(known->payload_bytes)});
  }
  return targets;
}

// Room for blocks. Fewer if the pool has no more.
std::vector<pool::Reservation> Fetcher::reserve(std::size_t blocks) {
  std::vector<pool::Reservation> reserved;
  for (std::size_t done = 0; done < blocks; done += kBatchBlocks) {
    const std::size_t some = std::min(blocks - done, kBatchBlocks);
    Result<pool::Reservation> one = (*client_)->reserve(static_cast<std::uint32_t>(some));
    if (!one) break;
    reserved.push_back(*std::move(one));
    if (reserved.back().uses().size() < some) break;
  }
  if (reserved.empty()) refused_.fetch_add(1, std::memory_order_relaxed);
  return reserved;
}

std::size_t Fetcher::fetch_some(const Request& request, std::size_t first) {
  const pool::Access& access = pool_.access();
  std::vector<PoolPayloads::Target> targets = next_targets(request, first);
  if (targets.empty() || !stands_in_pool(request, first)) return 0;
  std::vector<pool::Reservation> reserved = reserve(targets.size());
  // The room may have been made at the chain's own end.
  if (reserved.empty() || !stands_in_pool(request, first)) return 0;
  std::vector<Batch> batches;
  std::size_t blocks = 0;
  for (pool::Reservation& one : reserved) {
    Result<pool::OpenReservation> open = std::move(one).begin();
    if (!open) break;
    const std::size_t some = std::min(targets.size() - blocks, open->uses().size());
    for (std::size_t i = 0; i < some; ++i) targets[blocks + i].block = open->uses()[i].block;
    const std::size_t at = first + blocks;
    batches.push_back({at, std::span(request.hashes).subspan(at, some), {}, {}, *std::move(open)});
    blocks += some;
  }
  if (blocks == 0) return 0;
  targets.resize(blocks);

  PoolPayloads payloads(access);
  payloads.begin_write(targets);
  std::vector<storage::Get> gets;
  for (std::size_t i = 0; i < blocks; ++i)
    gets.push_back({{request.space, request.hashes[first + i]}, payloads.room(i)});
  // Always with a checksum: engines that verify take a block without one for damaged.
  std::vector<std::uint64_t> checksums(blocks);
  sources_.get(gets, base::SteadyClock::read() + options_.io_timeout_ns,
               [&](const storage::Get& get) {
                 const auto i = static_cast<std::size_t>(&get - gets.data());
                 checksums[i] = payloads.finish_write(i);
               });
  bool is_whole = true;  // so far: what stands on a block that is missing goes back
  for (Batch& batch : batches) {
    const std::size_t at = batch.first - first, some = batch.hashes.size();
    batch.gets = std::span(gets).subspan(at, some);
    batch.checksums = std::span(checksums).subspan(at, some);
    if (is_whole) batch.written = written_blocks(request, batch);
    is_whole = is_whole && batch.written.size() == some;
  }
  access.domain().order();  // R4: payloads and notes before the commits that name them
  // All end before the first commit: if the client has lost its keeper, it attaches again there, and waits until none
  // is open.
  for (Batch& batch : batches)
    batch.reservation = std::get<pool::OpenReservation>(std::move(batch.reservation)).end();
  std::size_t published = 0;
  for (Batch& batch : batches) {
    const std::size_t done = batch.written.empty() ? 0 : commit(request, batch);
    published += done;
    if (done < batch.hashes.size()) break;
  }
  return published;
}

// The leading blocks that came whole and belong to this chain.
std::vector<pool::WrittenBlock> Fetcher::written_blocks(const Request& request,
                                                        const Batch& batch) {
  const pool::Access& access = pool_.access();
  const std::span<const pool::BlockUse> uses =
      std::get<pool::OpenReservation>(batch.reservation).uses();
  std::vector<pool::WrittenBlock> written;
  for (std::size_t i = 0; i < batch.gets.size() && batch.gets[i].status; ++i) {
    const storage::Get& get = batch.gets[i];
    const std::size_t at = batch.first + i;
    if (at != 0 && !(get.head.parent == request.hashes[at - 1])) break;
    written.push_back({batch.hashes[i], static_cast<std::uint32_t>(get.head.payload_bytes),
                       batch.checksums[i], get.is_copy});
    if (!get.tokens.empty() && get.tokens.size() <= pool::most_note_tokens(access.geometry))
      pool::write_note(access, uses[i], batch.hashes[i], get.tokens);
  }
  return written;
}

std::size_t Fetcher::commit(const Request& request, Batch& batch) {
  const std::vector<pool::WrittenBlock>& written = batch.written;
  for (const pool::WrittenBlock& block : written) fetched_.add({request.space, block.hash});
  const storage::ObjectHead& head = batch.gets[0].head;
  pool::Verdict verdicts[kBatchBlocks];
  std::fill_n(verdicts, kBatchBlocks, pool::Verdict::kNotHeld);
  const bool goes_on = batch.first + written.size() < request.hashes.size();
  const Status committed =
      (*client_)->commit(head.is_root() ? nullptr : &head.parent,
                         std::get<pool::WrittenReservation>(std::move(batch.reservation)), written,
                         std::span(verdicts, written.size()), goes_on);
  std::size_t published = 0;
  for (std::size_t i = 0; i < written.size(); ++i) {
    const bool is_new = committed && verdicts[i] == pool::Verdict::kCommitted;
    if (!is_new) (void)fetched_.take({request.space, written[i].hash});
    if (is_new) {
      blocks_.fetch_add(1, std::memory_order_relaxed);
      bytes_.fetch_add(written[i].length, std::memory_order_relaxed);
    }
    if (published == i && (is_new || verdicts[i] == pool::Verdict::kDuplicate)) ++published;
  }
  return published;
}

}  // namespace cachalot::node
