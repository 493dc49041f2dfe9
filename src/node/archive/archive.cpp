#include "node/archive/archive.h"

#include <utility>

namespace cachalot::node {

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
  answer.is_up = store_->is_up();
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

ArchiveCounts Archive::counts() const {
  return {archiver_.queued(),       fetcher_.queued(),  store_->is_up(),
          archiver_.skipped(),      archiver_.lost(),   fetcher_.fetched_blocks(),
          fetcher_.fetched_bytes(), archiver_.unused(), fetcher_.refused()};
}

}  // namespace cachalot::node
