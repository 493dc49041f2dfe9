// How a keeper begins to rule, over an empty pool or one that another keeper left (design page
// pool, "Takeover"): publish the new epoch, scan, write every entry again, raise min_epoch, serve.

#include <algorithm>
#include <atomic>
#include <span>
#include <system_error>
#include <thread>

#include "base/fail_point.h"
#include "base/log.h"
#include "pool/keeper/keeper.h"
#include "pool/keeper/keeper_line.h"
#include "pool/reader/directory.h"

namespace cachalot::pool {

using base::FailPoint;
using memory::Line;
using memory::Rule;

// The last keeper that finished its own takeover, of all that ever ruled.
Keeper::Predecessor Keeper::find_predecessor(const Access& access) {
  Predecessor predecessor;
  predecessor.latest_slot = kKeeperSlots - 1;
  for (std::uint32_t slot = 0; slot < kKeeperSlots; ++slot) {
    const KeeperLine line = read_keeper_line(access, slot);
    if (line.epoch > predecessor.highest_epoch) {
      predecessor.highest_epoch = line.epoch;
      predecessor.latest_slot = slot;
    }
    if (line.min_epoch == line.epoch && line.epoch > predecessor.epoch) {
      predecessor.epoch = line.epoch;
      predecessor.min_epoch = line.min_epoch;
      predecessor.slot = slot;
    }
  }
  look_for_lost_epoch(access, predecessor);
  return predecessor;
}

// A keeper may have ruled whose line is lost, both copies of it: then nothing of what is in the pool
// can be trusted, nor are its writers known.
void Keeper::look_for_lost_epoch(const Access& access, Predecessor& predecessor) {
  std::uint32_t lost = 0;
  for (std::uint32_t slot = 0; slot < kKeeperSlots; ++slot)
    lost = std::max(lost, newest_epoch_in_area(access, slot));
  if (predecessor.highest_epoch == 0 || lost > predecessor.highest_epoch) {
    lost = std::max(lost, newest_epoch_in_directory(access));
  }
  if (lost <= predecessor.highest_epoch) return;
  predecessor = {};
  predecessor.is_lost = true;
  predecessor.latest_slot = kKeeperSlots - 1;
  // No keeper has this epoch, so that nothing counts while it is min_epoch.
  predecessor.highest_epoch = predecessor.min_epoch = lost + 1;
}

// Not the area of the last one that finished: its ledger is needed until ours is complete. And none
// whose process still runs: it would write into it when it wakes up.
Result<std::uint32_t> Keeper::next_area(const Access& access, std::uint32_t avoid_slots) {
  const Predecessor predecessor = find_predecessor(access);
  for (std::uint32_t next = 1; next <= kKeeperSlots; ++next) {
    const std::uint32_t area = (predecessor.latest_slot + next) % kKeeperSlots;
    if (predecessor.epoch != 0 && area == predecessor.slot) continue;
    if ((avoid_slots >> area & 1) == 0) return area;
  }
  return Error::make(Code::kBusy,
                     "pool: all its %u keeper areas are in use by processes that still run",
                     kKeeperSlots);
}

Result<std::unique_ptr<Keeper>> Keeper::prepare(const Access& access, const KeeperOptions& options,
                                                base::Clock& clock, Evidence* evidence) {
  CACHALOT_TRY(options.check());
  CACHALOT_TRY_ASSIGN(const eviction::PolicyKind policy,
                      eviction::parse_pool_policy(options.policy));
  return std::unique_ptr<Keeper>(new Keeper(access, options, clock, evidence, policy));
}

// One that is in its own takeover may finish it just before it can see this announcement, and then has
// granted blocks that only its ledger knows. It looks for a successor between its last line and its first
// answer; we look for a finished one after ours. One of the two sees the other.
Status Keeper::announce(std::uint32_t avoid_slots) {
  CACHALOT_TRY_ASSIGN(slot_, next_area(access_, avoid_slots));
  for (predecessor_ = find_predecessor(access_);;) {
    if (predecessor_.highest_epoch >= 0xfffffffeu) {
      return Error::make(Code::kRefused, "pool: its keeper epochs are used up: create it anew");
    }
    epoch_ = predecessor_.highest_epoch + 1;
    publish_line(predecessor_.min_epoch, answers_too_early() ? kKeeperServing : 0);
    const Predecessor now = find_predecessor(access_);
    if (now.epoch == predecessor_.epoch || predecessor_.is_lost) break;
    predecessor_ = now;
  }
  directory_.rule(epoch_);
  ledger_.rule(slot_);
  return {};
}

Result<std::unique_ptr<Keeper>> Keeper::start(const Access& access, const KeeperOptions& options,
                                              base::Clock& clock, Evidence* evidence) {
  CACHALOT_TRY_ASSIGN(std::unique_ptr<Keeper> keeper, prepare(access, options, clock, evidence));
  CACHALOT_TRY(keeper->announce(options.avoid_slots));
  keeper->take_over();
  keeper->begin_to_serve();
  keeper->see_first_clients();
  return keeper;
}

void Keeper::publish_line(std::uint32_t min_epoch, std::uint32_t flags) {
  line_ = {};
  line_.epoch = epoch_;
  line_.min_epoch = min_epoch;
  line_.flags = flags;
  if (!access_.domain().writes_whole_lines()) line_.flags |= kKeeperSplitLines;
  line_.pid = options_.pid;
  line_.start_time = options_.start_time;
  line_.boot_id_low = options_.boot_id_low;
  line_.boot_id_high = options_.boot_id_high;
  publish_keeper_line(access_, slot_, line_);
}

void Keeper::publish_info() {
  KeeperInfoLine info{};
  info.epoch = epoch_;
  info.pins = static_cast<std::uint32_t>(options_.pins.size());
  info.priorities = static_cast<std::uint32_t>(options_.priorities.size());
  info.ttl_ns = options_.ttl_ns;
  info.since_unix_s = options_.unix_s ? options_.unix_s() : 0;
  options_.policy.copy(info.policy, sizeof info.policy - 1);
  options_.version.copy(info.version, sizeof info.version - 1);
  access_.region.publish(access_.layout.keeper_info(slot_), info);
}

bool Keeper::answers_too_early() const {
  return access_.domain().broken(Rule::kAnswerBeforeMinEpoch);
}

void Keeper::take_over() {
  base::reach(FailPoint::kTakeoverAnnounced);
  std::uint64_t last_ns = clock_->now_ns();
  const auto lap = [&](std::uint64_t& ns) {
    const std::uint64_t now_ns = clock_->now_ns();
    ns = now_ns - last_ns;
    last_ns = now_ns;
  };
  tell_policy_the_time();
  if (predecessor_.epoch != 0) {
    read_ledger();
    lap(takeover_times_.ledger_ns);
    adopt_namespaces();
    adopt_entries();
    lap(takeover_times_.entries_ns);
    base::reach(FailPoint::kTakeoverEntriesRead);
    drop_orphans();
    lap(takeover_times_.tree_ns);
    adopt_ledger();
    adopt_holders();
    lap(takeover_times_.holders_ns);
    base::reach(FailPoint::kTakeoverLedgerRead);
    if (!write_directory()) return be_deposed();
    base::reach(FailPoint::kTakeoverSwept);
    lap(takeover_times_.sweep_ns);
  }
  inherited_ = {};
  if (predecessor_.is_lost && !begin_anew()) return be_deposed();
  offer_free_blocks();
  in_parts(blocks_.size(), kLedgerRecordsPerLine,
           [this](std::uint32_t, std::uint32_t first, std::uint32_t end) {
             ledger_.write(first, end);
             access_.domain().order();
           });
  lap(takeover_times_.ledger_out_ns);
  base::reach(FailPoint::kTakeoverLedgerWritten);
  access_.domain().complete();
  for (std::uint32_t client = 0; client < sessions_.size(); ++client) {
    if (sessions_[client].last_incarnation != 0) publish_view(client);
  }
  access_.domain().complete();
}

void Keeper::begin_to_serve() {
  if (deposed_) return;
  if (has_successor()) return be_deposed();
  publish_info();
  if (!answers_too_early()) publish_line(epoch_, kKeeperServing);
  serving_ = true;
  base::log(base::LogLevel::kInfo, "keeper",
            "rules with epoch %u: %u blocks live, %u free, %u quarantined", epoch_,
            blocks_.count(BlockState::kLive), blocks_.count(BlockState::kFree),
            blocks_.count(BlockState::kQuarantined));
}

void Keeper::see_first_clients() {
  base::reach(FailPoint::kTakeoverDone);
  tend();
}

// Nothing is kept, and no block is used before an operator says that no client stores into it.
bool Keeper::begin_anew() {
  base::log(
      base::LogLevel::kError, "keeper",
      "the lines of the pool's last keeper are lost: all blocks are dropped, and out of use until "
      "`cachalot pool fence --unknown` says that no client of before stores any more");
  for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
    blocks_.record(block).holder = kUnknownHolder;
    blocks_.set_state(block, BlockState::kQuarantined);
  }
  unknown_blocks_ = blocks_.size();
  is_holder_lost_ = true;
  return write_directory();
}

