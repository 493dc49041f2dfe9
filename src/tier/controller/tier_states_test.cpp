// Random requests that overlap in time, in tiers that are too small for them: bytes that are cached are always those of
// the tokens, pages of open requests never change, and the books agree.
#include <cachalot/tier.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "testing/client/tier_engine.h"

namespace cachalot::client {
namespace {

constexpr std::uint32_t kBlock = 4;

// A prompt of a small tree: a common beginning, a branch, and a length.
Tokens prompt_of(std::uint32_t branch, std::uint32_t blocks) {
  Tokens tokens;
  for (std::uint32_t block = 0; block < blocks; ++block) {
    const std::uint32_t name = block < 2 ? block : 1000 * (branch + 1) + block;
    for (std::uint32_t i = 0; i < kBlock; ++i) tokens.push_back(name * kBlock + i);
  }
  tokens.push_back(77);
  return tokens;
}

struct Open {
  RequestId id;
  Tokens prompt;
  std::optional<TierStart> start;
  bool is_committed = false;
};

class Walk {
 public:
  Walk(const TieredCacheOptions& options, std::uint32_t blocks, GpuMachine* gpus = nullptr)
      : engine_(options, blocks, 1, gpus) {}

  void open(std::uint32_t branch, std::uint32_t blocks) {
    const Tokens prompt = prompt_of(branch, blocks);
    const Result<RequestId> id = engine_.cache().open(prompt);
    RC_ASSERT(id.ok());
    open_.push_back({*id, prompt, std::nullopt});
  }
  void start(std::size_t i) {
    Open& one = open_[i];
    const Result<TierStart> start = engine_.cache().start(one.id);
    if (one.start) {
      RC_ASSERT(!start.ok());
      return;
    }
    if (!start) {
      RC_ASSERT(start.error().code == Code::kNoSpace);
      return;
    }
    one.start = *start;
    check_cached(one);
    engine_.compute(one.prompt, start->pages, start->cached_tokens);
  }
  void check_cached(const Open& one) {
    for (std::uint32_t layer = 0; layer < engine_.geometry().layers; ++layer) {
      RC_ASSERT(engine_.cache().wait_layer(one.id, layer).ok());
      RC_ASSERT(engine_.holds(one.prompt, one.start->pages, one.start->cached_tokens, layer));
    }
  }
  void commit(std::size_t i) {
    Open& one = open_[i];
    const Status committed = engine_.cache().commit(one.id, one.prompt);
    RC_ASSERT(committed.ok() == one.start.has_value());
    one.is_committed |= committed.ok();
  }
  void close(std::size_t i) {
    check_pages(open_[i]);
    RC_ASSERT(engine_.cache().close(open_[i].id).ok());
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  // All whole blocks of a started request are as they were computed or found.
  void check_pages(const Open& one) {
    if (!one.start) return;
    for (std::uint32_t layer = 0; layer < engine_.geometry().layers; ++layer) {
      RC_ASSERT(engine_.cache().wait_layer(one.id, layer).ok());
      RC_ASSERT(engine_.holds(one.prompt, one.start->pages, one.prompt.size() - 1, layer));
    }
  }
  void check() {
    for (const Open& one : open_) check_pages(one);
    RC_ASSERT(engine_.cache().is_valid());
  }
  void end() {
    while (!open_.empty()) close(0);
    RC_ASSERT(engine_.cache().flush(20'000'000'000).ok());
    RC_ASSERT(engine_.cache().is_valid());
    RC_ASSERT(engine_.cache().clear().ok());
    const TierStatistics s = engine_.cache().statistics();
    RC_ASSERT(s.free_device_blocks == s.device_blocks);
    RC_ASSERT(s.free_host_blocks == s.host_blocks);
  }
  std::size_t count() const { return open_.size(); }
  TieredCache& cache() { return engine_.cache(); }

 private:
  TierEngine engine_;
  std::vector<Open> open_;
};

TieredCacheOptions random_options() {
  TieredCacheOptions options;
  options.shared.model = "test-model@1";
  options.shared.geometry = small_geometry();
  options.prefetch.threshold_tokens = kBlock;
  options.prefetch.stop = PrefetchStop::kBestEffort;
  options.host_ratio = *rc::gen::element(0.0, 1.5, 3.0);
  options.host_layout = *rc::gen::elementOf(host_layout_names());
  if (options.host_ratio != 0) {
    options.exclusive = *rc::gen::arbitrary<bool>();
    options.writes =
        *rc::gen::element(TierWrites::kThrough, TierWrites::kSelective, TierWrites::kBack);
  }
  return options;
}

void walk(Walk& walk, const std::function<void()>& other) {
  const auto below = [](std::size_t count) { return *rc::gen::inRange<std::size_t>(0, count); };
  const int steps = *rc::gen::inRange(1, 60);
  for (int step = 0; step < steps; ++step) {
    const int choice = *rc::gen::inRange(0, 10);
    if (walk.count() == 0 || choice < 3) {
      walk.open(*rc::gen::inRange(0u, 5u), *rc::gen::inRange(1u, 7u));
    } else if (choice < 5) {
      walk.start(below(walk.count()));
    } else if (choice < 7) {
      walk.commit(below(walk.count()));
    } else if (choice < 9) {
      walk.close(below(walk.count()));
    } else {
      other();
    }
    walk.check();
  }
  walk.end();
}

RC_GTEST_PROP(TierStates, CachedBytesAreThoseOfTheTokens, ()) {
  Walk one(random_options(), 16);
  walk(one, [] {});
}

// The same with L1 on a GPU, whose work is done as late as its streams allow.
RC_GTEST_PROP(TierStates, CachedBytesAreThoseOfTheTokensOnAGpu, ()) {
  GpuMachine gpus;
  {
    Walk one(random_options(), 16, &gpus);
    walk(one, [] {});
  }
  RC_ASSERT(gpus.fake.faults + gpus.fake.refused == 0);
}

// With a pool that comes, goes, and is too small, and another engine that uses it.
RC_GTEST_PROP(TierStates, CachedBytesAreThoseOfTheTokensWithAPool, ()) {
  Cluster cluster(small_geometry().block_bytes(), 48, "noncoherent");
  TieredCacheOptions options = random_options();
  options.shared = cluster.client_options();
  options.shared.grant_blocks = 4;
  Walk one(options, 16);
  TierEngine other(options, 16);
  walk(one, [&] {
    if (*rc::gen::arbitrary<bool>()) {
      other.serve(prompt_of(*rc::gen::inRange(0u, 5u), 6));
    } else if (one.cache().has_pool()) {
      RC_ASSERT(one.cache().detach_pool().ok());
    } else {
      const std::vector<std::string> path = {cluster.path()};
      RC_ASSERT(one.cache().attach_pool(path).ok());
    }
  });
}

}  // namespace
}  // namespace cachalot::client
