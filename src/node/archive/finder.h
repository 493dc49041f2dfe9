// Asks a shared store for blocks that its catalogue does not have, on a thread of its own: the keeper must not wait.
//
// A chain is asked for in steps that double, so that a miss costs one round trip of few names. What several clients wait
// for, and what a client sends in a row, goes in one call. What was absent is not asked for again for 50 ms: less than
// what passes between a put on one host and its hit on another.
//
// Invariants
//   1. A question ends with the chain, with its first absent block, or with a call that fails.
//   2. Whatever the store does, a call of any other thread takes a lock for a moment.
//
// @threads any; the work is done by its own
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "node/archive/fetcher.h"
#include "node/archive/sources.h"

namespace cachalot::node {

class Finder {
 public:
  static constexpr std::uint64_t kAbsentNs = 50'000'000;

  struct Question {
    std::uint32_t namespace_id = 0;  // 0: the pool has no such namespace yet; nothing is fetched
    BlockHash space;
    std::span<const BlockHash> hashes;
    std::size_t known = 0;  // leading blocks that the catalogue has
    bool fetches = false;   // what is found
    bool is_sure = false;   // the chain before it is stored: it is asked for in one step
    bool goes_on = false;   // the client sends more of the chain: that goes in the same call
  };

  // Both outlive it. A store that is not shared is never asked.
  Finder(Sources& sources, Fetcher& fetcher, std::size_t most_questions);
  ~Finder();

  // Queues a question, unless it is queued or answered already. @return whether its answer is still to come
  bool ask(const Question& question);

  // When the thread last began a step of its work; nothing: it has none.
  std::optional<std::uint64_t> step_ns() const {
    const std::uint64_t step_ns = step_ns_.load(std::memory_order_relaxed);
    return step_ns == 0 ? std::nullopt : std::optional(step_ns);
  }

 private:
  // A question in work.
  struct Search {
    std::uint32_t namespace_id;
    BlockHash space;
    std::vector<BlockHash> hashes;
    std::size_t at;    // the next block to ask for
    std::size_t step;  // how many in the next call
    bool is_over = false;
    storage::ObjectKey name() const { return {space, hashes.back()}; }
  };

  bool queue(const Question& question);
  void run();
  void take_new(std::vector<Search>& searches);
  void step(std::vector<Search>& searches);
  void end(const Search& search);
  bool is_absent(const storage::ObjectKey& key, std::uint64_t now_ns);

  Sources& sources_;
  Fetcher& fetcher_;
  const std::size_t most_questions_;
  std::mutex mutex_;  // all below, but for the atomic
  std::condition_variable wake_;
  std::deque<Search> queue_;
  std::unordered_map<storage::ObjectKey, bool>
      asked_;  // queued or in work, by last block; whether it is fetched
  std::unordered_map<storage::ObjectKey, std::uint64_t> absent_;  // until when
  std::deque<std::pair<std::uint64_t, storage::ObjectKey>> absent_order_;
  bool has_end_ = false;  // the queue has the last question of a row
  bool stop_ = false;
  std::atomic<std::uint64_t> step_ns_{0};  // 0: no work
  std::thread thread_;
};

}  // namespace cachalot::node