// In pieces: a keeper that stalled here while another took over should not write over the whole of that
// one's directory when it wakes up. Right it would be, as its epoch is void by then; but what it wrote over
// is a miss until it is scrubbed. @return false: another one has announced itself
bool Keeper::write_directory() {
  constexpr std::uint32_t kPieceSlots = 64 * kBucketSlots;
  std::atomic<bool> is_over{false};
  in_parts(access_.geometry.directory_slots, kBucketSlots,
           [&](std::uint32_t, std::uint32_t first, std::uint32_t end) {
             while (first < end && !is_over.load(std::memory_order_relaxed)) {
               if (has_successor()) return is_over.store(true, std::memory_order_relaxed);
               const std::uint32_t piece_end = first + std::min(kPieceSlots, end - first);
               directory_.sweep(first, piece_end);
               first = piece_end;
             }
             access_.domain().order();
           });
  return !is_over.load(std::memory_order_relaxed);
}

// What is free goes into the queue, unless a pinned read may still see what was there before.
void Keeper::offer_free_blocks() {
  for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
    if (blocks_.use(block).state != BlockState::kFree) continue;
    if (pinning_clients_ != 0) {
      blocks_.set_state(block, BlockState::kLimbo);
      limbo_.add(block);
    } else if (blocks_.use(block).generation == kLastGeneration) {
      blocks_.set_state(block, BlockState::kBad);
    } else {
      blocks_.push_free(block);
    }
  }
  settle_limbo();
}

