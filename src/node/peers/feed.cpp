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
constexpr auto kIdle = std::chrono::milliseconds(1);

}  // namespace

PeerFeed::PeerFeed(const pool::Access& access, Send send)
    : access_(access),
      send_(std::move(send)),
      changes_(access.domain(), kQueuedChanges),
      mirror_(access),
      thread_([this] { run(); }) {}

void PeerFeed::end() {
  stop_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
}

void PeerFeed::add(PeerId follower) {
  const std::lock_guard lock(mutex_);
  followers_[follower] = false;
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
    std::optional<PeerId> waiting;
    {
      const std::lock_guard lock(mutex_);
      const auto at = std::find_if(followers_.begin(), followers_.end(),
                                   [](const auto& follower) { return !follower.second; });
      if (at != followers_.end()) waiting = at->first;
    }
    if (waiting) {
      tell_everything(*waiting);
    } else if (!has_changed) {
      told_to_.store(end, std::memory_order_release);
      std::this_thread::sleep_for(kIdle);
    }
  }
}

// @return whether there were any
bool PeerFeed::take_changes() {
  if (const std::optional<std::uint64_t> loss = changes_.take_loss()) {
    is_current_ = mirror_.read_anew(changes_, *loss);
    const std::lock_guard lock(mutex_);
    for (auto& [follower, is_told] : followers_) is_told = false;
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
    for (const auto& [follower, is_told] : followers_) {
      if (is_told) receivers.push_back(follower);
    }
  }
  for (const PeerId receiver : receivers) {
    if (!send_(receiver, news)) remove(receiver);
  }
  told_.fetch_add(news.blocks.size() * receivers.size(), std::memory_order_relaxed);
}

void PeerFeed::tell_everything(PeerId follower) {
  {
    const std::lock_guard lock(mutex_);
    const auto at = followers_.find(follower);
    if (at == followers_.end()) return;
    at->second = true;
  }
  NewsMessage news{.is_anew = true, .blocks = {}};
  for (const Run& run : mirror_.runs(~std::size_t{0})) {
    for (const std::uint32_t block : run.blocks) {
      if (stop_.load(std::memory_order_relaxed)) return;
      BlockNews one;
      if (!describe(block, one)) continue;
      news.blocks.push_back(one);
      if (news.blocks.size() < kMostNews) continue;
      tell(&follower, news);
      news = {};
    }
  }
  if (news.is_anew || !news.blocks.empty()) tell(&follower, news);
}

}  // namespace cachalot::node
