// What the thread does while a layer is computed; runs under ThreadSanitizer as well.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tier/layerwise/layerwise_test_kv.h"

namespace cachalot::tier::layerwise {
namespace {

// Copies wait at a gate: what passes without them did not wait for them.
class Gate {
 public:
  vtensor::CopyBytes copy() {
    return [this](device_memory::Address to, device_memory::Address from, std::uint64_t bytes) {
      arrived_.fetch_add(1);
      arrived_.notify_all();
      open_.wait(false);
      return vtensor::copy_by_processor(to, from, bytes);
    };
  }
  void wait_for_a_copy() { arrived_.wait(0); }
  void open() {
    open_ = true;
    open_.notify_all();
  }

 private:
  std::atomic<int> arrived_{0};
  std::atomic<bool> open_{false};
};

TEST(LayerwiseThreads, ALayerIsComputedWhileTheOneBeforeItIsOffloaded) {
  Gate gate;
  LayerwiseOptions options = TestKv::options(6, 0);
  options.copy = gate.copy();
  TestKv test(options);
  const std::vector<LayerwiseKv::Growth> growths = {{test.add(), 3}};
  ASSERT_TRUE(test.kv().begin(growths));
  EXPECT_EQ(test.compute(growths, 0), "");
  gate.wait_for_a_copy();
  EXPECT_EQ(test.compute(growths, 1), "");  // while the copy of layer 0 stands at the gate
  EXPECT_EQ(test.kv().stats().offloads, 0u);
  EXPECT_EQ(test.kv().stats().loads,
            2u);  // both places are taken: layer 2 has to wait for the offload
  gate.open();
  for (std::uint64_t layer = 2; layer < 6; ++layer) EXPECT_EQ(test.compute(growths, layer), "");
  EXPECT_GE(test.kv().stats().waits, 1u);
  EXPECT_EQ(test.over_bound(), "");
}

TEST(LayerwiseThreads, TheEndWaitsForTheCopyInFlight) {
  Gate gate;
  LayerwiseOptions options = TestKv::options(6, 0);
  options.copy = gate.copy();
  std::thread opener;
  {
    TestKv test(options);
    const std::vector<LayerwiseKv::Growth> growths = {{test.add(), 3}};
    ASSERT_TRUE(test.kv().begin(growths));
    EXPECT_EQ(test.compute(growths, 0), "");
    gate.wait_for_a_copy();
    opener = std::thread([&] { gate.open(); });
  }
  opener.join();
}

TEST(LayerwiseThreads, AllRowsAreThereWhateverTheThreadDoes) {
  for (const std::uint64_t resident : {0, 1, 2}) {
    TestKv test(TestKv::options(5, resident));
    base::Rng rng(resident + 1);
    std::vector<LayerwiseRequest*> requests;
    for (int i = 0; i < 20; ++i) {
      if (requests.size() < 2 || (requests.size() < 3 && rng.next() % 4 == 0))
        requests.push_back(test.add());
      std::vector<LayerwiseKv::Growth> growths;
      for (LayerwiseRequest* const request : requests) {
        if (!growths.empty() && rng.next() % 3 == 0) continue;
        const std::uint64_t tokens = rng.next() % 4 == 0 ? 1 + rng.next() % 100 : 1;
        if (request->tokens() + tokens <= TestKv::kMaxTokens) growths.push_back({request, tokens});
      }
      ASSERT_EQ(test.step(growths), "");
      ASSERT_EQ(test.over_bound(), "");
      if (rng.next() % 6 == 0) {
        ASSERT_TRUE(test.kv().begin(growths));
        ASSERT_TRUE(test.kv().cancel());
      }
      if (rng.next() % 5 == 0) {
        ASSERT_TRUE(test.kv().remove(requests.back()));
        requests.pop_back();
        test.kv().reset_peak();
      }
    }
  }
}

}  // namespace
}  // namespace cachalot::tier::layerwise
