#include "node/events/feed.h"

#include <algorithm>
#include <utility>

#include "block_hash/block_hash.h"
#include "pool/format/notes.h"
#include "pool/reader/published_blocks.h"

namespace cachalot::events {

using node::Change;
using node::ChangeQueue;
using node::Mirror;
using node::Run;

namespace {

constexpr std::size_t kMostBlocks = 256;            // of one event
constexpr std::size_t kMostBatchBytes = 1u << 20;   // a batch ends soon after
constexpr std::size_t kMostChanges = 1u << 16;      // between two looks at replay requests
constexpr std::uint32_t kPastEpochs = 0x7fffffffu;  // some subscribers read numbers as signed

const char* locality_of(const pool::Geometry& geometry) {
  return geometry.hosts == 1 ? "LOCAL" : "REMOTE";
}

}  // namespace

// Collects the blocks of one event while they come in: stored ones of one chain with as many tokens each, or
// removed ones. The hash of the parent is taken when the first one comes: the parent may be removed soon.
class Feed::Pending {
 public:
  Pending(const pool::Access& access, const Mirror& mirror, EventBatch& batch)
      : access_(access), mirror_(mirror), batch_(batch) {}

  void store(const pool::PublishedBlock& block) {
    const bool has_note = pool::read_note(access_, block.use, block.hash, note_);
    const auto tokens = static_cast<std::uint32_t>(has_note ? note_.size() : 0);
    const bool continues = !hashes_.empty() && !is_removal_ && block.parent == last_ &&
                           tokens == block_tokens_ && hashes_.size() < kMostBlocks;
    if (!continues) {
      flush();
      parent_.reset();
      if (block.parent != pool::kNoBlock) parent_ = mirror_.block(block.parent).hash;
      block_tokens_ = tokens;
    }
    is_removal_ = false;
    hashes_.push_back(block.hash);
    tokens_.insert(tokens_.end(), note_.begin(), note_.end());
    last_ = block.use.block;
  }
  void remove(const BlockHash& hash) {
    if (!is_removal_ || hashes_.size() == kMostBlocks) flush();
    is_removal_ = true;
    hashes_.push_back(hash);
  }
  void flush() {
    if (hashes_.empty()) return;
    if (is_removal_) {
      batch_.add_removed(hashes_);
    } else {
      batch_.add_stored({hashes_, parent_, tokens_, block_tokens_});
    }
    hashes_.clear();
    tokens_.clear();
  }

