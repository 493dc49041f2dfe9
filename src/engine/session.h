// One attachment to a pool that many threads use.
//
// Invariants
//   1. pool::Client is called under the lock only. Lookups, copies and validation are not: they go by
//      readers that keep nothing, so that no reader waits for a writer, or for a keeper.
//   2. Between reserve() and end_copies() the lock is not held: others go on while blocks are copied.
//
// @threads  any, but for open() and close()
#pragma once

#include <cachalot/client.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <vector>

#include "pool/pool.h"

namespace cachalot::engine {

// When a call has to be done.
class Deadline {
 public:
  static Deadline after(std::uint64_t timeout_ns);
  bool is_over() const;
  // @errors kTimeout, if it is over
  Status check(const char* what) const;

 private:
  std::uint64_t at_ns_ = kNoTimeout;
};

class Session {
 public:
  static Result<std::unique_ptr<Session>> open(const ClientOptions& options, const std::string& fingerprint);

  const pool::Access& access() const { return pool_.access(); }
  bool writes_checksums() const { return writes_checksums_; }
  bool verifies_checksums() const { return verifies_checksums_; }

  // @errors kUnsupported: in a forked child; kInvalidArgument: after close()
  Status check_usable() const;

  std::size_t lookup(std::span<const BlockHash> hashes, pool::KeeperView& view,
                     std::span<pool::Found> found) const;
  std::size_t validate(const pool::KeeperView& view, std::span<const pool::Found> found) const {
    return pool::DirectoryReader(pool_.access()).validate(view, found);
  }
  // Notes the deepest block of a hit. Never waits: where a writer holds the lock, it is noted later.
  void report_hit(const pool::Found& deepest);

  Result<pool::Reservation> reserve(std::uint32_t blocks);
  Status begin_copies(pool::Reservation& reservation);
  void end_copies(pool::Reservation& reservation) { client().end_copies(reservation); }
  Status commit(const BlockHash* parent, pool::Reservation reservation,
                std::span<const pool::WrittenBlock> blocks, std::span<pool::Verdict> verdicts);
  void give_back(pool::Reservation reservation);

  std::uint64_t reattachments() const;
  Status close();

 private:
  Session(pool::Pool pool, pool::PoolClient client);
  pool::Client& client() { return client_.client(); }

  pool::Pool pool_;
  mutable std::mutex mutex_;
  pool::PoolClient client_;
  std::uint64_t forks_;
  bool writes_checksums_, verifies_checksums_;
  std::atomic<bool> is_closed_ = false;

  // Hits that nobody could report yet; as many as go into one request, older ones are dropped.
  std::mutex reports_mutex_;
  std::vector<pool::Found> reports_;
};

}  // namespace cachalot::engine
