#include "pool_fixture.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "os/topology.h"

namespace cachalot::apps::bench {

Result<pool::Pool> make_pool(const PoolShape& shape) {
  pool::CreateOptions options;
  options.paths = {"memfd:bench"};
  pool::Geometry& g = options.geometry;
  g.domain = shape.domain;
  g.block_bytes = shape.block_bytes;
  g.capacity_blocks = shape.capacity_blocks;
  g.blocks = shape.capacity_blocks + shape.slack_blocks;
  g.directory_slots = pool::rated_directory_slots(shape.capacity_blocks);
  g.clients = 8;
  return pool::Pool::create(options);
}

Result<pool::PoolClient> attach_when_served(pool::Pool& pool, const pool::ClientOptions& options) {
  constexpr std::uint64_t kPatienceNs = 20'000'000'000;
  const std::uint64_t start = now_ns();
  for (;;) {
    Result<pool::PoolClient> client = pool.attach(options);
    if (client || client.error().code != Code::kNoKeeper || now_ns() - start > kPatienceNs) {
      return client;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Result<ServedPool> ServedPool::start(const PoolShape& shape, const Cores& cores) {
  CACHALOT_TRY_ASSIGN(pool::Pool pool, make_pool(shape));
  const std::vector<std::string> paths = pool.paths();
  CACHALOT_TRY_ASSIGN(os::Child keeper, os::Child::start([&] {
                        (void)os::pin_to_core(cores.other);
                        Result<pool::Pool> opened = pool::Pool::open(paths);
                        if (!opened) return 1;
                        Result<pool::PoolKeeper> serving = opened->serve({});
                        if (!serving) return 1;
                        const std::atomic<bool> never{false};
                        (void)serving->run(never);
                        return 0;
                      }));
  return ServedPool(std::move(pool), std::move(keeper));
}

Result<pool::PoolClient> ServedPool::attach(const pool::ClientOptions& options) {
  return attach_when_served(*pool_, options);
}

Result<InlinePool> InlinePool::start(const PoolShape& shape) {
  InlinePool out;
  CACHALOT_TRY_ASSIGN(pool::Pool made, make_pool(shape));
  out.pool_ = std::make_unique<pool::Pool>(std::move(made));
  pool::KeeperOptions keeper;
  keeper.use_doorbells = false;
  CACHALOT_TRY_ASSIGN(pool::PoolKeeper serving, out.pool_->serve(keeper));
  out.keeper_ = std::make_unique<pool::PoolKeeper>(std::move(serving));
  out.clock_ = std::make_unique<base::SteadyClock>();
  out.waiter_ = std::make_unique<KeeperWaiter>(out.keeper_->keeper());
  pool::ClientOptions client;
  client.use_doorbells = false;
  CACHALOT_TRY_ASSIGN(
      out.client_, pool::Client::attach(out.pool_->access(), 0, client, *out.waiter_, *out.clock_));
  return out;
}

Status fill(pool::Client& client, std::uint64_t first, std::uint64_t count,
            std::uint32_t chain_blocks, std::span<const std::byte> bytes) {
  if (chain_blocks == 1) {
    for (std::uint64_t n = first; n < first + count; ++n) {
      CACHALOT_TRY(client.post_put(nullptr, {bench_hash(n), bytes}));
    }
    return client.drain();
  }
  std::vector<pool::PutItem> items(chain_blocks);
  std::vector<pool::Verdict> verdicts(chain_blocks);
  for (std::uint64_t chain = first; chain < first + count; chain += chain_blocks) {
    for (std::uint32_t i = 0; i < chain_blocks; ++i) items[i] = {bench_hash(chain + i), bytes};
    CACHALOT_TRY(client.put(nullptr, items, verdicts));
    if (std::any_of(verdicts.begin(), verdicts.end(),
                    [](pool::Verdict v) { return v != pool::Verdict::kCommitted; })) {
      return Error::make(Code::kRefused, "bench: the keeper refused to publish a chain");
    }
  }
  return {};
}

}  // namespace cachalot::apps::bench