 private:
  const pool::Access& access_;
  const Mirror& mirror_;
  EventBatch& batch_;
  bool is_removal_ = false;
  std::vector<BlockHash> hashes_;
  std::optional<BlockHash> parent_;
  std::vector<std::uint32_t> tokens_, note_;
  std::uint32_t block_tokens_ = 0;
  std::uint32_t last_ = pool::kNoBlock;
};

Feed::Feed(const pool::Access& access, ChangeQueue& changes, FeedOptions options)
    : access_(access),
      changes_(changes),
      options_(std::move(options)),
      mirror_(access),
      batch_(locality_of(access.geometry)),
      next_(std::uint64_t{options_.epoch & kPastEpochs} << 32) {}

// The one place that names a stream.
std::string Feed::topic_of(std::uint32_t namespace_id) {
  std::string topic = "kv@" + options_.pool_name + "@";
  if (namespace_id == 0) return topic;
  const auto is_known = [&] {
    return namespace_id <= namespaces_.size() && namespaces_[namespace_id - 1] != BlockHash{};
  };
  if (!is_known()) namespaces_ = pool::read_namespaces(access_);
  return is_known() ? topic + block_hash::to_hex(namespaces_[namespace_id - 1]) : topic;
}

// --- Live -------------------------------------------------------------------------------------

std::size_t Feed::advance(const Sink& sink) {
  const std::uint64_t before = next_;
  if (const std::optional<std::uint64_t> loss = changes_.take_loss()) {
    is_current_ = mirror_.read_anew(changes_, *loss);
    if (is_current_) {
      namespaces_ = pool::read_namespaces(access_);
      for (const Part& part : plan_snapshot()) {
        fill_batch(part);
        send_batch(part.namespace_id, sink);
      }
    }
  }
  if (is_current_) send_changes(sink);
  return static_cast<std::size_t>(next_ - before);
}

std::size_t Feed::send_changes(const Sink& sink) {
  Pending pending(access_, mirror_, batch_);
  std::uint32_t current = 0;  // namespace of the batch
  const auto turn_to = [&](std::uint32_t namespace_id) {
    if (namespace_id == current && batch_.bytes() < kMostBatchBytes) return;
    pending.flush();
    send_batch(current, sink);
    current = namespace_id;
  };
  std::size_t taken = 0;
  Change change;
  const std::uint64_t end = changes_.end();
  for (; taken < kMostChanges && changes_.take(end, change); ++taken) {
    if (change.kind == Change::Kind::kRemoved) {
      const std::uint32_t space = mirror_.block(change.block.use.block).namespace_id;
      if (!mirror_.remove(change.block.use.block, change.block.hash)) continue;
      turn_to(space);
      pending.remove(change.block.hash);
    } else if (mirror_.publish(change.block)) {
      turn_to(change.block.namespace_id);
      pending.store(change.block);
    }
  }
  pending.flush();
  send_batch(current, sink);
  return taken;
}

SharedMessage Feed::take_batch(std::uint32_t namespace_id, std::uint64_t sequence) {
  const double now = options_.unix_s ? options_.unix_s() : 0;
  return std::make_shared<const Message>(
      Message{topic_of(namespace_id), sequence, batch_.take(now)});
}

void Feed::send_batch(std::uint32_t namespace_id, const Sink& sink) {
  if (batch_.is_empty()) return;
  SharedMessage message = take_batch(namespace_id, next_++);
  sink(message);
  keep(std::move(message));
}

void Feed::keep(SharedMessage message) {
  kept_bytes_ += message->payload.size();
  kept_.push_back(std::move(message));
  while (kept_.size() > options_.kept_batches || kept_bytes_ > options_.kept_bytes) {
    kept_bytes_ -= kept_.front()->payload.size();
    kept_.pop_front();
  }
}

// --- Snapshots --------------------------------------------------------------------------------

// First all that a subscriber may hold is cleared, under each topic that it may listen to.
std::vector<Feed::Part> Feed::plan_snapshot() const {
  std::vector<Part> parts;
  for (std::uint32_t id = 1; id <= namespaces_.size(); ++id) parts.push_back({id});
  if (parts.empty()) parts.push_back({});
  const std::size_t clears = parts.size();
  for (Run& run : mirror_.runs(kMostBlocks)) {
    const bool fits = parts.size() > clears && parts.back().namespace_id == run.namespace_id &&
                      parts.back().blocks + run.blocks.size() <= kMostBlocks;
    if (!fits) parts.push_back({run.namespace_id});
    parts.back().blocks += run.blocks.size();
    parts.back().runs.push_back(std::move(run));
  }
  return parts;
}

void Feed::fill_batch(const Part& part) {
  if (part.runs.empty()) batch_.add_cleared();
  Pending pending(access_, mirror_, batch_);
  for (const Run& run : part.runs) {
    for (const std::uint32_t number : run.blocks) {
      const Mirror::Block& block = mirror_.block(number);
      pending.store({block.hash, {number, block.generation}, block.parent, block.namespace_id});
    }
  }
  pending.flush();
}

// --- Replays ----------------------------------------------------------------------------------

// Whether all live batches from this number on are there, or will be.
bool Feed::is_kept(std::uint64_t sequence) const {
  return sequence == next_ ||
         (!kept_.empty() && sequence >= kept_.front()->sequence && sequence < next_);
}

// An older one does as well while all batches after it are kept.
const Feed::Snapshot& Feed::current_snapshot() {
  if (snapshot_.id != 0 && is_kept(snapshot_.next)) return snapshot_;
  snapshot_ = {};  // first, so that there are never two
  const std::vector<Part> parts = plan_snapshot();
  // The last one gets the number of the last live batch.
  std::uint64_t sequence = next_ - std::min<std::uint64_t>(next_, parts.size());
  for (const Part& part : parts) {
    fill_batch(part);
    snapshot_.batches.push_back(take_batch(part.namespace_id, sequence++));
  }
  snapshot_.next = next_;
  snapshot_.id = ++snapshots_;
  return snapshot_;
}

void Feed::begin_with_snapshot(Replay& replay) {
  const Snapshot& snapshot = current_snapshot();
  replay = {.next = snapshot.next, .end = next_, .snapshot = snapshot.id, .part = 0};
}

Replay Feed::begin_replay(std::uint64_t first) {
  Replay replay{.next = first, .end = next_};
  if (!is_kept(first)) begin_with_snapshot(replay);
  return replay;
}

SharedMessage Feed::next_of(Replay& replay) {
  const bool has_lost_snapshot = replay.snapshot != 0 && replay.snapshot != snapshot_.id;
  const bool has_lost_batches = replay.next != replay.end && !is_kept(replay.next);
  if (has_lost_snapshot || has_lost_batches) begin_with_snapshot(replay);
  if (replay.snapshot != 0) {
    if (replay.part < snapshot_.batches.size()) return snapshot_.batches[replay.part++];
    replay.snapshot = 0;
  }
  if (replay.next == replay.end) return nullptr;
  return kept_[static_cast<std::size_t>(replay.next++ - kept_.front()->sequence)];
}

}  // namespace cachalot::events
