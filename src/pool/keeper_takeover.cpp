// How a keeper begins to rule, over an empty pool or one that another keeper left (design page
// pool, "Takeover"): publish the new epoch, scan, write every entry again, raise min_epoch, serve.

#include <algorithm>

#include "base/log.h"
#include "pool/directory.h"
#include "pool/keeper.h"

namespace cachalot::pool {

using memory::Line;

// What the last keeper that finished its own takeover left behind.
struct Keeper::Predecessor {
  std::uint32_t epoch = 0;  // 0: the pool is new
  std::uint32_t min_epoch = 0;
  std::uint32_t highest_epoch = 0;  // of any keeper, finished or not
  std::uint32_t slot = 0;
};

Result<std::unique_ptr<Keeper>> Keeper::start(const Access& access, const KeeperOptions& options,
                                              base::Clock& clock) {
  CACHALOT_TRY_ASSIGN(const index::PolicyKind kind, index::parse_policy(options.policy));
  if (options.max_grants == 0) {
    return Error::make(Code::kInvalidArgument, "grants per client: 0 is not at least 1");
  }
  Predecessor predecessor;
  std::uint32_t latest_slot = kKeeperSlots - 1;
  for (std::uint32_t slot = 0; slot < kKeeperSlots; ++slot) {
    KeeperLine line{};
    if (!access.region.read_as(access.layout.keeper_line(slot), line)) continue;
    if (line.epoch > predecessor.highest_epoch) {
      predecessor.highest_epoch = line.epoch;
      latest_slot = slot;
    }
    if (line.min_epoch == line.epoch && line.epoch > predecessor.epoch) {
      predecessor.epoch = line.epoch;
      predecessor.min_epoch = line.min_epoch;
      predecessor.slot = slot;
    }
  }
  if (predecessor.highest_epoch == 0xffffffffu) {
    return Error::make(Code::kRefused, "pool: its keeper epochs are used up: create it anew");
  }
  // Not the slot of the last one that finished: its ledger is needed until ours is complete.
  std::uint32_t slot = (latest_slot + 1) % kKeeperSlots;
  if (predecessor.epoch != 0 && slot == predecessor.slot) slot = (slot + 1) % kKeeperSlots;

  std::unique_ptr<Keeper> keeper(new Keeper(access, options, clock,
                                            index::make_leaf_policy(kind, access.geometry.blocks),
                                            slot, predecessor.highest_epoch + 1));
  keeper->take_over(predecessor);
  return keeper;
}

void Keeper::publish_keeper_line(std::uint32_t min_epoch, std::uint32_t flags) {
  KeeperLine line{};
  line.epoch = epoch_;
  line.min_epoch = min_epoch;
  line.flags = flags;
  if (!access_.domain().writes_whole_lines()) line.flags |= kKeeperSplitLines;
  line.pid = options_.pid;
  line.start_time = options_.start_time;
  line.boot_id_low = options_.boot_id_low;
  line.boot_id_high = options_.boot_id_high;
  access_.region.publish(access_.layout.keeper_line(slot_), line);
  access_.domain().complete();
}

void Keeper::take_over(const Predecessor& predecessor) {
  publish_keeper_line(predecessor.min_epoch, 0);
  if (predecessor.epoch != 0) {
    adopt_namespaces(predecessor);
    adopt_entries(predecessor);
    drop_orphans();
    adopt_ledger(predecessor);
    directory_.sweep();
    access_.domain().order();
  }
  for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
    if (blocks_.use(block).state != BlockState::kFree) continue;
    if (blocks_.use(block).generation == kLastGeneration) {
      blocks_.set_state(block, BlockState::kBad);
    } else {
      blocks_.push_free(block);
    }
  }
  ledger_.write_all();
  access_.domain().complete();
  publish_keeper_line(epoch_, kKeeperServing);
  serving_ = true;
  base::log(base::LogLevel::kInfo, "keeper", "rules with epoch %u: %u blocks live, %u free, %u quarantined",
            epoch_, blocks_.count(BlockState::kLive), blocks_.count(BlockState::kFree),
            blocks_.count(BlockState::kQuarantined));
  tend();
}

// Numbers stay what they are, as they stand in entries. The blocks of a namespace whose line is
// damaged are dropped: nobody could say whose they are.
void Keeper::adopt_namespaces(const Predecessor& predecessor) {
  for (std::uint32_t id = 1; id <= kMaxNamespaces; ++id) {
    NamespaceLine line{};
    const std::uint64_t offset = access_.layout.namespace_line(predecessor.slot, id - 1);
    // A line of another epoch was left by an earlier keeper of the same area.
    if (!access_.region.read_as(offset, line) || line.id != id || line.epoch != predecessor.epoch) continue;
    line.epoch = epoch_;
    access_.region.publish(access_.layout.namespace_line(slot_, id - 1), line);
    namespaces_.resize(id, kNoDigest);
    namespaces_[id - 1] = {line.digest_low, line.digest_high};
  }
}

