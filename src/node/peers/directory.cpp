#include "node/peers/directory.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace cachalot::node {
namespace {

// Of one turn of clear(), which takes a second for all that may be known: the keeper asks meanwhile. A lock that is taken again
// at once would be there for no other thread.
constexpr std::size_t kTurnBlocks = 4096;
constexpr auto kBetweenTurns = std::chrono::microseconds(20);
// A bound for memory, 5 MB. Beyond it all doubts end, and peers are asked again.
constexpr std::size_t kMostDoubts = 1u << 16;

std::uint64_t bit_of(std::uint32_t peer) {
  return std::uint64_t{1} << peer;
}

}  // namespace

void PeerDirectory::apply(std::uint32_t peer, std::span<const BlockNews> news) {
  const std::lock_guard lock(mutex_);
  for (const BlockNews& block : news) {
    if (const auto doubt = doubts_.find(block.key); doubt != doubts_.end()) {
      doubt->second.peers &= ~bit_of(peer);
      if (doubt->second.peers == 0) doubts_.erase(doubt);
    }
    if (block.length == 0) {
      remove_locked(peer, block.key);
      continue;
    }
    if (block.length > most_length_) continue;
    if (blocks_.size() >= most_blocks_ && !blocks_.contains(block.key)) continue;
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

void PeerDirectory::doubt(std::uint64_t peers, const storage::ObjectKey& key, std::uint64_t now_ns,
                          std::uint64_t for_ns) {
  const std::lock_guard lock(mutex_);
  if (!blocks_.contains(key)) return;
  if (doubts_.size() >= kMostDoubts) doubts_.clear();
  Doubt& doubt = doubts_[key];
  if (now_ns >= doubt.until_ns) doubt.peers = 0;
  doubt.peers |= peers;
  doubt.until_ns = std::max(doubt.until_ns, now_ns + for_ns);
}

void PeerDirectory::clear(std::uint32_t peer) {
  std::unique_lock lock(mutex_);
  if (blocks_of_[peer] == 0) return;
  std::size_t turn = 0;
  for (auto at = blocks_.begin(); at != blocks_.end();) {
    at->second.owners &= ~bit_of(peer);
    at = at->second.owners == 0 ? blocks_.erase(at) : std::next(at);
    if (++turn % kTurnBlocks != 0) continue;
    lock.unlock();
    std::this_thread::sleep_for(kBetweenTurns);
    lock.lock();
  }
  blocks_of_[peer] = 0;
  std::erase_if(doubts_, [&](const auto& doubt) { return doubt.second.peers == bit_of(peer); });
  for (auto& [key, doubt] : doubts_) doubt.peers &= ~bit_of(peer);
}

std::optional<PeerDirectory::Known> PeerDirectory::find(const storage::ObjectKey& key,
                                                        std::uint64_t now_ns) const {
  const std::lock_guard lock(mutex_);
  const auto at = blocks_.find(key);
  if (at == blocks_.end()) return {};
  Known known = at->second;
  if (const auto doubt = doubts_.find(key);
      doubt != doubts_.end() && now_ns < doubt->second.until_ns)
    known.owners &= ~doubt->second.peers;
  if (known.owners == 0) return {};
  return known;
}

std::size_t PeerDirectory::blocks() const {
  const std::lock_guard lock(mutex_);
  return blocks_.size();
}

std::size_t PeerDirectory::blocks_of(std::uint32_t peer) const {
  const std::lock_guard lock(mutex_);
  return blocks_of_[peer];
}

}  // namespace cachalot::node
