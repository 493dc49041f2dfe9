// One attachment to a pool, shared by many threads.
//
// Invariants
//   1. pool::Client is called under the lock only. Lookups, copies and validation need no lock: they use
//      stateless readers, so a reader never waits for a writer or the keeper.
//   2. The lock is not held between begin_write() and commit(): other threads continue during copies.
//   3. A call's deadline limits all its waits: for the lock, the keeper, and the next keeper.
//
// @threads  any, except open() and close()
#pragma once

#include <cachalot/client.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "client/damaged_blocks.h"
#include "client/hit_rate/counters.h"
#include "client/hit_rate/prompt_counts.h"
#include "client/turn_lock.h"
#include "kv/cuda/gpus.h"
#include "pool/pool.h"
#include "pool/reader/validated_read.h"

namespace cachalot::client {

class Session : public std::enable_shared_from_this<Session> {
 public:
  // Layer loads and stores share the session with the client.
  // @param options  model, geometry and layout are not looked at: `fingerprint` is the namespace
  // @param name     of the namespace, as Client::namespaces() shows it
  // @param fits     whether this pool's blocks do: asked before the keeper hears of the namespace, of which a pool has 256
  // @param chains   that one call loads or stores: HeadGroups::count
  static Result<std::shared_ptr<Session>> open(
      const ClientOptions& options, const std::string& fingerprint, const std::string& name,
      kv::Gpus::Open open_gpu, const std::function<Status(const pool::Geometry&)>& fits,
      std::uint32_t chains = 1);

  // Pool memory that a lost GPU may access stays mapped until the process ends.
  ~Session();

  const pool::Pool& pool() const { return pool_; }
  const pool::Access& access() const { return pool_.access(); }
  Counters& counters() { return *counters_; }
  PromptCounts& prompts() { return prompts_; }
  kv::Gpus& gpus() { return gpus_; }
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
  // lookup(), of blocks that will be read. `room` outlives what it returns.
  pool::ValidatedRead begin_read(std::span<const BlockHash> hashes,
                                 std::span<pool::Found> room) const;
  // Reports the deepest blocks of a hit, one of each chain. Never blocks: if the lock is held, the next lock holder
  // reports them.
  void report_hits(std::span<const pool::Found> deepest);
  // The same for the beginning of a chain that this client will store. Nothing is reported if the last call's reports
  // or commits were of this block and are younger than 10 s: a policy that counts uses would count one twice.
  void report_beginning(const pool::Found& deepest);

  // See ReadPin.
  Result<std::uint64_t> pin();
  // Never blocks. If the lock is held, the next lock holder ends the pin.
  void unpin(std::uint64_t pin);

  // @errors as pool::Client; kTimeout: the deadline has passed during any wait
  Result<pool::Reservation> reserve(std::uint32_t blocks, const Deadline& deadline = {});
  // The same, and begins at once: no other thread's call comes in between, which might void it.
  Result<pool::OpenReservation> begin_write(std::uint32_t blocks, const Deadline& deadline = {});
  Status commit(const BlockHash* parent, pool::WrittenReservation reservation,
                std::span<const pool::WrittenBlock> blocks, std::span<pool::Verdict> verdicts,
                const Deadline& deadline = {}, bool goes_on = false);

  // See pool::KeeperRequests.
  Result<pool::StorageAnswer> ask_storage(std::span<const BlockHash> hashes, std::uint32_t flags,
                                          const Deadline& deadline = {});

  // See Client.
  Result<Context> create_context(const BlockHash& last, std::uint64_t seconds);
  Result<Context> renew_context(std::uint64_t handle, std::uint64_t seconds);
  Status drop_context(std::uint64_t handle);
  Result<Context> retain(std::string_view session, const BlockHash& last, std::uint64_t seconds);

  // Uses in which this session's loads found wrong bytes. note_damage() counts each once.
  DamagedBlocks& damaged() { return damaged_; }
  void note_damage(const pool::Entry& entry);
  // Whether the pool still has the use of the block that this session found damaged.
  bool has_damaged(const BlockHash& hash) const;
  // As OpaqueClient::drop_damaged. @errors also kTimeout: the deadline has passed
  Result<bool> drop_damaged(const BlockHash& hash, const Deadline& deadline = {});
  // False: the next call that needs the keeper attaches again first.
  bool is_attached() const { return !client_.client().is_lost(); }

  // True once: tokens of a store did not fit into the pool's notes.
  bool is_first_loss_of_tokens() {
    return !has_lost_tokens_.exchange(true, std::memory_order_relaxed);
  }

  std::uint64_t reattachments() const { return reattachments_.load(std::memory_order_relaxed); }
  // Blocks until the lock is free. @errors as pool::PoolClient::detach, Gpu::check_released
  Status close();

 private:
  // Has the keeper drop a block and all blocks after it. @errors kNotFound; as pool::Client
  Result<std::uint32_t> evict(const BlockHash& hash, const Deadline& deadline);

  // Holds the lock. Taking it passes the late hits, reservations and unpins to the client. Not in a forked child, which
  // lacks the thread that may hold it.
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

  // The last uses of blocks that the keeper was told of, as many as a call has chains.
  class LastUses {
   public:
    explicit LastUses(std::uint32_t chains) : uses_(chains) {}
    void add(const pool::BlockUse& use, std::uint64_t now_ns) {
      uses_[next_++ % uses_.size()] = {use, now_ns};
    }
    bool has_recent(const pool::BlockUse& use, std::uint64_t now_ns) const {
      constexpr std::uint64_t kRecentNs = 10'000'000'000;
      return std::any_of(uses_.begin(), uses_.end(), [&](const Use& known) {
        return now_ns - known.at_ns < kRecentNs && known.use.block == use.block &&
               known.use.generation == use.generation;
      });
    }

   private:
    struct Use {
      pool::BlockUse use{};
      std::uint64_t at_ns = 0;
    };
    std::vector<Use> uses_;
    std::size_t next_ = 0;
  };

  Session(pool::Pool pool, pool::PoolClient client, std::shared_ptr<Counters> counters,
          kv::Gpus::Open open_gpu, std::uint32_t chains, bool counts_prompts);
  bool lock(const Deadline& deadline);
  bool try_lock();
  void unlock();
  void take_late();

  pool::Pool pool_;
  pool::PoolClient client_;
  kv::Gpus gpus_;  // destroyed before the pool is unmapped
  std::uint64_t forks_;
  bool writes_checksums_, verifies_checksums_;
  std::atomic<bool> is_closed_ = false;
  std::atomic<bool> has_lost_tokens_ = false;     // relaxed: a mark
  std::atomic<std::uint64_t> reattachments_ = 0;  // relaxed: a counter
  std::shared_ptr<Counters> counters_;            // the pool's client publishes them
  PromptCounts prompts_;

  DamagedBlocks damaged_;

  TurnLock turn_;       // the lock of pool::Client
  LastUses last_uses_;  // under the lock

  // Added while the lock was held, for the next lock holder. Hits: at most kMostLateHits; later ones are dropped.
  static constexpr std::size_t kMostLateHits = 16;
  std::mutex late_mutex_;
  std::vector<pool::Found> late_hits_;
  std::vector<std::uint64_t> late_unpins_;
};

// While it exists, the pool does not reuse blocks that were looked up after it was taken.
class ReadPin {
 public:
  // @param session  outlives the pin
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
