// Which threads copy which bytes, and on which cores they may run. That the bytes are right: copy_engine_test.cpp, too.
#include "kv/cpu/in_homes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "kv/cpu/cpu_engine.h"
#include "memory/forwarding_domain.h"
#include "testing/kv/reference.h"

namespace cachalot::kv {
namespace {

using Cores = std::vector<int>;
using Counts = std::vector<std::size_t>;

// Remembers which thread copied from and to each home, and on which cores that thread could run.
class WitnessDomain final : public memory::ForwardingDomain {
 public:
  struct Copy {
    std::size_t home;
    std::thread::id thread;
    Cores cores;
  };
  explicit WitnessDomain(const CopyHomes& homes) : homes_(homes) {}

  void write_bulk(void* to, const void* from, std::size_t bytes, memory::FusedHash* hash) override {
    note(to, true);
    ForwardingDomain::write_bulk(to, from, bytes, hash);
  }
  void read_prepared(const memory::CopyRun* runs, std::size_t count,
                     memory::FusedHash* hash) override {
    for (std::size_t i = 0; i < count; ++i) note(runs[i].from, false);
    ForwardingDomain::read_prepared(runs, count, hash);
  }
  void order() override {
    const std::lock_guard lock(mutex_);
    unordered_.erase(std::this_thread::get_id());
  }

  std::vector<Copy> take() { return std::exchange(copies_, {}); }
  std::size_t unordered_threads() const { return unordered_.size(); }

 private:
  void note(const void* at, bool writes) {
    Copy copy{homes_.of(static_cast<const std::byte*>(at)), std::this_thread::get_id(),
              os::online_cores()};
    const std::lock_guard lock(mutex_);
    if (writes) unordered_.insert(copy.thread);
    copies_.push_back(std::move(copy));
  }

  const CopyHomes& homes_;
  std::mutex mutex_;
  std::vector<Copy> copies_;
  std::set<std::thread::id> unordered_;
};

constexpr std::uint32_t kBlocks = 12;
constexpr std::uint64_t kBlockBytes = 256 << 10;

KvGeometry geometry() {
  KvGeometry g;
  g.layers = 4;
  g.kv_heads = 8;
  g.head_dim = 128;
  g.block_tokens = 16;
  return g;
}

struct Paged {
  explicit Paged(std::uint64_t seed)
      : cache({geometry(), 0, kBlocks, 0}, (*find_layout("vllm_kbnhc"))->grouped, seed),
        view(*EngineCache::make(cache.shape, "vllm_kbnhc", cache.views())) {}
  reference::Cache cache;
  EngineCache view;
};

// Two devices, blocks on them in turn, from the pages of one engine and to those of another.
class InHomes : public testing::Test {
 protected:
  InHomes() : cores_(os::online_cores()), memory_(kBlocks * kBlockBytes / memory::kLineBytes) {
    for (std::uint32_t i = 0; i < kBlocks; ++i) {
      extents_.push_back({base() + (i % 2 * kBlocks / 2 + i / 2) * kBlockBytes, kBlockBytes});
      pages_.push_back(kBlocks - 1 - i);
    }
    for (std::uint32_t i = 0; i < kBlocks; ++i)
      blocks_.push_back({{&extents_[i], 1}, {&pages_[i], 1}});
  }
  void SetUp() override {
    if (cores_.size() < 2) GTEST_SKIP() << "needs two cores";
  }
  std::byte* base() { return reinterpret_cast<std::byte*>(memory_.data()); }

  void place(const Cores& first, const Cores& second) {
    auto homes = std::make_shared<CopyHomes>();
    homes->add(base(), kBlocks / 2 * kBlockBytes, first);
    homes->add(base() + kBlocks / 2 * kBlockBytes, kBlocks / 2 * kBlockBytes, second);
    homes_ = homes;
    domain_ = std::make_unique<WitnessDomain>(*homes_);
  }
  CpuEngine engine(Paged& paged, std::uint32_t threads) {
    return *CpuEngine::make(paged.view, default_block_order(), *domain_, {threads, homes_});
  }
  // Copies in a thread that may run on one core, and expects that it still may at the end, and that all other threads
  // could run on the cores of the home whose bytes they copied only.
  // @return how many threads copied from or to each home
  template <class F>
  Counts threads_of(int core, std::set<std::size_t> callers_homes, F copy) {
    std::vector<std::set<std::thread::id>> threads(homes_->count());
    std::thread([&] {
      ASSERT_TRUE(os::pin_to_core(core));
      ASSERT_TRUE(copy());
      EXPECT_EQ(os::online_cores(), Cores({core})) << "the caller's own";
      EXPECT_EQ(domain_->unordered_threads(), 0u);
      std::set<std::size_t> found;
      for (const WitnessDomain::Copy& one : domain_->take()) {
        threads[one.home].insert(one.thread);
        if (one.thread == std::this_thread::get_id()) {
          found.insert(one.home);
        } else {
          EXPECT_EQ(one.cores, homes_->cores(one.home));
        }
      }
      EXPECT_EQ(found, callers_homes);
    }).join();
    Counts counts;
    for (const auto& of_home : threads) counts.push_back(of_home.size());
    return counts;
  }

