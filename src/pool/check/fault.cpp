#include "pool/check/fault.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace cachalot::pool {
namespace {

constexpr const char* kFromOthers = "writes the line again";
constexpr const char* kDropsSubtree = "drops the block and its descendants";
constexpr const char* kCleared = "clears the line";

constexpr FaultText kTexts[] = {
    {"header_line", "no process opens the pool",
     "writes the line again, where another line proves it"},
    {"geometry_line", "no process opens the pool",
     "writes the line again, where another line proves it"},
    {"header_content", "no process opens the pool", kFromOthers},
    {"short_device", "blocks beyond its end are lost, and no process opens the pool", nullptr},
    {"added_list", "which devices were added is not known, and no keeper starts",
     "drops the blocks on them; `cachalot pool grow` adds them again"},
    {"added_header", "no keeper starts, and no process opens the device", kFromOthers},
    {"added_device",
     "no keeper starts, and processes that open the pool miss the blocks on it and on those added "
     "after it",
     "gives these devices up, with their blocks, unless they are put back before"},
    {"keeper_line", "the keeper's other line counts", kFromOthers},
    {"keeper_content", "a keeper may take the wrong predecessor", kFromOthers},
    {"keeper_lost", "the next keeper keeps nothing, and quarantines all blocks",
     "starts the pool anew: all blocks are dropped and quarantined until `cachalot pool fence "
     "--unknown`"},
    {"namespace_line", "the blocks of its namespace are dropped", "drops these blocks"},
    {"namespace_twice", "clients get the first one", nullptr},
    {"name_line", "the namespace has no name in reports", "writes the namespace without a name"},
    {"view_line", "the next keeper does not know which client the slot had",
     "clears the line; blocks that a client may hold stay quarantined"},
    {"context_line", "a context is lost: its blocks may be evicted, and expire", kCleared},
    {"report_line", "reports lack its figures until its process writes it again", kCleared},
    {"ledger_line", "the line's blocks without an entry are quarantined",
     "writes the line again; these blocks stay quarantined until `cachalot pool fence --unknown`"},
    {"ledger_content", "the block is taken as free", kFromOthers},
    {"client_line", "the slot's next client counts from what the keeper knows", kFromOthers},
    {"client_content", "reports name a wrong process", kFromOthers},
    {"pin_line", "the slot counts as one with a pinned read: freed blocks wait", kCleared},
    {"entry_line", "the block that the line named and its descendants are misses",
     "frees the line, and drops these blocks"},
    {"entry_content", "the entry does not count", kDropsSubtree},
    {"entry_bucket", "no lookup finds the entry", kDropsSubtree},
    {"entry_epoch", "the entry does not count", kDropsSubtree},
    {"entry_generation", "the next keeper drops the entry: its block was granted again",
     kDropsSubtree},
    {"entry_namespace", "the entry does not count for the next keeper", kDropsSubtree},
    {"block_twice", "one of the two entries names bytes that are not its own",
     "keeps the entry of the newer use"},
    {"hash_twice", "one of the two blocks is not found", "keeps one of the two"},
    {"parent_gone", "the next keeper drops the block and its descendants", kDropsSubtree},
    {"parent_circle", "the next keeper drops these blocks", kDropsSubtree},
    {"ledger_state", "the block is published although the ledger says otherwise",
     "writes the ledger's line again"},
    {"payload", "readers that verify checksums miss the block, others get wrong bytes",
     kDropsSubtree},
    {"note", "the block has no tokens in reports", "clears the note"},
    {"accounting", "blocks are missing, or counted twice", "counts the blocks again"},
    {"keeper_pair", "a keeper died while it wrote its two lines; the newer one counts", kFromOthers,
     true},
    {"void_entry", "a keeper of an earlier epoch wrote the entry; it does not count",
     "frees the line", true},
    {"hidden_entry", "a keeper died between the two lines of a commit; no lookup finds the block",
     "publishes the block", true},
    {"spill_bit", "a keeper died between the two lines of an eviction; the bit leads nowhere",
     kFromOthers, true},
};
static_assert(std::size(kTexts) == kFaultKinds);

}  // namespace

const FaultText& text_of(FaultKind kind) {
  return kTexts[static_cast<std::size_t>(kind)];
}

void FaultLog::add(Fault fault) {
  const std::scoped_lock lock(mutex_);
  const auto kind = static_cast<std::size_t>(fault.kind);
  ++counts_[kind];
  if (kept_[kind].size() < most_of_kind_) kept_[kind].push_back(std::move(fault));
}

std::vector<Fault> FaultLog::faults() const {
  const std::scoped_lock lock(mutex_);
  std::vector<Fault> all;
  for (const std::vector<Fault>& of_kind : kept_) {
    const std::size_t first = all.size();
    all.insert(all.end(), of_kind.begin(), of_kind.end());
    std::stable_sort(all.begin() + static_cast<std::ptrdiff_t>(first), all.end(),
                     [](const Fault& a, const Fault& b) {
                       return std::pair(a.device, a.offset) < std::pair(b.device, b.offset);
                     });
  }
  return all;
}

std::uint64_t FaultLog::count(FaultKind kind) const {
  const std::scoped_lock lock(mutex_);
  return counts_[static_cast<std::size_t>(kind)];
}

std::uint64_t FaultLog::sum(bool of_remnants) const {
  const std::scoped_lock lock(mutex_);
  std::uint64_t all = 0;
  for (std::size_t kind = 0; kind < kFaultKinds; ++kind)
    all += kTexts[kind].is_remnant == of_remnants ? counts_[kind] : 0;
  return all;
}

}  // namespace cachalot::pool
