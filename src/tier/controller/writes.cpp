// Controller: backups from L1 to L2, and writes to L3.
#include <algorithm>

#include "base/check.h"
#include "tier/controller/controller.h"
#include "tier/radix/radix_hashes.h"

namespace cachalot::tier {
namespace {

constexpr std::size_t kStoreBlocks = 16;
// Beliefs of what L3 has: so many times the blocks of L1 and L2.
constexpr std::size_t kBeliefsPerBlock = 8;

}  // namespace

// The path to `node` has new blocks, or more uses.
void Controller::write_out(NodeId node) {
  if (writes_ == TierWrites::kBack) return;
  if (writes_ == TierWrites::kSelective) {
    while (node != kNoNode && !book_.tree().node(node).is_root() &&
           book_.tree().node(node).history.uses < selective_uses_)
      node = book_.tree().node(node).parent;
    if (node == kNoNode || book_.tree().node(node).is_root()) return;
  }
  if (has_host_ && !options_.exclusive && begin_backup(node)) return;  // to L3 when it is in L2
  begin_write(node, false);
}

// Copies what L2 lacks of the path. False: nothing is missing, or L2 has no room.
bool Controller::begin_backup(NodeId node) {
  struct Copy {
    BackupTicket ticket;
    std::vector<Slot> host;
    std::vector<SlotPair> pairs;
  };
  RadixTree& tree = book_.tree();
  std::vector<Copy> copies;
  for (const NodeId each : book_.path(node)) {
    const RadixNode& record = tree.node(each);
    if (record.is_in(Tier::kHost) || !record.is_in(Tier::kDevice) || record.backup != 0) continue;
    Copy copy;
    if (!book_.take(Tier::kHost, record.pages, copy.host)) break;
    const Result<BackupTicket> ticket = tree.backups().begin(each);
    if (!ticket) {
      book_.give(Tier::kHost, copy.host);
      break;
    }
    copy.ticket = *ticket;
    const std::span<const Slot> device = tree.node(each).slots[index(Tier::kDevice)].view();
    for (std::size_t i = 0; i < copy.host.size(); ++i)
      copy.pairs.push_back({copy.host[i], device[i]});
    copies.push_back(std::move(copy));
  }
  if (copies.empty()) return false;
  ++backups_;
  tree.lock(Tier::kDevice, node);  // until its write to L3 has locks of its own
  copier_.add([this, node, copies = std::move(copies), mark = last_commit_] {
    std::size_t saved = 0;
    while (saved < copies.size() && copies_->back_up(copies[saved].pairs, mark)) ++saved;
    const Lock lock(mutex_);
    RadixTree& nodes = book_.tree();
    for (std::size_t i = saved; i < copies.size(); ++i) {
      (void)nodes.backups().cancel(copies[i].ticket);
      book_.give(Tier::kHost, copies[i].host);
    }
    for (const Copy& copy : std::span(copies).first(saved)) {
      std::vector<NodeId> pieces;
      std::vector<Slot> surplus;
      const Status ended = nodes.backups().finish(copy.ticket, copy.host, pieces, surplus);
      book_.give(Tier::kHost, ended ? std::span<const Slot>(surplus) : std::span(copy.host));
      counts_.backed_up_bytes += copy.pairs.size() * copies_->block_bytes();
    }
    begin_write(node, false);
    nodes.unlock(Tier::kDevice, node);
    --backups_;
    changed_.notify_all();
  });
  return true;
}

std::uint64_t Controller::device_blocks_of(const Write& write) {
  std::uint64_t blocks = 0;
  for (const Segment& segment : write.segments)
    blocks += segment.tier == Tier::kDevice ? segment.slots.size() : 0;
  return blocks;
}

// Queues what L3 is not known to have of the path to `node`; `is_whole`: all of it.
void Controller::begin_write(NodeId node, bool is_whole) {
  if (shared_ == nullptr || !writes_shared_ || !copies_->is_usable()) return;
  RadixTree& tree = book_.tree();
  fill_hashes(tree, node, hasher_);
  auto write = std::make_shared<Write>();
  write->shared = shared_;
  write->node = node;
  write->is_whole = is_whole;
  for (const NodeId each : book_.path(node)) {
    const RadixNode& record = tree.node(each);
    const Tier tier = record.is_in(Tier::kHost) ? Tier::kHost : Tier::kDevice;
    const std::span<const BlockHash> hashes = record.hashes.view();
    const std::span<const Slot> slots = record.slots[index(tier)].view();
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      if (write->segments.empty() && !is_whole && written_.contains(hashes[i])) {
        write->parent = hashes[i];
        continue;
      }
      if (write->segments.empty() || write->segments.back().tier != tier)
        write->segments.push_back({.tier = tier, .hashes = {}, .slots = {}});
      Segment& segment = write->segments.back();
      segment.hashes.push_back(hashes[i]);
      segment.slots.push_back(slots[i]);
      segment.node = each;
      ++write->blocks;
    }
  }
  if (write->segments.empty()) return;
  const std::uint64_t bytes = write->blocks * copies_->block_bytes();
  const std::uint64_t device_blocks = device_blocks_of(*write);
  // Blocks in the queue are locked. A write that is too large by itself goes alone.
  const bool is_too_much =
      write_queue_bytes_ + bytes > options_.write_queue_bytes ||
      writing_device_blocks_ + device_blocks > book_.pool(Tier::kDevice).slots() / 4;
  if (write_queue_bytes_ != 0 && is_too_much) {
    counts_.unwritten_blocks += write->blocks;
    return;
  }
  write_queue_bytes_ += bytes;
  writing_device_blocks_ += device_blocks;
  for (const Segment& segment : write->segments) {
    tree.lock(segment.tier, segment.node);
    // Believed from now on, so that the next commit does not queue it again; a failure takes it back.
    written_.insert(segment.hashes.begin(), segment.hashes.end());
  }
  const std::size_t most = kBeliefsPerBlock * (book_.pool(Tier::kDevice).slots() +
                                               std::size_t{book_.pool(Tier::kHost).slots()});
  if (written_.size() > most) written_.clear();
  ++shared_->jobs;
  ++writes_in_flight_;
  writer_.add([this, write] { run_write(*write); });
}

