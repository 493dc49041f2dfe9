#include "pool/keeper/takeover/takeover.h"

#include <algorithm>
#include <atomic>
#include <span>
#include <vector>

#include "base/fail_point.h"
#include "base/log.h"
#include "pool/keeper/takeover/entry_scan.h"
#include "pool/keeper/takeover/parallel_parts.h"
#include "pool/reader/payload_check.h"

namespace cachalot::pool {

using base::FailPoint;
using memory::Line;
using memory::Rule;

Takeover::Takeover(const Access& access, const KeeperOptions& options, const Reign& reign,
                   base::Clock& clock, Namespaces& namespaces, Blocks& blocks,
                   DirectoryWriter& directory, Evictor& evictor, Sessions& sessions)
    : access_(access),
      reign_(reign),
      clock_(clock),
      namespaces_(namespaces),
      blocks_(blocks),
      table_(blocks.table()),
      directory_(directory),
      evictor_(evictor),
      sessions_(sessions),
      threads_(std::max(1u, options.takeover_threads)),
      options_(options),
      inherited_(access.geometry.blocks) {}

bool Takeover::run() {
  base::reach(FailPoint::kTakeoverAnnounced);
  last_lap_ns_ = clock_.now_ns();
  evictor_.tell_policy_the_time();
  const Predecessor& predecessor = reign_.predecessor();
  if (predecessor.epoch != 0 && !take_over_predecessor()) return false;
  inherited_ = {};
  if (predecessor.is_lost && !begin_anew()) return false;
  blocks_.offer_free();
  write_ledger();
  times_.ledger_out_ns = lap();
  base::reach(FailPoint::kTakeoverLedgerWritten);
  access_.domain().complete();
  sessions_.publish_views();
  access_.domain().complete();
  return true;
}

bool Takeover::take_over_predecessor() {
  read_ledger();
  times_.ledger_ns = lap();
  namespaces_.adopt();
  EntryScan(access_, reign_.predecessor(), inherited_, namespaces_, table_, blocks_.usable(),
            directory_)
      .run(threads_);
  times_.entries_ns = lap();
  base::reach(FailPoint::kTakeoverEntriesRead);
  if (const Payloads payloads = choose_payloads(); payloads != Payloads::kTrust)
    drop_damaged(payloads);
  times_.payloads_ns = lap();
  drop_orphans();
  times_.tree_ns = lap();
  adopt_ledger();
  adopt_holders();
  times_.holders_ns = lap();
  base::reach(FailPoint::kTakeoverLedgerRead);
  if (!write_directory()) return false;
  base::reach(FailPoint::kTakeoverSwept);
  times_.sweep_ns = lap();
  return true;
}

std::uint64_t Takeover::lap() {
  const std::uint64_t began_ns = last_lap_ns_;
  last_lap_ns_ = clock_.now_ns();
  return last_lap_ns_ - began_ns;
}

// Nothing is kept, and no block is used before an operator says that no client stores into it.
bool Takeover::begin_anew() {
  base::log(
      base::LogLevel::kError, "keeper",
      "the lines of the pool's last keeper are lost: all blocks are dropped, and out of use until "
      "`cachalot pool fence --unknown` says that no client of before stores any more");
  blocks_.quarantine_all();
  sessions_.adopt_unknown(table_.size(), true);
  return write_directory();
}

// In pieces: a keeper that stalled here while another took over should not write over the whole of that
// one's directory when it wakes up. Its epoch is void by then, so this would be right; but what it wrote
// over is a miss until it is scrubbed. @return false: another keeper has announced itself
bool Takeover::write_directory() {
  constexpr std::uint32_t kPieceSlots = 64 * kBucketSlots;
  std::atomic<bool> is_over{false};
  in_parallel_parts(threads_, access_.geometry.directory_slots, kBucketSlots,
                    [&](std::uint32_t, std::uint32_t first, std::uint32_t end) {
                      while (first < end && !is_over.load(std::memory_order_relaxed)) {
                        if (reign_.has_successor())
                          return is_over.store(true, std::memory_order_relaxed);
                        const std::uint32_t piece_end = first + std::min(kPieceSlots, end - first);
                        directory_.sweep(first, piece_end);
                        first = piece_end;
                      }
                      access_.domain().order();
                    });
  return !is_over.load(std::memory_order_relaxed);
}

void Takeover::read_ledger() {
  in_parallel_parts(threads_, table_.size(), kLedgerRecordsPerLine,
                    [this](std::uint32_t, std::uint32_t first, std::uint32_t end) {
                      Ledger::read(access_, reign_.predecessor().area, first,
                                   std::span(inherited_).subspan(first, end - first));
                    });
}

void Takeover::write_ledger() {
  in_parallel_parts(threads_, table_.size(), kLedgerRecordsPerLine,
                    [this](std::uint32_t, std::uint32_t first, std::uint32_t end) {
                      blocks_.write_ledger(first, end);
                      access_.domain().order();
                    });
}

// While a machine runs, each of its processes sees what the others stored. If it ended without writing the pool
// back, an entry may be there whose payload is not. In a pool of several hosts another boot id may be another host,
// of which nothing has ended: then blocks without a checksum stay.
Takeover::Payloads Takeover::choose_payloads() const {
  const Predecessor& predecessor = reign_.predecessor();
  const bool is_other_boot = predecessor.boot_id_low != options_.boot_id_low ||
                             predecessor.boot_id_high != options_.boot_id_high;
  if (is_other_boot && !predecessor.is_flushed)
    return access_.geometry.hosts == 1 ? Payloads::kProve : Payloads::kVerify;
  return options_.verify_payloads ? Payloads::kVerify : Payloads::kTrust;
}

// Blocks whose bytes are not, or may not be, those that they were published with. Their descendants are orphans then.
void Takeover::drop_damaged(Payloads payloads) {
  enum : std::uint8_t { kGood, kWrong, kUnproven };
  std::vector<std::uint8_t> what(table_.size(), kGood);
  in_parallel_parts(
      threads_, table_.size(), 1, [&](std::uint32_t, std::uint32_t block, std::uint32_t end) {
        for (; block < end; ++block) {
          const BlockTable::Record& record = table_.record(block);
          if (table_.use(block).state != BlockState::kLive) continue;
          if ((record.flags & kEntryHasChecksum) == 0) {
            what[block] = payloads == Payloads::kProve ? kUnproven : kGood;
          } else if (!payload_matches(access_, block, record.length, record.checksum)) {
            what[block] = kWrong;
          }
        }
      });
  const std::uint32_t live = table_.count(BlockState::kLive);
  std::uint32_t wrong = 0, unproven = 0;
  for (std::uint32_t block = 0; block < table_.size(); ++block) {
    wrong += what[block] == kWrong;
    unproven += what[block] == kUnproven;
    if (what[block] != kGood) drop(block);
  }
  const char* const why = payloads == Payloads::kProve
                              ? ", because the machine was restarted and the last keeper had not "
                                "stopped in order"
                              : "";
  base::log(
      base::LogLevel::kWarn, "keeper",
      "verified the payloads of %u blocks%s: dropped %u with a wrong checksum, %u without one",
      live, why, wrong, unproven);
}

void Takeover::drop(std::uint32_t block) {
  directory_.disown(block);
  table_.set_state(block, BlockState::kFree);
}

// A block whose parent is gone, or whose parents form a circle, is not kept; the rest enters the
// tree, parents first. The order of use is not in the pool and starts anew.
void Takeover::drop_orphans() {
  std::vector<std::uint32_t> path;
  enum : std::uint8_t { kUnknown, kOnPath, kKept, kDropped };
  std::vector<std::uint8_t> what(table_.size(), kUnknown);
  for (std::uint32_t block = 0; block < table_.size(); ++block) {
    if (table_.use(block).state != BlockState::kLive) continue;
    std::uint32_t at = block;
    path.clear();
    while (at != kNoBlock && table_.use(at).state == BlockState::kLive && what[at] == kUnknown) {
      what[at] = kOnPath;
      path.push_back(at);
      at = table_.record(at).parent;
    }
    const bool is_kept = at == kNoBlock || what[at] == kKept;
    for (auto node = path.rbegin(); node != path.rend(); ++node) {
      what[*node] = is_kept ? kKept : kDropped;
      if (is_kept) evictor_.enter(*node, table_.record(*node).parent);
    }
  }
  for (std::uint32_t block = 0; block < table_.size(); ++block) {
    if (what[block] == kDropped) drop(block);
  }
}

// Blocks that a client held stay out of use until there is evidence that it stores no more.
void Takeover::adopt_ledger() {
  for (std::uint32_t block = 0; block < table_.size(); ++block) {
    const LedgerRecord& known = inherited_[block];
    if (table_.use(block).state == BlockState::kLive) continue;
    if (known.generation > table_.use(block).generation &&
        !access_.domain().broken(Rule::kForgetGenerationAtTakeover)) {
      table_.set_generation(block, known.generation);
    }
    table_.record(block).holder = known.holder;
    table_.record(block).incarnation = known.incarnation;
    const bool is_held =
        known.state == LedgerState::kGranted || known.state == LedgerState::kQuarantined;
    if (is_held && !access_.domain().broken(Rule::kLoseQuarantineAtTakeover)) {
      table_.set_state(block, BlockState::kQuarantined);
    } else if (known.state == LedgerState::kBad) {
      table_.set_state(block, BlockState::kBad);
    }
  }
}

// Blocks whose ledger line cannot be read are held by a client that was admitted then. When all of those
// have proved that they store no more, no writer is left: the blocks are free, too.
void Takeover::adopt_holders() {
  std::vector<std::uint32_t> holding(sessions_.slots(), 0);  // the newest incarnation that does
  std::uint32_t unknown_blocks = 0;
  for (std::uint32_t block = 0; block < table_.size(); ++block) {
    const BlockTable::Record& record = table_.record(block);
    if (table_.use(block).state != BlockState::kQuarantined) continue;
    if (record.holder >= sessions_.slots()) {
      ++unknown_blocks;
    } else {
      holding[record.holder] = std::max(holding[record.holder], record.incarnation);
    }
  }
  bool is_holder_lost = false;
  for (std::uint32_t client = 0; client < sessions_.slots(); ++client) {
    LastClient last = find_last_client(client, holding[client]);
    Session& session = last.session;
    is_holder_lost |= last.is_view_lost;
    session.last_incarnation = std::max(session.last_incarnation, holding[client]);
    session.may_hold_unknown = last.was_admitted && unknown_blocks != 0;
    session.is_held = holding[client] != 0 || session.pins || session.may_hold_unknown;
    sessions_.adopt(client, session);
  }
  sessions_.adopt_unknown(unknown_blocks, is_holder_lost);
}

// The predecessor's view of the slot says it. Where that line cannot be read, the client's own line says whether it may have
// pins, and names its process, unless blocks are held by another incarnation than that line's.
Takeover::LastClient Takeover::find_last_client(std::uint32_t client, std::uint32_t holding) const {
  LastClient last;
  ViewLine view{};
  ClientLine line{};
  const std::uint64_t offset = access_.layout.view_line(reign_.predecessor().area, client);
  if (access_.region.read_as(offset, view)) {
    if (view.epoch != reign_.predecessor().epoch) return last;
    last.session.last_incarnation = view.incarnation;
    last.session.process = identity_of(view);
    last.session.pins = (view.flags & kViewPins) != 0;
    last.was_admitted = (view.flags & (kViewOpen | kViewHeld)) != 0;
  } else if (!is_blank(offset)) {
    last.is_view_lost = true;
    if (!access_.region.read_as(access_.layout.client_line(client), line) || line.incarnation == 0)
      return last;
    last.session.pins = (line.flags & kClientPins) != 0;
    if (holding != 0 && line.incarnation != holding) return last;
    last.session.last_incarnation = line.incarnation;
    last.session.process = identity_of(line);
  }
  return last;
}

bool Takeover::is_blank(std::uint64_t offset) const {
  return access_.domain().read_line(access_.region.at(offset)) == Line{};
}

}  // namespace cachalot::pool