// Numbers stay what they are, as they stand in entries. The blocks of a namespace whose line is
// damaged are dropped: their namespace would be unknown.
void Keeper::adopt_namespaces() {
  for (std::uint32_t id = 1; id <= kMaxNamespaces; ++id) {
    NamespaceLine line{};
    const std::uint64_t offset = access_.layout.namespace_line(predecessor_.slot, id - 1);
    // A line of another epoch was left by an earlier keeper of the same area.
    if (!access_.region.read_as(offset, line) || line.id != id || line.epoch != predecessor_.epoch)
      continue;
    line.epoch = epoch_;
    access_.region.publish(access_.layout.namespace_line(slot_, id - 1), line);
    namespaces_.resize(id, kNoDigest);
    namespaces_[id - 1] = {line.digest_low, line.digest_high};
  }
}

// Calls f(part, first item, end) for as many parts of `items` as there are threads for, each in its
// own; parts end between units.
template <class F>
void Keeper::in_parts(std::uint32_t items, std::uint32_t unit, F&& f) const {
  const std::uint32_t parts = std::max(1u, options_.takeover_threads);
  const std::uint64_t units = (std::uint64_t{items} + unit - 1) / unit;
  const auto begin_of = [&](std::uint32_t part) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(units * part / parts * unit, items));
  };
  std::vector<std::jthread> threads;
  for (std::uint32_t part = 1; part < parts; ++part) {
    const auto work = [&, part] { f(part, begin_of(part), begin_of(part + 1)); };
    try {
      threads.emplace_back(work);
    } catch (const std::system_error&) {  // no thread to be had: it takes longer
      work();
    }
  }
  f(0u, begin_of(0), begin_of(1));
}

void Keeper::read_ledger() {
  in_parts(blocks_.size(), kLedgerRecordsPerLine,
           [this](std::uint32_t, std::uint32_t first, std::uint32_t end) {
             Ledger::read(access_, predecessor_.slot, first,
                          std::span(inherited_).subspan(first, end - first));
           });
}

