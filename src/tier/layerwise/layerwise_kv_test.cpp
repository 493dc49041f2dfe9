#include "tier/layerwise/layerwise_kv.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "testing/device_memory/faulty_backend.h"
#include "tier/layerwise/layerwise_test_kv.h"

namespace cachalot::tier::layerwise {
namespace {

constexpr std::uint64_t kLayer = 2 * TestKv::kRowBytes;  // bytes of a token in a layer
constexpr std::uint64_t kChunk = std::uint64_t{2} << 20;

LayerwiseOptions by_hand(std::uint64_t layers, std::uint64_t resident) {
  LayerwiseOptions options = TestKv::options(layers, resident);
  options.with_thread = false;
  return options;
}

#define EXPECT_FAILS(status, wanted, words)                                    \
  do {                                                                         \
    const Status got = (status);                                               \
    ASSERT_FALSE(got);                                                         \
    EXPECT_EQ(got.error().code, wanted);                                       \
    EXPECT_NE(std::string(got.error().message).find(words), std::string::npos) \
        << got.error().message;                                                \
  } while (false)

TEST(LayerwiseKv, KeepsAllRowsWithTwoLayersOnTheDevice) {
  TestKv test(by_hand(6, 0));
  LayerwiseRequest* const request = test.add();
  EXPECT_EQ(test.step({{request, 600}}), "");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(test.step({{request, 1}}), "");
  const LayerwiseStats stats = test.kv().stats();
  EXPECT_EQ(stats.all_bytes,
            6 * 2 * 2 * kChunk);  // 605 tokens take two chunks of each of 12 planes
  EXPECT_EQ(stats.peak_device_bytes, 2 * 2 * 2 * kChunk);
  EXPECT_EQ(test.over_bound(), "");
}

TEST(LayerwiseKv, OffloadsEachRowOnceAndLoadsAllRowsOfAStep) {
  TestKv test(by_hand(6, 0));
  LayerwiseRequest* const request = test.add();
  EXPECT_EQ(test.step({{request, 100}}), "");
  while (test.kv().work_once()) {
  }
  EXPECT_EQ(test.kv().stats().offloaded_bytes, 6 * 100 * kLayer);
  EXPECT_EQ(test.kv().stats().loaded_bytes, 2 * 100 * kLayer);  // for the next step
  EXPECT_EQ(test.step({{request, 1}}), "");
  while (test.kv().work_once()) {
  }
  EXPECT_EQ(test.kv().stats().offloaded_bytes, 6 * 101 * kLayer);
  EXPECT_EQ(test.kv().stats().loaded_bytes, 6 * 100 * kLayer + 2 * 101 * kLayer);
}

TEST(LayerwiseKv, NeitherLoadsNorOffloadsIfAllLayersStay) {
  TestKv test(by_hand(5, 5));
  LayerwiseRequest* const request = test.add();
  EXPECT_EQ(test.step({{request, 600}}), "");
  EXPECT_EQ(test.step({{request, 1}}), "");
  const LayerwiseStats stats = test.kv().stats();
  EXPECT_EQ(stats.offloaded_bytes + stats.loaded_bytes + stats.host_bytes, 0u);
  EXPECT_EQ(stats.device_bytes, stats.all_bytes);
}

// Prefills, chunked prefills and decode steps of any requests, requests that end, steps that are cancelled, and changes of
// the number of resident layers; the thread's works come at any time.
RC_GTEST_PROP(LayerwiseKv, KeepsAllRowsInAnyOrderOfCalls, ()) {
  const auto layers = *rc::gen::inRange<std::uint64_t>(1, 6);
  TestKv test(by_hand(layers, *rc::gen::inRange<std::uint64_t>(0, layers + 1)));
  std::vector<LayerwiseRequest*> requests;
  const auto dice = [](int sides) { return *rc::gen::inRange(0, sides); };
  for (int i = 0; i < 6; ++i) {
    if (requests.size() < 2 && (requests.empty() || dice(3) == 0)) requests.push_back(test.add());
    std::vector<LayerwiseKv::Growth> growths;
    for (LayerwiseRequest* const request : requests) {
      if (!growths.empty() && dice(3) == 0) continue;
      const std::uint64_t most = TestKv::kMaxTokens - request->tokens();
      const std::uint64_t tokens = dice(4) == 0 ? 1 + dice(560) : 1;
      if (tokens <= most) growths.push_back({request, tokens});
    }
    test.kv().reset_peak();
    if (!growths.empty()) {
      RC_ASSERT(test.kv().begin(growths).ok());
      const std::uint64_t end =
          dice(8) == 0 ? static_cast<std::uint64_t>(dice(static_cast<int>(layers))) : layers;
      for (std::uint64_t layer = 0; layer < end; ++layer) {
        RC_ASSERT(test.compute(growths, layer) == "");
        for (int works = dice(3); works != 0; --works) test.kv().work_once();
      }
      RC_ASSERT(test.over_bound() == "");
      if (end < layers) {
        if (dice(2) == 0) RC_ASSERT(test.kv().acquire(end).ok());
        RC_ASSERT(test.kv().cancel().ok());
      }
    }
    if (dice(4) == 0) {
      RC_ASSERT(test.kv()
                    .set_resident(static_cast<std::uint64_t>(dice(static_cast<int>(layers) + 1)))
                    .ok());
      while (test.kv().work_once()) {
      }
    }
    if (dice(4) == 0) {
      const auto which = requests.begin() + dice(static_cast<int>(requests.size()));
      RC_ASSERT(test.kv().remove(*which).ok());
      requests.erase(which);
    }
  }
  for (LayerwiseRequest* const request : requests) RC_ASSERT(test.kv().remove(request).ok());
  RC_ASSERT(test.kv().stats().device_bytes == 0u);
}

TEST(LayerwiseKv, ReusesHostMemoryOfRequestsThatEnded) {
  TestKv test(by_hand(6, 0));
  for (int i = 0; i < 3; ++i) {
    LayerwiseRequest* const request = test.add();
    EXPECT_EQ(test.step({{request, 600}}), "");
    ASSERT_TRUE(test.kv().remove(request));
    EXPECT_EQ(test.kv().stats().host_bytes, 6 * 2 * 2 * kChunk);
  }
}

TEST(LayerwiseKv, BeginsNothingWithoutHostMemoryForIt) {
  LayerwiseOptions options = by_hand(6, 0);
  options.host_bytes = 6 * 2 * 2 * kChunk;
  TestKv test(options);
  LayerwiseRequest* const request = test.add();
  EXPECT_FAILS(test.kv().begin({{{request, 1025}}}), Code::kNoSpace, "host memory");
  EXPECT_EQ(test.step({{request, 1024}}), "");
  EXPECT_FAILS(test.kv().begin({{{request, 1}}}), Code::kNoSpace,
               "25165824 bytes of host memory are missing");
  ASSERT_TRUE(test.kv().remove(request));
  EXPECT_EQ(test.step({{test.add(), 1024}}), "");
}

TEST(LayerwiseKv, WorksLayerByLayerWithMemoryForOneOnly) {
  TestKv test(by_hand(6, 0), 4);
  LayerwiseRequest* const request = test.add();
  EXPECT_EQ(test.step({{request, 600}}), "");  // two chunks of two planes
  EXPECT_EQ(test.step({{request, 1}}), "");
  EXPECT_EQ(test.kv().stats().peak_device_bytes, 4 * kChunk);
}

TEST(LayerwiseKv, CancelsAStepForWhichTheDeviceIsTooSmall) {
  TestKv test(by_hand(6, 1), 6);
  LayerwiseRequest* const request = test.add();
  EXPECT_EQ(test.step({{request, 500}}), "");
  ASSERT_TRUE(test.kv().begin({{{request, 600}}}));
  EXPECT_EQ(request->tokens(), 1100u);
  EXPECT_FAILS(test.kv().acquire(0), Code::kNoSpace, "");
  EXPECT_FAILS(test.kv().acquire(0), Code::kNoSpace, "");
  ASSERT_TRUE(test.kv().cancel());
  EXPECT_EQ(request->tokens(), 500u);
  EXPECT_EQ(test.step({{request, 12}}), "");
}

TEST(LayerwiseKv, OffloadsRowsAgainThatFollowACancelledStep) {
  TestKv test(by_hand(6, 0));
  LayerwiseRequest* const request = test.add();
  EXPECT_EQ(test.step({{request, 100}}), "");
  ASSERT_TRUE(test.kv().begin({{{request, 50}}}));
  for (std::uint64_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(test.compute({{request, 50}}, layer), "");
    while (test.kv().work_once()) {
    }
  }
  ASSERT_TRUE(test.kv().cancel());
  EXPECT_EQ(test.step({{request, 50}}), "");
  EXPECT_EQ(test.step({{request, 1}}), "");
}

TEST(LayerwiseKv, SaysThatRowsAreLostIfAnOffloadFails) {
  LayerwiseOptions options = by_hand(6, 0);
  options.copy = [](device_memory::Address, device_memory::Address, std::uint64_t) -> Status {
    return Error::make(Code::kIo, "copy: told to fail");
  };
  TestKv test(options);
  LayerwiseRequest* const request = test.add();
  EXPECT_NE(test.step({{request, 8}}).find("told to fail"), std::string::npos);
  EXPECT_FAILS(test.kv().acquire(2), Code::kIo, "told to fail");
  ASSERT_TRUE(test.kv().cancel());
  EXPECT_FAILS(test.kv().begin({{{request, 1}}}), Code::kIo, "told to fail");
  EXPECT_FAILS(test.kv().set_resident(1), Code::kIo, "told to fail");
  EXPECT_TRUE(test.kv().remove(request));
}

class SetClock final : public base::Clock {
 public:
  std::uint64_t now_ns() override { return now; }
  std::uint64_t now = 1000;
};

TEST(LayerwiseKv, CountsTheTimeOfCopiesWaitsAndSteps) {
  SetClock clock;
  LayerwiseOptions options = by_hand(4, 0);
  options.clock = &clock;
  options.copy = [&](device_memory::Address to, device_memory::Address from, std::uint64_t bytes) {
    clock.now += 10;
    return vtensor::copy_by_processor(to, from, bytes);
  };
  TestKv test(options);
  LayerwiseRequest* const request = test.add();
  const auto step = [&] {
    ASSERT_TRUE(test.kv().begin({{{request, 5}}}));
    for (std::uint64_t layer = 0; layer < 4; ++layer) {
      ASSERT_TRUE(test.kv().acquire(layer));
      clock.now += 100;  // the computation
      ASSERT_TRUE(test.kv().release(layer));
    }
  };
  step();
  LayerwiseStats stats = test.kv().stats();
  // A copy for each of two planes; without a thread all of it is waited for: 0 and 1 are offloaded before 2 and 3 come.
  EXPECT_EQ(stats.offload_ns, 2u * 20);
  EXPECT_EQ(stats.wait_ns, 2u * 20);
  EXPECT_EQ(stats.step_ns, 4u * 100 + 40);
  EXPECT_EQ(stats.step_wait_ns, 40u);
  while (test.kv().work_once()) {
  }
  stats = test.kv().stats();
  EXPECT_EQ(stats.offload_ns, 4u * 20);
  EXPECT_EQ(stats.load_ns, 2u * 20);  // 0 and 1, for the next step
  EXPECT_EQ(stats.wait_ns, 2u * 20);
}

TEST(LayerwiseKv, RefusesCallsOutOfOrder) {
  TestKv test(by_hand(4, 1));
  LayerwiseRequest* const request = test.add();
  LayerwiseKv& kv = test.kv();
  constexpr Code kInvalid = Code::kInvalidArgument;
  EXPECT_FAILS(kv.acquire(0), kInvalid, "expected begin() before");
  EXPECT_FAILS(kv.release(0), kInvalid, "expected one that is acquired");
  EXPECT_FAILS(kv.cancel(), kInvalid, "no step");
  EXPECT_FAILS(kv.begin({}), kInvalid, "no requests");
  EXPECT_FAILS(kv.begin({{{nullptr, 1}}}), kInvalid, "no such request at 0");
  EXPECT_FAILS(kv.begin({{{request, 0}}}), kInvalid,
               "0 new tokens for request 0, expected 1 to 2000");
  EXPECT_FAILS(kv.begin({{{request, 2001}}}), kInvalid, "2001 new tokens");
  EXPECT_FAILS(kv.begin({{{request, 1}, {request, 1}}}), kInvalid, "requests 0 and 1 are the same");
  EXPECT_FAILS(kv.remove(nullptr), kInvalid, "no such request");
  ASSERT_TRUE(kv.begin({{{request, 1}}}));
  EXPECT_FAILS(kv.begin({{{request, 1}}}), kInvalid, "a step is in progress at layer 0");
  EXPECT_FAILS(kv.remove(request), kInvalid, "a step is in progress");
  EXPECT_FAILS(kv.set_resident(0), kInvalid, "a step is in progress");
  EXPECT_FAILS(kv.acquire(1), kInvalid, "layer 1, expected the next one, layer 0");
  ASSERT_TRUE(kv.acquire(0));
  EXPECT_FAILS(kv.acquire(0), kInvalid, "expected the release of layer 0");
  EXPECT_FAILS(kv.release(1), kInvalid, "layer 1");
  const auto added = kv.add(2001);
  ASSERT_FALSE(added);
  EXPECT_NE(std::string(added.error().message).find("2001"), std::string::npos);
}

TEST(LayerwiseKv, RefusesOptionsThatMakeNoSense) {
  device_memory::FaultyBackend backend;
  vtensor::LocalBudget budget;
  const LayerwiseOptions good{.layers = 4, .part_bytes = {16}, .max_tokens = 64, .chunk_bytes = 64};
  ASSERT_TRUE(LayerwiseKv::open(backend, budget, good));
  const auto refused = [&](auto change) {
    LayerwiseOptions options = good;
    change(options);
    const auto opened = LayerwiseKv::open(backend, budget, options);
    return !opened && opened.error().code == Code::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](auto& o) { o.layers = 0; }));
  EXPECT_TRUE(refused([](auto& o) { o.part_bytes = {}; }));
  EXPECT_TRUE(refused([](auto& o) { o.max_tokens = 0; }));
  EXPECT_TRUE(refused([](auto& o) { o.chunk_bytes = 63; }));
  EXPECT_TRUE(refused([](auto& o) { o.chunk_bytes = 0; }));
  EXPECT_TRUE(refused([](auto& o) { o.host_bytes = 63; }));
  EXPECT_TRUE(refused([](auto& o) { o.copy = {}; }));
}

TEST(LayerwiseKv, RetriesALayerThatTheDeviceDidNotMap) {
  device_memory::FaultyBackend backend;
  vtensor::LocalBudget budget;
  const auto no_copy = [](device_memory::Address, device_memory::Address, std::uint64_t) {
    return Status();
  };
  const auto kv = *LayerwiseKv::open(backend, budget,
                                     {.layers = 4,
                                      .part_bytes = {16},
                                      .max_tokens = 64,
                                      .chunk_bytes = 64,
                                      .copy = no_copy,
                                      .with_thread = false});
  LayerwiseRequest* const request = *kv->add(64);
  ASSERT_TRUE(kv->begin({{{request, 9}}}));
  backend.fail("map", 2);
  EXPECT_FAILS(kv->acquire(0), Code::kIo, "told to fail");
  EXPECT_TRUE(kv->acquire(0));
  EXPECT_TRUE(kv->release(0));
}

}  // namespace
}  // namespace cachalot::tier::layerwise
