#include "node/peers/directory.h"

namespace cachalot::node {
namespace {

std::uint64_t bit_of(std::uint32_t peer) {
  return std::uint64_t{1} << peer;
}

}  // namespace

void PeerDirectory::apply(std::uint32_t peer, std::span<const BlockNews> news) {
  const std::lock_guard lock(mutex_);
  for (const BlockNews& block : news) {
    if (block.length == 0) {
      remove_locked(peer, block.key);
      continue;
    }
    if (block.length > most_length_) continue;
    if (blocks_.size() >= most_blocks_ && !blocks_.contains(block.key)) {
      ++refused_;
      continue;
    }
    const auto [at, is_new] = blocks_.try_emplace(block.key, Known{block.parent, block.length, 0});
    Known& known = at->second;
    if (known.length != block.length || known.parent != block.parent) continue;
    if ((known.owners & bit_of(peer)) == 0) ++blocks_of_[peer];
    known.owners |= bit_of(peer);
  }
}

void PeerDirectory::remove_locked(std::uint32_t peer, const storage::ObjectKey& key) {
  const auto at = blocks_.find(key);
  if (at == blocks_.end() || (at->second.owners & bit_of(peer)) == 0) return;
  --blocks_of_[peer];
  at->second.owners &= ~bit_of(peer);
  if (at->second.owners == 0) blocks_.erase(at);
}

void PeerDirectory::remove(std::uint32_t peer, const storage::ObjectKey& key) {
  const std::lock_guard lock(mutex_);
  remove_locked(peer, key);
}

void PeerDirectory::forget(std::span<const storage::ObjectKey> keys) {
  const std::lock_guard lock(mutex_);
  for (const storage::ObjectKey& key : keys) {
    const auto at = blocks_.find(key);
    if (at == blocks_.end()) continue;
    for (std::uint32_t peer = 0; peer < kMostPeers; ++peer)
      blocks_of_[peer] -= at->second.owners >> peer & 1;
    blocks_.erase(at);
  }
}

void PeerDirectory::clear(std::uint32_t peer) {
  const std::lock_guard lock(mutex_);
  if (blocks_of_[peer] == 0) return;
  for (auto at = blocks_.begin(); at != blocks_.end();) {
    at->second.owners &= ~bit_of(peer);
    at = at->second.owners == 0 ? blocks_.erase(at) : std::next(at);
  }
  blocks_of_[peer] = 0;
}

std::optional<PeerDirectory::Known> PeerDirectory::find(const storage::ObjectKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto at = blocks_.find(key);
  if (at == blocks_.end()) return {};
  return at->second;
}

std::size_t PeerDirectory::blocks() const {
  const std::lock_guard lock(mutex_);
  return blocks_.size();
}

std::size_t PeerDirectory::blocks_of(std::uint32_t peer) const {
  const std::lock_guard lock(mutex_);
  return blocks_of_[peer];
}

std::uint64_t PeerDirectory::refused() const {
  const std::lock_guard lock(mutex_);
  return refused_;
}

}  // namespace cachalot::node