// Reads every entry that counts under the predecessor's rule into the block table, also those that a
// keeper wrote again which died before it finished its takeover.
//
// Several threads share nothing but the blocks' states: each bucket is one thread's, and a block is
// the first thread's that claims it. Two entries for one block are rare (a keeper that woke up, or
// damage); they are settled afterwards.
void Keeper::adopt_entries() {
  const KeeperView view{predecessor_.highest_epoch, predecessor_.min_epoch, predecessor_.slot, 0};
  std::vector<std::vector<std::uint32_t>> contested(std::max(1u, options_.takeover_threads));
  in_parts(access_.geometry.directory_slots, kBucketSlots,
           [&](std::uint32_t part, std::uint32_t first, std::uint32_t end) {
             adopt_slots(view, first, end, contested[part]);
           });
  blocks_.recount();
  for (const auto& slots : contested) {
    for (const std::uint32_t slot : slots) adopt_contested(view, slot);
  }
}

void Keeper::adopt_slots(const KeeperView& view, std::uint32_t first, std::uint32_t end,
                         std::vector<std::uint32_t>& contested) {
  constexpr std::uint32_t kBatch = 64;
  static_assert(kBucketSlots % kBatch == 0);  // the number of slots is a multiple of it
  Line lines[kBatch];
  for (; first < end; first += kBatch) {
    access_.domain().read_lines(access_.region.at(access_.layout.entry(first)), kBatch, lines);
    // The misses of a bucket's blocks are overlapped: first all are asked for, then used.
    std::uint32_t live[kBatch], count = 0;
    for (std::uint32_t i = 0; i < kBatch; ++i) {
      const std::uint64_t offset = access_.layout.entry(first + i);
      if (!access_.region.checks(lines[i], offset) && !access_.region.read(offset, lines[i]))
        continue;
      const auto entry = memory::as<Entry>(lines[i]);
      if (entry.state != kEntryLive) continue;
      live[count++] = i;
      blocks_.prefetch_all(entry.block);
      if (entry.block < inherited_.size()) __builtin_prefetch(&inherited_[entry.block]);
    }
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto entry = memory::as<Entry>(lines[live[i]]);
      const std::uint32_t slot = first + live[i];
      if (!is_sound(view, entry, slot)) continue;
      if (!blocks_.claim_live(entry.block)) {
        contested.push_back(slot);
        continue;
      }
      adopt_entry(entry, slot);
      // Two entries for one hash would make one of them unreachable.
      if (!directory_.adopt(entry.block)) contested.push_back(slot);
    }
  }
}

bool Keeper::is_sound(const KeeperView& view, const Entry& entry, std::uint32_t slot) const {
  const Geometry& geometry = access_.geometry;
  if (entry.state != kEntryLive || !view.admits(entry.epoch) || entry.block >= geometry.blocks ||
      entry.length == 0 || entry.length > geometry.block_bytes ||
      !is_namespace(entry.namespace_id) ||
      (entry.parent >= geometry.blocks && entry.parent != kNoBlock)) {
    return false;
  }
  const Home home =
      home_of({entry.hash_low, entry.hash_high}, entry.namespace_id, geometry.directory_slots);
  if (home.bucket != slot / kBucketSlots * kBucketSlots) return false;
  // W4
  return entry.generation >= inherited_[entry.block].generation ||
         access_.domain().broken(Rule::kForgetGenerationAtTakeover);
}

void Keeper::adopt_entry(const Entry& entry, std::uint32_t slot) {
  BlockTable::Record& record = blocks_.record(entry.block);
  record.hash = {entry.hash_low, entry.hash_high};
  record.checksum = entry.checksum;
  record.length = entry.length;
  record.slot = slot;
  record.parent = entry.parent;
  record.flags = entry.flags;
  blocks_.set_generation(entry.block, entry.generation);
  blocks_.set_namespace(entry.block, entry.namespace_id);
}