void Controller::run_write(Write& write) {
  std::size_t stored = 0;
  const Result<Stored> result = store(write, stored);
  const Lock lock(mutex_);
  const bool lacks_parent = result.ok() && result->reason == Code::kRefused;
  if (stored < write.blocks) {
    std::size_t passed = 0;
    for (const Segment& segment : write.segments) {
      for (const BlockHash& hash : segment.hashes) {
        if (passed++ >= stored) written_.erase(hash);
      }
    }
    // L3 has lost the beginning: the whole path once more, where it is still here.
    if (lacks_parent && !write.is_whole && !write.shared->is_ending) {
      begin_write(write.node, true);
    } else {
      counts_.unwritten_blocks += write.blocks - stored;
    }
  }
  counts_.written_bytes += (result.ok() ? result->written : 0) * copies_->block_bytes();
  for (const Segment& segment : write.segments) book_.tree().unlock(segment.tier, segment.node);
  writing_device_blocks_ -= device_blocks_of(write);
  write_queue_bytes_ -= write.blocks * copies_->block_bytes();
  --writes_in_flight_;
  end_job(write.shared);
}

// @param stored  gets how many leading blocks are in L3. `written` of the result: of all calls
Result<Stored> Controller::store(Write& write, std::size_t& stored) {
  Stored all;
  std::optional<BlockHash> parent = write.parent;
  for (const Segment& segment : write.segments) {
    for (std::size_t first = 0; first < segment.hashes.size(); first += kStoreBlocks) {
      {
        const Lock lock(mutex_);
        if (write.shared->is_ending) return all;
      }
      const std::size_t count = std::min(kStoreBlocks, segment.hashes.size() - first);
      const std::span<const BlockHash> hashes = std::span(segment.hashes).subspan(first, count);
      CACHALOT_TRY_ASSIGN(const Stored part, write.shared->tier->store(
                                                 parent ? &*parent : nullptr, hashes, segment.tier,
                                                 std::span(segment.slots).subspan(first, count),
                                                 options_.shared_timeout_ns));
      stored += part.blocks;
      all.blocks += part.blocks;
      all.written += part.written;
      all.reason = part.reason;
      if (part.blocks < count) return all;
      parent = hashes.back();
    }
  }
  return all;
}

// By TierWrites::kBack blocks go to L3 when L1 has given them to L2.
void Controller::write_demoted() {
  const std::vector<NodeId> nodes = book_.take_demoted();
  if (writes_ != TierWrites::kBack) return;
  for (const NodeId node : nodes) begin_write(node, false);
}

}  // namespace cachalot::tier
