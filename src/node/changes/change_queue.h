// What the keeper has published, removed and, if wanted, touched, on its way to another thread.
//
// One thread adds, one takes; neither waits. When the queue is full, changes are lost and the queue says so:
// the taker then reads the directory, which holds them (but no touches).
//
// @threads  the calls of BlockObserver: the keeper's; the others: the taker's
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "memory/coherence.h"
#include "pool/keeper/block_observer.h"

namespace cachalot::node {

struct Change {
  enum class Kind { kPublished, kRemoved, kTouched };
  pool::PublishedBlock block;  // kTouched: the number only
  Kind kind = Kind::kPublished;
};

class ChangeQueue final : public pool::BlockObserver {
 public:
  enum class Touches { kIgnored, kTold };
  // @param domain  of the pool, as the keeper sees it
  // @param size    changes that it holds, a power of two
  ChangeQueue(memory::Domain& domain, std::uint32_t size, Touches touches = Touches::kIgnored)
      : domain_(domain), touches_(touches), changes_(size) {}

  void on_published(const pool::PublishedBlock& block) override { add({block}); }
  void on_removed(std::uint32_t block, const BlockHash& hash) override {
    add({{hash, {block, 0}, pool::kNoBlock, 0}, Change::Kind::kRemoved});
  }
  // A touch is dropped when the queue is half full: it is worth less than a read of the directory.
  void on_touched(std::uint32_t block) override {
    if (touches_ == Touches::kIgnored || waiting() * 2 >= changes_.size()) return;
    add({{{}, {block, 0}, pool::kNoBlock, 0}, Change::Kind::kTouched});
  }
  void on_repaired() override { lose(); }

  // Where the queue ended at the last loss since the previous call, if there was one; there was at the start.
  // The directory, read afterwards, has all changes up to there and those that were lost.
  std::optional<std::uint64_t> take_loss() {
    const std::uint64_t loss = loss_.exchange(0, std::memory_order_acquire);
    if (loss == 0) return {};
    return loss - 1;
  }
  bool has_lost() const { return loss_.load(std::memory_order_acquire) != 0; }
  // Changes that were not taken yet. @threads any
  std::uint64_t waiting() const {
    const std::uint64_t begin = begin_.load(std::memory_order_acquire);
    return end_.load(std::memory_order_acquire) - begin;
  }
  // Where the next change will be added.
  std::uint64_t end() const { return end_.load(std::memory_order_acquire); }
  // Takes the next change. @return false: there is none before `end`
  bool take(std::uint64_t end, Change& change) {
    const std::uint64_t at = begin_.load(std::memory_order_relaxed);
    if (at >= end) return false;
    change = changes_[at % changes_.size()];
    begin_.store(at + 1, std::memory_order_release);  // with add(): the place is free
    return true;
  }

 private:
  bool is_full() const {
    return end_.load(std::memory_order_relaxed) - begin_.load(std::memory_order_acquire) ==
           changes_.size();
  }
  void add(const Change& change) {
    const std::uint64_t at = end_.load(std::memory_order_relaxed);
    if (is_full()) return lose();
    changes_[at % changes_.size()] = change;
    end_.store(at + 1, std::memory_order_release);  // with end(): the change is there
  }
  // The directory lines are ordered before the mark: the publisher, having seen the mark, reads them.
  void lose() {
    domain_.order();
    loss_.store(end_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  memory::Domain& domain_;
  const Touches touches_;
  std::vector<Change> changes_;
  std::atomic<std::uint64_t> begin_{0}, end_{0};
  std::atomic<std::uint64_t> loss_{1};  // where the queue ended, plus 1; 0: none
};

}  // namespace cachalot::node