// Reads every entry that counts under the predecessor's rule into the block table, also those that a
// keeper wrote again which died before it finished its takeover.
void Keeper::adopt_entries(const Predecessor& predecessor) {
  const KeeperView view{predecessor.highest_epoch, predecessor.min_epoch, predecessor.slot, 0};
  const Geometry& geometry = access_.geometry;
  for (std::uint32_t slot = 0; slot < geometry.directory_slots; ++slot) {
    Entry entry{};
    if (!access_.region.read_as(access_.layout.entry(slot), entry)) continue;
    const bool is_sound = entry.state == kEntryLive && view.admits(entry.epoch) &&
                          entry.block < geometry.blocks && entry.length != 0 &&
                          entry.length <= geometry.block_bytes && is_namespace(entry.namespace_id) &&
                          (entry.parent < geometry.blocks || entry.parent == kNoBlock);
    if (!is_sound) continue;
    const BlockHash hash{entry.hash_low, entry.hash_high};
    if (home_of(hash, entry.namespace_id, geometry.directory_slots).bucket !=
        slot / kBucketSlots * kBucketSlots) {
      continue;
    }
    const LedgerRecord ledger = Ledger::read(access_, predecessor.slot, entry.block);
    const BlockTable::Use& known = blocks_.use(entry.block);
    // W4, and of two entries that name one block the newer use counts.
    if (entry.generation < ledger.generation) continue;
    if (known.state == BlockState::kLive && known.generation >= entry.generation) continue;
    BlockTable::Record& record = blocks_.record(entry.block);
    record.hash = hash;
    record.checksum = entry.checksum;
    record.length = entry.length;
    record.slot = slot;
    record.parent = entry.parent;
    record.flags = entry.flags;
    blocks_.set_generation(entry.block, entry.generation);
    blocks_.set_namespace(entry.block, entry.namespace_id);
    blocks_.set_state(entry.block, BlockState::kLive);
  }
}

// A block whose parent is gone, or whose parents go in a circle, is not kept; the rest enters the
// tree, parents first. The order of use is not in the pool and starts anew.
void Keeper::drop_orphans() {
  std::vector<std::uint32_t> path;
  enum : std::uint8_t { kUnknown, kOnPath, kKept, kDropped };
  std::vector<std::uint8_t> what(blocks_.size(), kUnknown);
  for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
    if (blocks_.use(block).state != BlockState::kLive) continue;
    std::uint32_t at = block;
    path.clear();
    while (at != kNoBlock && blocks_.use(at).state == BlockState::kLive && what[at] == kUnknown) {
      what[at] = kOnPath;
      path.push_back(at);
      at = blocks_.record(at).parent;
    }
    bool is_kept = at == kNoBlock || what[at] == kKept;
    for (auto node = path.rbegin(); node != path.rend(); ++node) {
      // Two entries for one hash would make one of them unreachable.
      const BlockTable::Record& record = blocks_.record(*node);
      if (is_kept && directory_.find(record.hash, blocks_.use(*node).namespace_id) != kNoBlock) {
        is_kept = false;
      }
      what[*node] = is_kept ? kKept : kDropped;
      if (!is_kept) continue;
      directory_.adopt(*node);
      policy_->insert(*node, record.parent);
    }
  }
  for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
    if (what[block] == kDropped) blocks_.set_state(block, BlockState::kFree);
  }
}

// Blocks that somebody held stay out of use until there is evidence that he stores no more.
void Keeper::adopt_ledger(const Predecessor& predecessor) {
  for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
    const LedgerRecord ledger = Ledger::read(access_, predecessor.slot, block);
    if (blocks_.use(block).state == BlockState::kLive) continue;
    if (ledger.generation > blocks_.use(block).generation) {
      blocks_.set_generation(block, ledger.generation);
    }
    blocks_.record(block).holder = ledger.holder;
    blocks_.record(block).incarnation = ledger.incarnation;
    if (ledger.state == LedgerState::kGranted || ledger.state == LedgerState::kQuarantined) {
      blocks_.set_state(block, BlockState::kQuarantined);
    } else if (ledger.state == LedgerState::kBad) {
      blocks_.set_state(block, BlockState::kBad);
    }
  }
}

void Keeper::stop() {
  if (!serving_) return;
  serving_ = false;
  tend();
  publish_keeper_line(epoch_, 0);
}

}  // namespace cachalot::pool
