#include "node/archive/archive.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace cachalot::node {

// A step of a thread may make room, write and write once more, each within the time-out of a batch.
constexpr std::uint64_t kStepsOfStuck = 3;

Result<WritePolicy> parse_write_policy(const std::string& text) {
  for (const WritePolicy policy :
       {WritePolicy::kThrough, WritePolicy::kSelective, WritePolicy::kBack}) {
    if (text == write_policy_name(policy)) return policy;
  }
  return Error::make(Code::kInvalidArgument,
                     "write policy: \"%.40s\", expected through, selective or back", text.c_str());
}

const char* write_policy_name(WritePolicy policy) {
  switch (policy) {
    case WritePolicy::kThrough:
      return "through";
    case WritePolicy::kSelective:
      return "selective";
    case WritePolicy::kBack:
      break;
  }
  return "back";
}

namespace {

std::vector<storage::Store*> pointers(std::span<const std::unique_ptr<storage::Store>> stores) {
  std::vector<storage::Store*> all;
  for (const auto& store : stores) all.push_back(store.get());
  return all;
}

std::vector<std::unique_ptr<storage::Store>> one(std::unique_ptr<storage::Store> store) {
  std::vector<std::unique_ptr<storage::Store>> stores;
  stores.push_back(std::move(store));
  return stores;
}

}  // namespace

Archive::Archive(pool::Pool& pool, pool::Keeper& keeper, std::unique_ptr<storage::Store> store,
                 const ArchiveOptions& options)
    : Archive(pool, keeper, one(std::move(store)), options) {}

Archive::Archive(pool::Pool& pool, pool::Keeper& keeper,
                 std::vector<std::unique_ptr<storage::Store>> stores, const ArchiveOptions& options)
    : keeper_(keeper),
      stores_(std::move(stores)),
      sources_(pointers(stores_)),
      stuck_after_ns_(kStepsOfStuck * options.io_timeout_ns),
      fetched_(std::any_of(stores_.begin(), stores_.end(),
                           [](const auto& store) { return store->traits().is_written; }),
               2 * std::size_t{pool.access().geometry.blocks}),
      fetcher_(pool, sources_, fetched_, options),
      finder_(sources_, fetcher_, options.queued_fetches) {
  for (const auto& store : stores_) {
    if (store->traits().is_written)
      archivers_.emplace_back(pool.access(), *store, fetched_, options);
  }
  for (Archiver& archiver : archivers_) keeper_.observe(archiver.observer());
  keeper_.set_storage_desk(this);
}

Archive::~Archive() {
  keeper_.set_storage_desk(nullptr);
  for (Archiver& archiver : archivers_) keeper_.end_observing(archiver.observer());
}

std::uint64_t Archive::queued() const {
  std::uint64_t queued = 0;
  for (const Archiver& archiver : archivers_) queued += archiver.queued();
  return queued;
}

// "redis", or of several "peers+redis".
std::string Archive::names() const {
  std::string names;
  for (const auto& store : stores_) names += (names.empty() ? "" : "+") + store->traits().name;
  return names;
}

pool::StorageAnswer Archive::answer(const pool::StorageQuestion& question) {
  pool::StorageAnswer answer;
  answer.is_up = is_up();
  answer.queued = static_cast<std::uint32_t>(queued());
  if (question.hashes.empty()) return answer;
  if (question.asks && answer.is_up != 0) sources_.learn_at_once(question.space, question.hashes);
  answer.stored =
      static_cast<std::uint32_t>(sources_.count_prefix(question.space, question.hashes));
  if (answer.is_up == 0) return answer;
  if (question.asks) {
    answer.is_asking =
        finder_.ask({question.namespace_id, question.space, question.hashes, answer.stored,
                     question.fetches, question.is_sure, question.goes_on});
  }
  const std::span<const BlockHash> stored = question.hashes.first(answer.stored);
  // What is being asked for is fetched in one go when the answer is there.
  if (question.fetches && !stored.empty() && answer.is_asking == 0)
    fetcher_.ask(question.namespace_id, question.space, stored);
  // A chain in work is known by the last block that was stored when it was asked for. A damaged block, and those after
  // it, are stored no more before the blocks in front of it have come: perhaps none of those of this question.
  const std::size_t before_last = stored.empty() ? 0 : stored.size() - 1;
  answer.is_fetching = fetcher_.is_fetching(question.space, question.hashes.subspan(before_last));
  return answer;
}

// If a thread hangs, nothing is written or fetched, although the backend may work.
bool Archive::is_up() {
  const std::uint64_t now_ns = base::SteadyClock::read();
  std::uint64_t oldest_ns =
      std::min(fetcher_.step_ns().value_or(now_ns), finder_.step_ns().value_or(now_ns));
  for (const Archiver& archiver : archivers_) oldest_ns = std::min(oldest_ns, archiver.turn_ns());
  const bool is_stuck = now_ns > oldest_ns && now_ns - oldest_ns > stuck_after_ns_;
  if (is_stuck_.exchange(is_stuck, std::memory_order_relaxed) != is_stuck) {
    base::log(base::LogLevel::kError, "storage", "%s: %s", names().c_str(),
              is_stuck ? "a thread of the storage hangs: out of use" : "its threads work again");
  }
  return !is_stuck && sources_.is_up();
}

pool::StorageState Archive::state() {
  pool::StorageState state;
  state.kind = names();
  state.is_up = is_up();
  state.queued_blocks = queued();
  for (const auto& store : stores_) {
    state.objects += store->catalogue().objects();
    state.bytes += store->catalogue().bytes();
    state.outages += store->counts().outages;
    if (state.last_error.empty()) state.last_error = store->last_error();
    if (const auto peers = store->peers()) state.peers = static_cast<std::uint32_t>(*peers);
  }
  return state;
}

ArchiveCounts Archive::counts() {
  ArchiveCounts counts{};
  counts.queued_blocks = queued();
  counts.queued_fetches = fetcher_.queued();
  counts.is_up = is_up();
  for (const Archiver& archiver : archivers_) {
    counts.skipped_blocks += archiver.skipped();
    counts.lost_blocks += archiver.lost();
    counts.unused_blocks += archiver.unused();
  }
  counts.fetched_blocks = fetcher_.fetched_blocks();
  counts.fetched_bytes = fetcher_.fetched_bytes();
  counts.refused_fetches = fetcher_.refused();
  return counts;
}

}  // namespace cachalot::node
