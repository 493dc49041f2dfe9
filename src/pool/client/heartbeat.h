// Shows the keeper that a client lives, and notices that the keeper has released the client.
//
// A thread of its own may renew the attachment while the engine computes. So this has its own copy of
// what the renewal needs, under its own lock.
//
// @threads any
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "pool/client/client_options.h"
#include "pool/reader/directory.h"

namespace cachalot::pool {

class Heartbeat {
 public:
  explicit Heartbeat(const ClientContext& context)
      : context_(context), directory_(context.access) {}

  // From here on the beats are of this incarnation. It is not renewed before start().
  void prepare(std::uint32_t incarnation, const KeeperView& keeper);
  void start() { set_on(true); }
  void stop() { set_on(false); }
  // R1: the line may have another writer after this. This writes no more of it.
  void end();
  bool has_ended() const { return has_ended_; }  // @threads the client's

  // Counts the heartbeat up.
  void beat();
  // beat(), and looks for a loss. @return false: it is stopped, nothing was done
  bool renew();
  // Whether the keeper still knows this incarnation; if not, is_lost().
  void look_for_loss();
  // The number of the next beat.
  std::uint64_t next_beat() const;

  // The keeper has released this client, another keeper rules, or the mailbox is damaged.
  bool is_lost() const { return is_lost_.load(std::memory_order_relaxed); }
  void set_lost(bool is_lost) { is_lost_.store(is_lost, std::memory_order_relaxed); }

 private:
  void set_on(bool is_on);
  void look_under_lock();

  const ClientContext& context_;
  const DirectoryReader directory_;
  mutable std::mutex mutex_;
  bool is_on_ = false;
  bool has_ended_ = false;  // written under the lock, by the client's thread
  std::uint32_t incarnation_ = 0, keeper_ = 0, epoch_ = 0;
  std::uint64_t beats_ = 0;
  std::atomic<bool> is_lost_ = false;  // relaxed: it orders nothing
};

}  // namespace cachalot::pool
