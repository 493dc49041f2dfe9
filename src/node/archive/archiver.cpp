#include "node/archive/archiver.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "node/archive/pool_payloads.h"
#include "pool/format/notes.h"
#include "pool/reader/directory.h"
#include "pool/reader/published_blocks.h"

namespace cachalot::node {
namespace {

using eviction::kNoNode;
using pool::kNoBlock;
using storage::ObjectKey;

constexpr std::uint32_t kQueuedChanges = 1u << 17;
constexpr std::size_t kRunBlocks = 32;
constexpr auto kIdle = std::chrono::microseconds(200);
// A look at all blocks, for those that storage lacks: so many at a time, while fewer than so many wait.
constexpr std::uint32_t kLookBlocks = 1024;
constexpr std::size_t kLookQueue = 256;
constexpr std::uint64_t kShortestLookPauseNs = 1'000'000'000, kLongestLookPauseNs = 64'000'000'000;

void add(std::atomic<std::uint64_t>& counter, std::uint64_t n) {
  counter.fetch_add(n, std::memory_order_relaxed);
}

}  // namespace

Archiver::Archiver(const pool::Access& access, storage::Store& store, FetchedBlocks& fetched,
                   const ArchiveOptions& options)
    : access_(access),
      store_(store),
      fetched_(fetched),
      options_(options),
      changes_(access.domain(), kQueuedChanges, ChangeQueue::Touches::kTold),
      mirror_(access),
      states_(access.geometry.blocks),
      order_(access.geometry.blocks),
      thread_([this] { run(); }) {}

Archiver::~Archiver() {
  stop_.store(true, std::memory_order_relaxed);
  thread_.join();
}

void Archiver::run() {
  std::vector<std::uint32_t> run;
  while (!stop_.load(std::memory_order_relaxed)) {
    turn_ns_.store(base::SteadyClock::read(), std::memory_order_relaxed);
    const bool has_changed = take_changes();
    if (!is_current_) continue;
    if (options_.policy == WritePolicy::kBack) keep_reserve();
    catch_up();
    if (next_run(run)) {
      write(run);
      waiting_.fetch_sub(run.size(), std::memory_order_release);
    } else if (!has_changed) {
      std::this_thread::sleep_for(kIdle);
    }
  }
}

// --- What the keeper tells -----------------------------------------------------------------------

bool Archiver::take_changes() {
  Change change;
  bool is_any = false;
  // What is taken counts as waiting until it is looked at.
  waiting_.fetch_add(1, std::memory_order_acq_rel);
  if (const std::optional<std::uint64_t> loss = changes_.take_loss()) {
    is_current_ = mirror_.read_anew(changes_, *loss);
    if (is_current_) begin_anew();
  }
  // No change before `end` is missing: changes are lost only while the queue is full, so they belong after it.
  for (std::uint64_t end = changes_.end(); is_current_ && changes_.take(end, change);
       is_any = true) {
    apply(change);
    if (stop_.load(std::memory_order_relaxed)) break;
  }
  waiting_.fetch_sub(1, std::memory_order_release);
  return is_any;
}

// Builds all other state from the mirror, after that was read anew.
void Archiver::begin_anew() {
  std::fill(states_.begin(), states_.end(), BlockState{});
  waiting_.fetch_sub(queue_.size(), std::memory_order_release);
  queue_.clear();
  order_ = eviction::LeafLru(access_.geometry.blocks);
  look_at_.reset();
  for (const Run& run : mirror_.runs(~std::size_t{0})) {
    for (const std::uint32_t block : run.blocks) {
      if (stop_.load(std::memory_order_relaxed)) return;
      const Mirror::Block& known = mirror_.block(block);
      on_published({known.hash, {block, known.generation}, known.parent, known.namespace_id});
    }
  }
}

void Archiver::apply(const Change& change) {
  switch (change.kind) {
    case Change::Kind::kPublished:
      if (mirror_.publish(change.block)) on_published(change.block);
      break;
    case Change::Kind::kRemoved:
      if (mirror_.block(change.block.use.block).hash == change.block.hash)
        on_removed(change.block.use.block, change.block.hash);
      break;
    case Change::Kind::kTouched:
      on_touched(change.block.use.block);
      break;
  }
}

std::optional<ObjectKey> Archiver::key_of(std::uint32_t block) {
  const Mirror::Block& known = mirror_.block(block);
  if (known.namespace_id == 0) return {};
  if (known.namespace_id > spaces_.size()) spaces_ = pool::read_namespaces(access_);
  if (known.namespace_id > spaces_.size() || spaces_[known.namespace_id - 1] == BlockHash{})
    return {};
  return ObjectKey{spaces_[known.namespace_id - 1], known.hash};
}

void Archiver::on_published(const pool::PublishedBlock& block) {
  const std::uint32_t number = block.use.block;
  states_[number] = {};
  const bool has_parent = block.parent != kNoBlock && order_.residency().contains(block.parent);
  if (!order_.residency().contains(number))
    order_.insert(number, has_parent ? block.parent : kNoNode);
  ++published_since_reserve_;
  const std::optional<ObjectKey> key = key_of(number);
  if (!key) return;
  // It may have come from another store, or a peer.
  states_[number].is_unused = fetched_.contains(*key);
  if (!store_.touch(*key) && options_.policy == WritePolicy::kThrough) queue(number);
}

void Archiver::on_removed(std::uint32_t block, const BlockHash& hash) {
  const std::optional<ObjectKey> key = key_of(block);
  if (states_[block].is_unused && key && fetched_.take(*key)) add(unused_, 1);
  if (states_[block].is_queued) add(lost_, 1);
  states_[block] = {};
  mirror_.remove(block, hash);
  if (order_.residency().is_leaf(block)) order_.erase(block);
}

void Archiver::on_touched(std::uint32_t block) {
  const std::optional<ObjectKey> key = key_of(block);
  if (!key) return;
  if (order_.residency().contains(block)) order_.touch(block);
  // Blocks that were skipped get another chance.
  bool is_wanted = !store_.touch(*key) && options_.policy == WritePolicy::kThrough;
  mirror_.walk_up(block, [&](std::uint32_t at) {
    BlockState& state = states_[at];
    if (const std::optional<ObjectKey> used = state.is_unused ? key_of(at) : std::nullopt; used) {
      (void)fetched_.take(*used);
      state.is_unused = false;
    }
    if (options_.policy == WritePolicy::kSelective && state.uses < options_.selective_uses)
      is_wanted |= ++state.uses == options_.selective_uses;
    return true;
  });
  if (is_wanted) queue_path(missing_path(block));
}

// --- What will be written ------------------------------------------------------------------------

void Archiver::queue(std::uint32_t block) {
  if (states_[block].is_queued) return;
  if (queue_.size() >= options_.queued_blocks) return add(skipped_, 1);
  states_[block].is_queued = true;
  queue_.push_back({block, mirror_.block(block).generation});
  waiting_.fetch_add(1, std::memory_order_acq_rel);
}

std::vector<std::uint32_t> Archiver::missing_path(std::uint32_t block) {
  std::vector<std::uint32_t> path;
  mirror_.walk_up(block, [&](std::uint32_t at) {
    if (states_[at].is_path_queued) return false;
    const std::optional<ObjectKey> key = key_of(at);
    if (key && store_.catalogue().contains(*key)) return false;  // and so is its prefix
    const bool is_wanted =
        options_.policy != WritePolicy::kSelective || states_[at].uses >= options_.selective_uses;
    if (is_wanted && key) path.push_back(at);
    return true;
  });
  std::reverse(path.begin(), path.end());
  return path;
}

void Archiver::queue_path(std::span<const std::uint32_t> path) {
  for (const std::uint32_t block : path) {
    queue(block);
    states_[block].is_path_queued = states_[block].is_queued;
  }
}

// --- What storage lacks after an outage ----------------------------------------------------------

// The pause between two looks doubles while they do not help: storage that answers, but takes no blocks.
bool Archiver::begin_look() {
  if (!is_behind_ || !queue_.empty()) return false;
  const std::uint64_t now_ns = base::SteadyClock::read();
  if (now_ns < next_look_ns_) return false;
  const bool is_first = now_ns - next_look_ns_ > 2 * look_pause_ns_;
  look_pause_ns_ =
      is_first ? kShortestLookPauseNs : std::min(look_pause_ns_ * 2, kLongestLookPauseNs);
  next_look_ns_ = now_ns + look_pause_ns_;
  is_behind_ = false;
  look_at_ = 0;
  cut_at_ = kNoBlock;
  return true;
}

void Archiver::catch_up() {
  if (const std::uint64_t gaps = store_.gaps(); gaps != gaps_) {
    gaps_ = gaps;
    is_behind_ = true;
  }
  if (!store_.is_up()) {
    is_behind_ |= look_at_.has_value();
    look_at_.reset();
    return;
  }
  if (!look_at_ && !begin_look()) return;
  if (options_.policy == WritePolicy::kBack) {
    look_at_.reset();
    published_since_reserve_ = pool::DirectoryReader(access_).capacity_blocks();
    return;
  }
  const auto blocks = static_cast<std::uint32_t>(states_.size());
  const std::uint32_t stop = std::min(blocks, *look_at_ + kLookBlocks);
  for (; *look_at_ < stop; ++*look_at_) {
    const std::size_t most = std::min<std::size_t>(kLookQueue, options_.queued_blocks);
    if (queue_.size() >= most) return;
    std::vector<std::uint32_t> path = missing_path(*look_at_);
    const std::size_t room = most - queue_.size();
    const bool is_cut = path.size() > room;
    // Its rest follows when the queue has room, unless the first part was not taken.
    const bool is_again = is_cut && std::exchange(cut_at_, path.front()) != path.front();
    if (is_cut) path.resize(room);
    queue_path(path);
    if (is_again) return;
  }
  if (*look_at_ == blocks) look_at_.reset();
}

// The coldest blocks are stored before the keeper has to evict them.
void Archiver::keep_reserve() {
  const std::uint64_t capacity = pool::DirectoryReader(access_).capacity_blocks();
  const std::uint64_t reserve = capacity * options_.back_reserve_permille / 1000;
  if (mirror_.size() + reserve < capacity || published_since_reserve_ * 8 < reserve) return;
  published_since_reserve_ = 0;
  std::uint64_t seen = 0;
  for (eviction::NodeId block = order_.oldest(); block != kNoNode && seen < reserve * 5 / 4;
       block = order_.newer(block), ++seen) {
    const std::optional<ObjectKey> key = key_of(block);
    if (key && !states_[block].is_queued && !store_.catalogue().contains(*key))
      queue_path(missing_path(block));
  }
}

bool Archiver::next_run(std::vector<std::uint32_t>& run) {
  run.clear();
  while (!queue_.empty() && run.size() < kRunBlocks) {
    const auto [block, generation] = queue_.front();
    const Mirror::Block& known = mirror_.block(block);
    const bool is_gone = known.namespace_id == 0 || known.generation != generation;
    if (!is_gone && !run.empty() && known.parent != run.back()) break;
    queue_.pop_front();
    if (is_gone) {
      waiting_.fetch_sub(1, std::memory_order_release);
      continue;
    }
    states_[block].is_queued = states_[block].is_path_queued = false;
    run.push_back(block);
  }
  return !run.empty();
}

void Archiver::write(const std::vector<std::uint32_t>& run) {
  const std::optional<ObjectKey> first = key_of(run[0]);
  if (!first) return;
  std::vector<BlockHash> hashes;
  for (const std::uint32_t block : run) hashes.push_back(mirror_.block(block).hash);
  const std::uint32_t before = mirror_.block(run[0]).parent;
  const BlockHash parent = before == kNoBlock ? BlockHash{} : mirror_.block(before).hash;

  std::vector<pool::Found> found(run.size());
  pool::ValidatedRead read = pool::ValidatedRead::look_up(
      access_, hashes, mirror_.block(run[0]).namespace_id, found, true);
  PoolPayloads payloads(access_);
  payloads.read(read);
  std::vector<std::vector<std::uint32_t>> tokens(read.found().size());
  std::vector<storage::BlockPut> puts;
  for (std::size_t i = 0; i < read.found().size(); ++i) {
    const pool::Entry& entry = read.found()[i].entry;
    (void)pool::read_note(access_, {entry.block, entry.generation}, hashes[i], tokens[i]);
    puts.push_back({hashes[i], payloads.payload(i), tokens[i]});
  }
  const std::uint64_t deadline_ns = base::SteadyClock::read() + options_.io_timeout_ns;
  std::size_t valid = 0;
  const std::size_t stored = store_.put(first->space, before == kNoBlock ? nullptr : &parent, puts,
                                        deadline_ns, [&] { return valid = read.validate().valid; });
  add(lost_, run.size() - valid);
  // A payload that changed while it was written has a seal that does not match: it goes now rather than later.
  const std::size_t unchanged = read.validate().valid;
  if (unchanged < stored) store_.remove({first->space, hashes[unchanged]}, deadline_ns);
}

}  // namespace cachalot::node