// An entry whose block another entry has claimed, or whose hash stands in its bucket already: of two
// uses of a block the newer counts; of two blocks for one hash the one that came first.
void Keeper::adopt_contested(const KeeperView& view, std::uint32_t slot) {
  Entry entry{};
  if (!access_.region.read_as(access_.layout.entry(slot), entry) || !is_sound(view, entry, slot)) {
    return;
  }
  if (directory_.stands_at(slot) == entry.block) return;
  const BlockTable::Record& record = blocks_.record(entry.block);
  const bool is_adopted = blocks_.use(entry.block).state == BlockState::kLive &&
                          directory_.stands_at(record.slot) == entry.block;
  if (is_adopted) {
    if (blocks_.use(entry.block).generation >= entry.generation) return;
    directory_.disown(entry.block);
  }
  adopt_entry(entry, slot);
  const bool is_kept = directory_.adopt(entry.block);
  blocks_.set_state(entry.block, is_kept ? BlockState::kLive : BlockState::kFree);
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
      what[*node] = is_kept ? kKept : kDropped;
      if (is_kept) enter_tree(*node, blocks_.record(*node).parent);
    }
  }
  for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
    if (what[block] != kDropped) continue;
    directory_.disown(block);
    blocks_.set_state(block, BlockState::kFree);
  }
}

// Blocks that a client held stay out of use until there is evidence that it stores no more.
void Keeper::adopt_ledger() {
  for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
    const LedgerRecord& known = inherited_[block];
    if (blocks_.use(block).state == BlockState::kLive) continue;
    if (known.generation > blocks_.use(block).generation &&
        !access_.domain().broken(Rule::kForgetGenerationAtTakeover)) {
      blocks_.set_generation(block, known.generation);
    }
    blocks_.record(block).holder = known.holder;
    blocks_.record(block).incarnation = known.incarnation;
    const bool is_held =
        known.state == LedgerState::kGranted || known.state == LedgerState::kQuarantined;
    if (is_held && !access_.domain().broken(Rule::kLoseQuarantineAtTakeover)) {
      blocks_.set_state(block, BlockState::kQuarantined);
    } else if (known.state == LedgerState::kBad) {
      blocks_.set_state(block, BlockState::kBad);
    }
  }
}

// The holders: the predecessor's view of each slot says it, or, where that line cannot be
// read, the client's own, if it speaks of the incarnation that holds.
//
// Blocks whose ledger line cannot be read are held by a client that was admitted then. When all of those
// have proved that they store no more, no writer is left: the blocks are free, too.
void Keeper::adopt_holders() {
  std::vector<std::uint32_t> holding(sessions_.size(), 0);  // the newest incarnation that does
  for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
    const BlockTable::Record& record = blocks_.record(block);
    if (blocks_.use(block).state != BlockState::kQuarantined) continue;
    if (record.holder >= sessions_.size()) {
      ++unknown_blocks_;
    } else {
      holding[record.holder] = std::max(holding[record.holder], record.incarnation);
    }
  }
  for (std::uint32_t client = 0; client < sessions_.size(); ++client) {
    Session& session = sessions_[client];
    bool was_in = false;
    ViewLine view{};
    ClientLine line{};
    if (access_.region.read_as(access_.layout.view_line(predecessor_.slot, client), view)) {
      if (view.epoch == predecessor_.epoch) {
        session.last_incarnation = view.incarnation;
        session.process = identity_of(view);
        session.pins = (view.flags & kViewPins) != 0;
        was_in = (view.flags & (kViewOpen | kViewHeld)) != 0;
      }
    } else if (!is_blank(access_.layout.view_line(predecessor_.slot, client))) {
      is_holder_lost_ = true;
      if (access_.region.read_as(access_.layout.client_line(client), line) &&
          line.incarnation == holding[client] && line.incarnation != 0) {
        session.process = identity_of(line);
        session.pins = (line.flags & kClientPins) != 0;
      }
    }
    session.last_incarnation = std::max(session.last_incarnation, holding[client]);
    session.may_hold_unknown = was_in && unknown_blocks_ != 0;
    session.is_held = holding[client] != 0 || session.pins || session.may_hold_unknown;
    pinning_clients_ += session.pins;
  }
}

bool Keeper::is_blank(std::uint64_t offset) const {
  return access_.domain().read_line(access_.region.at(offset)) == Line{};
}

void Keeper::stop() {
  if (!serving_) return;
  serving_ = false;
  tend();
  publish_line(epoch_, 0);
  base::reach(FailPoint::kKeeperStopped);
}

}  // namespace cachalot::pool
