#include "node/peers/feed.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "pool/reader/directory.h"
#include "pool/reader/published_blocks.h"

namespace cachalot::node {
namespace {

using pool::kNoBlock;
using transfer::PeerId;

constexpr std::uint32_t kQueuedChanges = 1u << 16;
// More is not told while so much waits for a follower; of changes much more may.
constexpr std::uint64_t kMostWaitingBytes = 4u << 20;
constexpr auto kIdle = std::chrono::milliseconds(1);

}  // namespace

PeerFeed::PeerFeed(const pool::Access& access, Send send, Waiting waiting)
    : access_(access),
      send_(std::move(send)),
      waiting_(std::move(waiting)),
      changes_(access.domain(), kQueuedChanges),
      mirror_(access),
      thread_([this] { run(); }) {}

void PeerFeed::end() {
  stop_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
}

void PeerFeed::add(PeerId follower) {
  const std::lock_guard lock(mutex_);
  followers_[follower] = {};
}

void PeerFeed::remove(PeerId follower) {
  const std::lock_guard lock(mutex_);
  followers_.erase(follower);
}

std::size_t PeerFeed::followers() const {
  const std::lock_guard lock(mutex_);
  return followers_.size();
}

void PeerFeed::run() {
  while (!stop_.load(std::memory_order_relaxed)) {
    const std::uint64_t end = changes_.end();
    const bool has_changed = take_changes();
    if (!is_current_) continue;
    bool is_any_behind = false;
    if (tell_those_behind(is_any_behind) || has_changed) continue;
    if (!is_any_behind) told_to_.store(end, std::memory_order_release);
    std::this_thread::sleep_for(kIdle);
  }
}

bool PeerFeed::tell_those_behind(bool& is_any_behind) {
  std::map<PeerId, Follower> behind;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, follower] : followers_) {
      if (!follower.has_begun || follower.next < access_.geometry.blocks) behind[id] = follower;
    }
  }
  is_any_behind = !behind.empty();
  bool has_told = false;
  for (const auto& [id, follower] : behind) {
    if (waiting_(id) > kMostWaitingBytes) continue;
    tell_more(id, follower);
    has_told = true;
  }
  return has_told;
}

// @return whether there were any
bool PeerFeed::take_changes() {
  if (const std::optional<std::uint64_t> loss = changes_.take_loss()) {
    is_current_ = mirror_.read_anew(changes_, *loss);
    const std::lock_guard lock(mutex_);
    for (auto& [id, follower] : followers_) follower = {};
    return true;
  }
  NewsMessage news;
  Change change;
  for (const std::uint64_t end = changes_.end();
       news.blocks.size() < kMostNews && changes_.take(end, change);) {
    const std::uint32_t block = change.block.use.block;
    if (change.kind == Change::Kind::kPublished) {
      if (!mirror_.publish(change.block)) continue;
      BlockNews one;
      if (describe(block, one)) news.blocks.push_back(one);
    } else {
      const std::uint32_t space = mirror_.block(block).namespace_id;
      if (!mirror_.remove(block, change.block.hash)) continue;
      if (space - 1 < spaces_.size())
        news.blocks.push_back({{spaces_[space - 1], change.block.hash}, {}, 0});
    }
  }
  if (news.blocks.empty()) return false;
  tell(nullptr, news);
  return true;
}

// @return false: it is gone already, which a later change says
bool PeerFeed::describe(std::uint32_t block, BlockNews& news) {
  const Mirror::Block& known = mirror_.block(block);
  if (known.namespace_id == 0) return false;
  if (known.namespace_id > spaces_.size()) spaces_ = pool::read_namespaces(access_);
  if (known.namespace_id > spaces_.size() || spaces_[known.namespace_id - 1] == BlockHash{})
    return false;
  pool::Found found;
  pool::KeeperView view;
  const pool::DirectoryReader reader(access_);
  if (reader.lookup({&known.hash, 1}, known.namespace_id, view, {&found, 1}) != 1) return false;
  news.key = {spaces_[known.namespace_id - 1], known.hash};
  news.parent = known.parent == kNoBlock ? BlockHash{} : mirror_.block(known.parent).hash;
  news.length = found.entry.length;
  // Its parent is gone already, so is it, or soon.
  return known.parent == kNoBlock || news.parent != BlockHash{};
}

void PeerFeed::tell(const PeerId* to, const NewsMessage& news) {
  std::vector<PeerId> receivers;
  if (to != nullptr) {
    receivers.push_back(*to);
  } else {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, follower] : followers_) {
      if (follower.has_begun) receivers.push_back(id);
    }
  }
  for (const PeerId receiver : receivers) {
    if (!send_(receiver, news)) remove(receiver);
  }
  told_.fetch_add(news.blocks.size() * receivers.size(), std::memory_order_relaxed);
}

// The next part of all blocks. Changes are told meanwhile, of blocks that come later, too: what is told twice is the same.
void PeerFeed::tell_more(PeerId to, const Follower& follower) {
  NewsMessage news{.is_anew = !follower.has_begun, .blocks = {}};
  Follower after{true, follower.next};
  for (; after.next < access_.geometry.blocks && news.blocks.size() < kMostNews; ++after.next) {
    BlockNews one;
    if (describe(after.next, one)) news.blocks.push_back(one);
  }
  if (news.is_anew || !news.blocks.empty()) tell(&to, news);
  const std::lock_guard lock(mutex_);
  const auto at = followers_.find(to);
  // It may have asked to follow once more.
  if (at != followers_.end() && at->second.has_begun == follower.has_begun) at->second = after;
}

}  // namespace cachalot::node
