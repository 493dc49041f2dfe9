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

Archive::Archive(pool::Pool& pool, pool::Keeper& keeper, std::unique_ptr<storage::Store> store,
                 const ArchiveOptions& options)
    : keeper_(keeper),
      store_(std::move(store)),
      stuck_after_ns_(kStepsOfStuck * options.io_timeout_ns),
      archiver_(pool.access(), *store_, fetched_, options),
      fetcher_(pool, *store_, fetched_, options) {
  keeper_.observe(archiver_.observer());
  keeper_.set_storage_desk(this);
}

Archive::~Archive() {
  keeper_.set_storage_desk(nullptr);
  keeper_.end_observing(archiver_.observer());
}

pool::StorageAnswer Archive::answer(const pool::StorageQuestion& question) {
  pool::StorageAnswer answer;
  answer.is_up = is_up();
  answer.queued = static_cast<std::uint32_t>(archiver_.queued());
  if (question.hashes.empty()) return answer;
  answer.stored =
      static_cast<std::uint32_t>(store_->catalogue().count_prefix(question.space, question.hashes));
  if (answer.stored == 0 || answer.is_up == 0) return answer;
  const std::span<const BlockHash> stored = question.hashes.first(answer.stored);
  if (question.fetches) fetcher_.ask(question.namespace_id, question.space, stored);
  // A chain in work is known by the last block that was stored when it was asked for. A damaged block, and those after
  // it, are stored no more before the blocks in front of it have come.
  answer.is_fetching =
      fetcher_.is_fetching(question.space, question.hashes.subspan(stored.size() - 1));
  return answer;
}

// If a thread hangs, nothing is written or fetched, although the backend may work.
bool Archive::is_up() {
  const std::uint64_t now_ns = base::SteadyClock::read();
  const std::uint64_t oldest_ns =
      std::min(archiver_.turn_ns(), fetcher_.step_ns().value_or(now_ns));
  const bool is_stuck = now_ns > oldest_ns && now_ns - oldest_ns > stuck_after_ns_;
  if (is_stuck_.exchange(is_stuck, std::memory_order_relaxed) != is_stuck) {
    base::log(base::LogLevel::kError, "storage", "%s: %s", store_->traits().name.c_str(),
              is_stuck ? "a thread of the storage hangs: out of use" : "its threads work again");
  }
  return !is_stuck && store_->is_up();
}

pool::StorageState Archive::state() {
  const storage::Catalogue& catalogue = store_->catalogue();
  return {store_->traits().name, is_up(),
          catalogue.objects(),   catalogue.bytes(),
          archiver_.queued(),    store_->counts().outages,
          store_->last_error()};
}

ArchiveCounts Archive::counts() {
  return {archiver_.queued(),       fetcher_.queued(),  is_up(),
          archiver_.skipped(),      archiver_.lost(),   fetcher_.fetched_blocks(),
          fetcher_.fetched_bytes(), archiver_.unused(), fetcher_.refused()};
}

}  // namespace cachalot::node
