// Pools for benchmarks, in anonymous memory: with a keeper in a process of its own on the other
// core, or with one in this thread, which is driven while a client waits.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "measure.h"
#include "os/child.h"
#include "pool/pool.h"
#include "rpc/waiter.h"

namespace cachalot::apps::bench {

struct PoolShape {
  memory::DomainKind domain = memory::DomainKind::kNoncoherent;
  std::uint64_t block_bytes = 64;
  std::uint32_t capacity_blocks = 1024;
  std::uint32_t slack_blocks = 1024;
};
// @errors as pool::Pool::create
Result<pool::Pool> make_pool(const PoolShape& shape);

// A pool whose keeper runs in a child process.
class ServedPool {
 public:
  static Result<ServedPool> start(const PoolShape& shape, const Cores& cores);

  pool::Pool& pool() { return *pool_; }
  Result<pool::PoolClient> attach(const pool::ClientOptions& options = {});
  std::uint64_t keeper_cpu_ns() const { return cpu_ns_of(keeper_.pid()); }

 private:
  ServedPool(pool::Pool pool, os::Child keeper)
      : pool_(std::make_unique<pool::Pool>(std::move(pool))), keeper_(std::move(keeper)) {}

  std::unique_ptr<pool::Pool> pool_;
  os::Child keeper_;
};

// Attaches to a pool whose keeper is starting. @errors as Pool::attach
Result<pool::PoolClient> attach_when_served(pool::Pool& pool, const pool::ClientOptions& options);

// A pool whose keeper and client share the calling thread.
class InlinePool {
 public:
  static Result<InlinePool> start(const PoolShape& shape);

  pool::Pool& pool() { return *pool_; }
  pool::Keeper& keeper() { return keeper_->keeper(); }
  pool::Client& client() const { return *client_; }

 private:
  // What a client waits with: it lets the keeper work.
  class KeeperWaiter final : public rpc::Waiter {
   public:
    explicit KeeperWaiter(pool::Keeper& keeper) : keeper_(&keeper) {}
    void wait(std::uint32_t) override { keeper_->poll(); }

   private:
    pool::Keeper* keeper_;
  };
  InlinePool() = default;

  // The client is destroyed first: its detach needs all others.
  std::unique_ptr<pool::Pool> pool_;
  std::unique_ptr<base::SteadyClock> clock_;
  std::unique_ptr<pool::PoolKeeper> keeper_;
  std::unique_ptr<KeeperWaiter> waiter_;
  std::unique_ptr<pool::Client> client_;
};

// The n-th block's name.
inline BlockHash bench_hash(std::uint64_t n) {
  return {base::mix64(2 * n), base::mix64(2 * n + 1)};
}

// Puts blocks first, first + 1, … of `bytes` each, in chains of `chain_blocks` (1: only roots),
// `count` in all, a multiple of it.
Status fill(pool::Client& client, std::uint64_t first, std::uint64_t count,
            std::uint32_t chain_blocks, std::span<const std::byte> bytes);

}  // namespace cachalot::apps::bench
