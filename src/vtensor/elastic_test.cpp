// Processes with real memory that share a device's chunks under load that goes back and forth.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "device_memory/memfd/memfd_backend.h"
#include "os/child.h"
#include "os/shared_file.h"
#include "vtensor/shared_budget.h"
#include "vtensor/vtensor_set.h"

namespace cachalot::vtensor {
namespace {

constexpr std::uint64_t kChunk = std::uint64_t{2} << 20;
constexpr std::uint64_t kChunks = 24, kGuaranteed = 4, kLoad = 20;

// One layer, one part of half a chunk: two tokens a chunk.
constexpr std::uint64_t kTokensAChunk = 2;

struct Engine {
  std::unique_ptr<device_memory::MemfdBackend> backend;
  std::unique_ptr<SharedBudget> budget;
  std::unique_ptr<VTensorSet> set;

  static Result<Engine> open(const std::string& path) {
    Engine engine;
    CACHALOT_TRY_ASSIGN(engine.backend, device_memory::MemfdBackend::open(
                                            {.source = device_memory::PageSource::kSmall}));
    CACHALOT_TRY_ASSIGN(engine.budget, SharedBudget::join({path, kChunks, kChunk, kGuaranteed}));
    CACHALOT_TRY_ASSIGN(
        engine.set,
        VTensorSet::open(*engine.backend, *engine.budget,
                         {.shape = {.layers = 1, .part_bytes = {kChunk / kTokensAChunk}},
                          .chunk_bytes = kChunk,
                          .max_tokens = 64,
                          .block_tokens = kTokensAChunk}));
    return engine;
  }

  // Until the others have given back what this takes. Null: another error.
  VTensor* create(std::uint64_t chunks) {
    for (;;) {
      const std::uint32_t given = budget->given();
      const auto created = set->create(chunks * kTokensAChunk, 64);
      if (created) return created->vtensor;
      if (created.error().code != Code::kNoSpace) return nullptr;
      budget->wait_given(given, ~std::uint64_t{0});
    }
  }
  // 20 chunks in requests that come one after the other; what they have written is there at the end.
  bool serve_load(unsigned char mark) {
    std::vector<VTensor*> running;
    for (std::uint64_t chunks = 0; chunks < kLoad; chunks += 5) {
      VTensor* const vtensor = create(5);
      if (vtensor == nullptr) return false;
      std::memset(reinterpret_cast<void*>(vtensor->base()), mark, 5 * kChunk);
      running.push_back(vtensor);
    }
    const bool was_all = set->stats().chunks.used >= kLoad && budget->held() >= kLoad;
    for (VTensor* const vtensor : running) {
      const auto* const bytes = reinterpret_cast<const unsigned char*>(vtensor->base());
      for (std::uint64_t i = 0; i < 5 * kChunk; i += 4096) {
        if (bytes[i] != mark) return false;
      }
      const BlockHash hash{mark, reinterpret_cast<std::uint64_t>(vtensor)};
      if (vtensor != running.front() || set->record(*vtensor, {&hash, 1})) set->release(vtensor);
    }
    return was_all;
  }
};

class ElasticTest : public testing::Test {
 protected:
  ElasticTest() : path_("/dev/shm/cachalot_elastic_test." + std::to_string(getpid())) {
    const auto file = os::SharedFile::create("memfd:elastic_test", 4096);
    page_ = *file->map({.dont_fork = false, .huge_pages = false});
  }
  ~ElasticTest() override { unlink(path_.c_str()); }

  std::atomic<std::uint32_t>& turn() {
    return *reinterpret_cast<std::atomic<std::uint32_t>*>(page_.data());
  }
  void wait_turn(std::uint32_t wanted) {
    while (turn().load(std::memory_order_acquire) < wanted) std::this_thread::yield();
  }

  std::string path_;
  os::Mapping page_;
};

// More than half of the device each, in turns: only what the other gives back makes that possible. It
// gives up vTensors that it kept mapped, recorded prefixes, and memory that it held ready.
TEST_F(ElasticTest, TwoProcessesTradeMemoryUnderAlternatingLoad) {
  constexpr std::uint32_t kTurns = 8;
  std::vector<os::Child> children;
  for (std::uint32_t number = 0; number < 2; ++number) {
    auto child = os::Child::start([&, number] {
      auto engine = Engine::open(path_);
      if (!engine) return 1;
      for (std::uint32_t now = number; now < kTurns; now += 2) {
        wait_turn(now);
        if (!engine->serve_load(static_cast<unsigned char>(1 + now))) return 2;
        turn().store(now + 1, std::memory_order_release);
      }
      wait_turn(kTurns);
      return engine->budget->held() * kChunk == engine->backend->physical_bytes() ? 0 : 3;
    });
    ASSERT_TRUE(child);
    children.push_back(*std::move(child));
  }
  for (os::Child& child : children) EXPECT_EQ(child.wait()->text(), "exit code 0");
  EXPECT_NE(access(path_.c_str(), F_OK), 0);  // no process uses it any more
}

TEST_F(ElasticTest, WhatAKilledProcessHadIsThereForTheOthers) {
  auto victim = os::Child::start([&] {
    auto engine = Engine::open(path_);
    if (!engine || engine->create(kChunks - kGuaranteed) == nullptr) return 1;
    turn().store(1, std::memory_order_release);
    for (;;) pause();
  });
  ASSERT_TRUE(victim);
  auto heir = os::Child::start([&] {
    wait_turn(1);
    auto engine = Engine::open(path_);
    if (!engine) return 1;
    if (engine->create(kGuaranteed) == nullptr) return 2;  // of its own
    if (engine->set->create(2 * kTokensAChunk, 64))
      return 3;  // the victim lives, and needs its memory
    turn().store(2, std::memory_order_release);
    wait_turn(3);
    return engine->create(kLoad) != nullptr ? 0 : 4;
  });
  ASSERT_TRUE(heir);
  wait_turn(2);
  victim->send(SIGKILL);
  ASSERT_TRUE(victim->wait());
  turn().store(3, std::memory_order_release);
  EXPECT_EQ(heir->wait()->text(), "exit code 0");
}

// What only running requests hold is not taken from them: their engine is told.
TEST_F(ElasticTest, AnEngineIsToldWhatItsRequestsWouldHaveToGiveUp) {
  const auto backend =
      *device_memory::MemfdBackend::open({.source = device_memory::PageSource::kSmall});
  const auto lender = *SharedBudget::join({path_, kChunks, kChunk, kGuaranteed});
  const auto asker = *SharedBudget::join({path_, kChunks, kChunk, kGuaranteed});
  std::vector<std::uint64_t> told;
  const auto set =
      *VTensorSet::open(*backend, *lender,
                        {.shape = {.layers = 1, .part_bytes = {kChunk / 2}},
                         .max_tokens = 64,
                         .with_thread = false,
                         .on_pressure = [&](std::uint64_t chunks) { told.push_back(chunks); }});
  VTensor* const small = set->create(2 * 3, 64)->vtensor;
  ASSERT_TRUE(set->create(2 * (kChunks - 3), 64));
  EXPECT_EQ(asker->take(kGuaranteed), 0u);
  asker->ask(kGuaranteed);
  set->work();
  EXPECT_EQ(told, std::vector<std::uint64_t>{kGuaranteed});
  set->work();
  EXPECT_EQ(told.size(), 1u);  // once
  set->release(small);
  set->work();
  EXPECT_EQ(told, (std::vector<std::uint64_t>{kGuaranteed, kGuaranteed - 3}));
  EXPECT_EQ(asker->take(3), 3u);
}

}  // namespace
}  // namespace cachalot::vtensor