  Cores cores_;
  std::vector<memory::Line> memory_;
  std::vector<memory::Extent> extents_;
  std::vector<std::uint32_t> pages_;
  std::vector<BlockCopy> blocks_;
  std::shared_ptr<const CopyHomes> homes_;
  std::unique_ptr<WitnessDomain> domain_;
  Paged from_{1};
};

TEST_F(InHomes, TheBytesOfEachDeviceAreCopiedOnItsCores) {
  place({cores_[0]}, {cores_[1]});
  const std::vector<std::uint32_t> tokens = [] {
    std::vector<std::uint32_t> all(kBlocks * 16);
    for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = i;
    return all;
  }();
  const std::vector<std::span<const std::uint32_t>> lists(4 * 8, tokens);
  std::vector<RowBlock> rows;
  for (std::uint32_t i = 0; i < kBlocks; ++i) rows.push_back({blocks_[i].pool, i});
  for (const std::uint32_t threads : {1u, 2u, 5u}) {
    const Counts wanted = threads == 5 ? Counts{2, 3} : Counts{1, 1};
    for (const std::size_t home : {std::size_t{0}, std::size_t{1}}) {
      std::fill(memory_.begin(), memory_.end(), memory::Line());
      Paged to(2), others(3);
      const auto in = [&](auto copy) { return threads_of(cores_[home], {home}, copy); };
      EXPECT_EQ(in([&] { return engine(from_, threads).gather(blocks_).ok(); }), wanted);
      EXPECT_EQ(in([&] { return engine(to, threads).scatter(blocks_).ok(); }), wanted);
      EXPECT_EQ(to.cache.memory, from_.cache.memory);
      const Result<RowPlan> plan = RowPlan::make(others.view, default_block_order(),
                                                 {lists, 8, 0, pages_, TokenPlace::kOwn, kBlocks});
      EXPECT_EQ(in([&] { return engine(others, threads).scatter_rows(*plan, rows).ok(); }), wanted);
      EXPECT_EQ(others.cache.memory, from_.cache.memory);
    }
  }
}

TEST_F(InHomes, TheCallerCopiesFewBytesAndThoseThatAnyCoreMay) {
  place({cores_[0]}, {cores_[1]});
  const std::span<const BlockCopy> few = std::span(blocks_).first(6);  // three of each device
  EXPECT_EQ(threads_of(cores_[0], {0, 1}, [&] { return engine(from_, 4).gather(few).ok(); }),
            Counts({1, 1}));
  // Of 12 blocks one layer of four.
  const LayerRange layer{1, 2};
  EXPECT_EQ(
      threads_of(cores_[0], {0, 1}, [&] { return engine(from_, 4).gather(blocks_, layer).ok(); }),
      Counts({1, 1}));
  EXPECT_EQ(threads_of(cores_[0], {}, [&] { return engine(from_, 4).gather({}).ok(); }),
            Counts({0, 0}));
  place({}, {cores_[1]});
  EXPECT_EQ(threads_of(cores_[0], {0}, [&] { return engine(from_, 1).gather(blocks_).ok(); }),
            Counts({1, 1}));
}

TEST_F(InHomes, CoresThatMayNotBeUsedDoNotStopACopy) {
  place({8190}, {8191});
  Paged to(2);
  ASSERT_TRUE(engine(from_, 2).gather(blocks_));
  ASSERT_TRUE(engine(to, 2).scatter(blocks_));
  EXPECT_EQ(to.cache.memory, from_.cache.memory);
}

TEST(CopyHomes, PartsWithTheSameCoresAreOneHome) {
  std::vector<std::byte> memory(64);
  CopyHomes homes;
  homes.add(&memory[16], 16, {0, 1});
  homes.add(&memory[32], 16, {2});
  homes.add(&memory[48], 16, {0, 1});
  EXPECT_EQ(homes.count(), 2u);
  const std::size_t of[] = {homes.of(&memory[31]), homes.of(&memory[32]), homes.of(&memory[63]),
                            homes.of(&memory[0])};  // the last one: memory of no part
  EXPECT_EQ(std::vector<std::size_t>(std::begin(of), std::end(of)), Counts({0, 1, 0, 0}));
}

}  // namespace
}  // namespace cachalot::kv
