// One attachment to a pool that many threads use.
//
// Invariants
//   1. pool::Client is called under the lock only. Lookups, copies and validation are not: they go by
//      readers that keep nothing, so that no reader waits for a writer, or for a keeper.
//   2. Between reserve() and end_copies() the lock is not held: others go on while blocks are copied.
//   3. A call's deadline bounds what it waits for: the lock, the keeper, and the next keeper.
//
// @threads  any, but for open() and close()
#pragma once

#include <cachalot/client.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "client/counters.h"
#include "client/gpus.h"
#include "pool/pool.h"

namespace cachalot::client {

// When a call has to be done.
class Deadline {
 public:
  static Deadline after(std::uint64_t timeout_ns);
  bool is_over() const;
  // @errors kTimeout, if it is over
  Status check(const char* what) const;
  // On the clock of pool::PoolClient; kNoTimeout: never.
  std::uint64_t at_ns() const { return at_ns_; }

 private:
  std::uint64_t at_ns_ = kNoTimeout;
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  // Layer by layer loads and stores share it with the client.
  static Result<std::shared_ptr<Session>> open(const ClientOptions& options,
                                               const std::string& fingerprint, Gpus::Open open_gpu);

  // What a lost GPU reaches of the pool stays mapped until the process ends.
  ~Session();

  const pool::Access& access() const { return pool_.access(); }
  Counters& counters() { return counters_; }
  Gpus& gpus() { return gpus_; }
  bool writes_checksums() const { return writes_checksums_; }
  bool verifies_checksums() const { return verifies_checksums_; }

  bool is_forked() const;
  // @errors kUnsupported: in a forked child
  Status check_process() const;
  // @errors kUnsupported: in a forked child; kInvalidArgument: after close()
  Status check_usable() const;

  std::size_t lookup(std::span<const BlockHash> hashes, pool::KeeperView& view,
                     std::span<pool::Found> found) const;
  void find_each(std::span<const BlockHash> hashes, std::span<bool> is_published) const;
  std::size_t validate(const pool::KeeperView& view, std::span<const pool::Found> found) const {
    return pool::DirectoryReader(pool_.access()).validate(view, found);
  }
  // Notes the deepest block of a hit. Never waits: where a writer holds the lock, it is noted later.
  void report_hit(const pool::Found& deepest);

  // See ReadPin.
  Result<std::uint64_t> pin();
  // Never waits: where somebody holds the lock, the pin ends with the next call.
  void unpin(std::uint64_t pin);

  // @errors as pool::Client's; kTimeout: the deadline has passed, whatever was waited for
  Result<pool::Reservation> reserve(std::uint32_t blocks, const Deadline& deadline = {});
  Status begin_copies(pool::Reservation& reservation);
  void end_copies(pool::Reservation& reservation) { client().end_copies(reservation); }
  Status commit(const BlockHash* parent, pool::Reservation reservation,
                std::span<const pool::WrittenBlock> blocks, std::span<pool::Verdict> verdicts,
                const Deadline& deadline = {}, bool goes_on = false);
  // Never waits: where somebody holds the lock, the blocks go back with the next call.
  void give_back(pool::Reservation reservation);
  // Somebody may store into the blocks for as long as this process lives: pool::Client::withhold.
  void withhold(pool::Reservation reservation) { client().withhold(std::move(reservation)); }

  std::uint64_t reattachments() const { return reattachments_.load(std::memory_order_relaxed); }
  // Waits for who holds the lock. @errors as pool::PoolClient::detach, Gpu::check_released
  Status close();

 private:
  // The lock, held; what came back while another had it is the client's again.
  class Turn {
   public:
    Turn(Session& session, const Deadline& deadline)
        : session_(&session), is_held_(session.lock(deadline)) {}
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() {
      if (is_held_) session_->unlock();
    }
    explicit operator bool() const { return is_held_; }

   private:
    Session* session_;
    const bool is_held_;
  };

  Session(pool::Pool pool, pool::PoolClient client, Gpus::Open open_gpu);
  pool::Client& client() { return client_.client(); }
  bool lock(const Deadline& deadline);
  bool try_lock();
  void unlock();
  void take_late();

  pool::Pool pool_;
  pool::PoolClient client_;
  Gpus gpus_;  // they go before the pool does
  std::uint64_t forks_;
  bool writes_checksums_, verifies_checksums_;
  std::atomic<bool> is_closed_ = false;
  std::atomic<std::uint64_t> reattachments_ = 0;  // relaxed: a count
  Counters counters_;

  // Whose turn it is with pool::Client: a lock that can be waited for until a deadline.
  std::mutex turn_mutex_;
  std::condition_variable turn_ended_;
  bool is_taken_ = false;

  // What nobody could tell the client yet: hits, as many as go into one request (older ones are dropped),
  // and blocks that came back.
  std::mutex late_mutex_;
  std::vector<pool::Found> late_hits_;
  std::vector<pool::Reservation> late_reservations_;
  std::vector<std::uint64_t> late_unpins_;
};

// While it lives, blocks that are looked up are not used again.
class ReadPin {
 public:
  // @param session  outlives it
  // @errors kUnsupported: ClientOptions::pinned_reads was not set; as pool::Client::pin
  static Result<ReadPin> take(Session& session) {
    CACHALOT_TRY_ASSIGN(const std::uint64_t pin, session.pin());
    return ReadPin(session, pin);
  }
  ReadPin(ReadPin&& from) noexcept
      : session_(std::exchange(from.session_, nullptr)), pin_(from.pin_) {}
  ReadPin& operator=(ReadPin&&) = delete;
  ~ReadPin() {
    if (session_ != nullptr && !session_->is_forked()) session_->unpin(pin_);
  }

 private:
  ReadPin(Session& session, std::uint64_t pin) : session_(&session), pin_(pin) {}
  Session* session_;
  std::uint64_t pin_;
};

}  // namespace cachalot::client
