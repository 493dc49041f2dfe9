// Publishes the KV events of one pool: a thread of its own between the keeper and its subscribers.
//
//   Publisher publisher(keeper, pool.access(), endpoints, sockets, options);
//   …the keeper runs…
//
// The keeper never waits for it: a queue lies between them, and when that is full the publisher reads the
// directory and publishes everything anew.
//
// @threads one; the thread is the publisher's
#pragma once

#include <atomic>
#include <optional>
#include <thread>

#include "base/rare_line.h"
#include "node/changes/change_queue.h"
#include "node/events/feed.h"
#include "node/events/replays.h"
#include "node/events/sockets.h"
#include "pool/keeper/service/keeper.h"

namespace cachalot::events {

class Publisher {
 public:
  // Observes the keeper, which does not run meanwhile, as in the destructor.
  // @param access   outlives the publisher, as the keeper does
  // @param sockets  opened before; none: the thread opens `endpoints`, and tries again every second while
  //                 another process has the address, as a keeper that hangs does
  Publisher(pool::Keeper& keeper, const pool::Access& access, Endpoints endpoints,
            std::optional<Sockets> sockets, FeedOptions options);
  // Publishes what is left, and ends.
  ~Publisher();
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

 private:
  void run();
  void open_sockets();

  pool::Keeper& keeper_;
  const Endpoints endpoints_;
  node::ChangeQueue changes_;
  Feed feed_;  // its thread's, as are the next two
  Replays replays_{feed_};
  std::optional<Sockets> sockets_;
  base::RareLine waiting_line_;
  std::atomic<bool> stop_{false};  // relaxed: the join orders everything else
  std::thread thread_;
};

}  // namespace cachalot::events
