// The stream of event batches of one pool, and what a late subscriber gets instead of its beginning.
//
// Every batch has a number. The first one of a keeper is epoch << 32: numbers grow over all keepers of a pool,
// and one that restarts is seen as a gap. A feed begins with AllBlocksCleared and all blocks; it does so again
// when changes were lost.
//
// A subscriber that asks for a number that is still kept gets the batches from there on. Else it gets a
// snapshot, whose batches have numbers that end with that of the last live batch, and the batches after it: the
// live stream goes on after them without a gap or a repetition. Subscribers take their answers at their own
// pace and share the batches; there is at most one snapshot.
//
// @threads one
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "node/changes/change_queue.h"
#include "node/changes/mirror.h"
#include "node/events/event_batch.h"

namespace cachalot::events {

struct Message {
  std::string topic;
  std::uint64_t sequence = 0;
  std::string payload;
};
using SharedMessage = std::shared_ptr<const Message>;

// What is left of an answer to a subscriber that asked for a number.
struct Replay {
  std::uint64_t next = 0;      // number of the next live batch
  std::uint64_t end = 0;       // of the first one that is not part of the answer
  std::uint64_t snapshot = 0;  // which snapshot comes before them; 0: none
  std::size_t part = 0;        // its next batch
};

struct FeedOptions {
  std::string pool_name;               // in topics
  std::uint32_t epoch = 1;             // of the keeper
  std::size_t kept_batches = 10'000;   // for replay
  std::size_t kept_bytes = 64u << 20;  // of their payloads
  std::function<double()> unix_s;      // the wall clock
};

class Feed {
 public:
  using Sink = std::function<void(const SharedMessage&)>;

  // @param changes  what the keeper tells from before the first advance() on
  Feed(const pool::Access& access, node::ChangeQueue& changes, FeedOptions options);

  // Sends what has changed; after a loss, everything. @return batches
  std::size_t advance(const Sink& sink);
  // Begins the answer to a subscriber that wants all batches from number `first` on. The feed must be current.
  Replay begin_replay(std::uint64_t first);
  // The next batch of an answer; null: it has ended. An answer that was read so slowly that its next batch is
  // not kept any more begins anew, with a snapshot. The feed must be current.
  SharedMessage next_of(Replay& replay);
  // Frees the snapshot. Answers that have not ended begin anew.
  void forget_snapshot() { snapshot_ = {}; }

  // Of the next live batch.
  std::uint64_t next_sequence() const { return next_; }
  // False: changes were lost and the directory was not read to the end since; then there is no replay.
  bool is_current() const { return is_current_; }

 private:
  // One batch of a snapshot: all is cleared, or runs of blocks.
  struct Part {
    std::uint32_t namespace_id = 0;
    std::vector<node::Run> runs = {};
    std::size_t blocks = 0;
  };
  struct Snapshot {
    std::uint64_t id = 0;    // 0: there is none
    std::uint64_t next = 0;  // number of the live batch after it
    std::vector<SharedMessage> batches = {};
  };
  class Pending;  // blocks that will be one event

  std::size_t send_changes(const Sink& sink);
  void send_batch(std::uint32_t namespace_id, const Sink& sink);
  void keep(SharedMessage message);
  bool is_kept(std::uint64_t sequence) const;
  const Snapshot& current_snapshot();
  void begin_with_snapshot(Replay& replay);
  std::vector<Part> plan_snapshot() const;
  void fill_batch(const Part& part);
  SharedMessage take_batch(std::uint32_t namespace_id, std::uint64_t sequence);
  std::string topic_of(std::uint32_t namespace_id);

  const pool::Access& access_;
  node::ChangeQueue& changes_;
  const FeedOptions options_;
  node::Mirror mirror_;
  EventBatch batch_;
  std::vector<BlockHash> namespaces_;  // digests; id - 1
  std::uint64_t next_;
  bool is_current_ = false;
  std::deque<SharedMessage> kept_;
  std::size_t kept_bytes_ = 0;
  Snapshot snapshot_;
  std::uint64_t snapshots_ = 0;  // made so far
};

}  // namespace cachalot::events
