// A device's memory under PyTorch's calls, on an emulated GPU.
#include "device_memory.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "devices.h"
#include "testing/gpu/fake_gpu.h"

namespace cachalot::torch {
namespace {

using device_memory::Address;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class DeviceMemoryTest : public testing::Test {
 protected:
  std::unique_ptr<DeviceMemory> open(const Settings& settings = {}, int device = 0) {
    auto memory = DeviceMemory::open(driver_, device, settings);
    EXPECT_TRUE(memory) << memory.error().message;
    return *std::move(memory);
  }
  ~DeviceMemoryTest() override {
    EXPECT_EQ(machine_.refused, 0u);
    EXPECT_EQ(machine_.without_context, 0u);
    EXPECT_EQ(machine_.of_another_device, 0u);
    EXPECT_EQ(machine_.recorded_in_capture, 0u);
  }

  gpu::FakeMachine machine_;
  const gpu::Driver driver_ = machine_.driver();
};

TEST_F(DeviceMemoryTest, LeavesNothingOnTheDeviceWhenItIsGone) {
  {
    const auto memory = open();
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(memory->allocate(static_cast<std::uint64_t>(i) * 3 * kMiB, i % 3));
    }
  }
  EXPECT_EQ(machine_.used_bytes(), 0u);
  EXPECT_EQ(machine_.ranges(), 0u);
  EXPECT_EQ(machine_.events(), 0u);
  EXPECT_EQ(machine_.contexts, 0);
}

TEST_F(DeviceMemoryTest, TheStreamThatFreedGetsItAtOnceAndAnotherAfterItsWork) {
  const auto memory = open();
  const Address first = *memory->allocate(64 * kMiB, 1);
  machine_.begin(1);
  ASSERT_TRUE(memory->free(first, 1));
  EXPECT_EQ(*memory->allocate(64 * kMiB, 1), first);
  ASSERT_TRUE(memory->free(first, 1));
  const Address other = *memory->allocate(64 * kMiB, 2);
  EXPECT_NE(other, first);
  EXPECT_EQ(machine_.used_bytes(), 128 * kMiB);
  machine_.finish(1);
  ASSERT_TRUE(memory->allocate(64 * kMiB, 2));
  EXPECT_EQ(machine_.used_bytes(), 128 * kMiB);
}

TEST_F(DeviceMemoryTest, WhatAnotherStreamUsesIsKeptUntilItsWorkIsDone) {
  const auto memory = open();
  const Address recorded = *memory->allocate(64 * kMiB, 1);
  ASSERT_TRUE(memory->use_on(recorded, 2));
  machine_.begin(2);
  ASSERT_TRUE(memory->free(recorded, 1));
  EXPECT_NE(*memory->allocate(64 * kMiB, 1), recorded);
  EXPECT_EQ(machine_.used_bytes(), 128 * kMiB);
  machine_.finish(2);
  ASSERT_TRUE(memory->allocate(64 * kMiB, 1));
  EXPECT_EQ(machine_.used_bytes(), 128 * kMiB);
}

TEST_F(DeviceMemoryTest, AFreeOnAnotherStreamWaitsForThatStream) {
  const auto memory = open();
  const Address freed = *memory->allocate(64 * kMiB, 1);
  machine_.begin(2);
  ASSERT_TRUE(memory->free(freed, 2));
  ASSERT_TRUE(memory->allocate(64 * kMiB, 1));
  EXPECT_EQ(machine_.used_bytes(), 128 * kMiB);
  machine_.finish(2);
  ASSERT_TRUE(memory->allocate(64 * kMiB, 1));
  EXPECT_EQ(machine_.used_bytes(), 128 * kMiB);
}

TEST_F(DeviceMemoryTest, SaysOutOfMemoryWhenAllThatIsCachedWasGivenBackAndGoesOn) {
  machine_.memory_bytes = 64 * kMiB;
  const auto memory = open();
  const Address held = *memory->allocate(10 * kMiB, 1), freed = *memory->allocate(30 * kMiB, 1);
  machine_.begin(1);
  ASSERT_TRUE(memory->free(freed, 1));
  const Result<Address> refused = memory->allocate(60 * kMiB, 2);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kNoSpace);
  EXPECT_EQ(memory->stats().refused, 1u);
  EXPECT_EQ(machine_.used_bytes(), 10 * kMiB);
  ASSERT_TRUE(memory->allocate(54 * kMiB, 2));
  ASSERT_TRUE(memory->free(held, 1));
  EXPECT_TRUE(memory->check());
}

// What the stream that asks cannot have at once is waited for.
TEST_F(DeviceMemoryTest, WaitsForOtherStreamsBeforeItSaysOutOfMemory) {
  machine_.memory_bytes = 64 * kMiB;
  const auto memory = open();
  const Address freed = *memory->allocate(60 * kMiB, 1);
  machine_.begin(1);
  ASSERT_TRUE(memory->free(freed, 1));
  ASSERT_TRUE(memory->allocate(60 * kMiB, 2));
  EXPECT_EQ(machine_.waits, 1);
}

// Its memory, and what it used of another's, comes back nevertheless, and not before its work has ended.
TEST_F(DeviceMemoryTest, AStreamThatItsProgramDestroyedKeepsNothing) {
  for (const bool is_released : {true, false}) {
    const std::uint64_t gone = is_released ? 11 : 12;
    const auto memory = open({}, is_released ? 0 : 1);
    const Address own = *memory->allocate(64 * kMiB, gone);
    const Address used = *memory->allocate(64 * kMiB, 1);
    ASSERT_TRUE(memory->use_on(used, gone));
    machine_.begin(gone);
    machine_.destroy(gone);
    ASSERT_TRUE(memory->free(own, gone));
    ASSERT_TRUE(memory->free(used, 1));
    if (is_released) {
      ASSERT_TRUE(memory->release_cached());
      EXPECT_EQ(machine_.used_bytes(), 0u);
    } else {
      ASSERT_TRUE(memory->allocate(128 * kMiB, 1));
      EXPECT_EQ(machine_.used_bytes(), 128 * kMiB);
    }
    EXPECT_TRUE(machine_.is_idle(gone));
  }
}

TEST_F(DeviceMemoryTest, AStreamThatWasDestroyedWhileAnotherIsCapturedKeepsItsMemoryUntilThen) {
  for (const bool is_pool : {false, true}) {
    const auto memory = open();
    const PoolId pool{7, 7};
    if (!is_pool) {
      ASSERT_TRUE(memory->allocate(2 * kMiB, 5));  // the allocator knows that stream
    }
    const Address used = *memory->allocate(64 * kMiB, 1);
    const std::uint64_t gone = is_pool ? 12 : 11;
    ASSERT_TRUE(memory->use_on(used, gone));
    machine_.begin(gone);
    machine_.destroy(gone);
    ASSERT_TRUE(memory->end_pool(pool));  // of nothing
    if (is_pool) memory->begin_pool(pool);
    machine_.set_capturing(is_pool ? 6 : 5, true);
    ASSERT_TRUE(memory->free(used, 1));
    EXPECT_NE(*memory->allocate(64 * kMiB, 1), used);
    machine_.set_capturing(is_pool ? 6 : 5, false);
    if (is_pool) {
      ASSERT_TRUE(memory->end_pool(pool));
    }
    EXPECT_EQ(*memory->allocate(64 * kMiB, 1), used);
    EXPECT_TRUE(machine_.is_idle(gone));
  }
}

TEST_F(DeviceMemoryTest, ALimitHoldsAndAFractionOfTheDeviceIsALimitToo) {
  machine_.memory_bytes = 100 * kMiB;
  const auto memory = open({.limit_bytes = 80 * kMiB});
  EXPECT_FALSE(memory->allocate(82 * kMiB, 0));
  ASSERT_TRUE(memory->limit_to(0.5));
  EXPECT_EQ(memory->stats().limit_bytes, 50 * kMiB);
  EXPECT_FALSE(memory->allocate(52 * kMiB, 0));
  const Address held = *memory->allocate(50 * kMiB, 0);
  ASSERT_TRUE(memory->free(held, 0));
  ASSERT_TRUE(memory->limit_to(1.0));
  EXPECT_EQ(memory->stats().limit_bytes, 80 * kMiB);
  ASSERT_TRUE(memory->limit_to(0));
  ASSERT_TRUE(memory->release_cached());
  EXPECT_FALSE(memory->allocate(1, 0));
  for (const double fraction : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_EQ(memory->limit_to(fraction).error().code, Code::kInvalidArgument);
  }
}

TEST_F(DeviceMemoryTest, ASegmentIsGivenBackWhenItIsFreed) {
  const auto memory = open();
  const Address segment = *memory->allocate(20 * kMiB, 1);
  const Address other = *memory->allocate(20 * kMiB, 1);
  machine_.begin(5);  // a tensor in it was used by a stream that was not announced
  ASSERT_TRUE(memory->free_and_give_back(segment));
  EXPECT_TRUE(machine_.is_idle(5));
  EXPECT_EQ(machine_.used_bytes(), 20 * kMiB);
  ASSERT_TRUE(memory->free_and_give_back(other));
  EXPECT_EQ(machine_.used_bytes(), 0u);
}

TEST_F(DeviceMemoryTest, NothingOfAGraphIsGivenToOthersBeforeTheGraphIsReleased) {
  const auto memory = open();
  const PoolId id{1, 2};
  const Address before = *memory->allocate(32 * kMiB, 1);
  memory->begin_pool(id);
  machine_.set_capturing(1, true);
  const Address inside = *memory->allocate(32 * kMiB, 1);
  ASSERT_TRUE(memory->free(inside, 1));
  EXPECT_NE(*memory->allocate(32 * kMiB, 1), inside);
  machine_.set_capturing(1, false);
  ASSERT_TRUE(memory->end_pool(id));
  memory->begin_pool(id);  // a second graph shares the pool
  ASSERT_TRUE(memory->end_pool(id));
  ASSERT_TRUE(memory->free(before, 1));
  EXPECT_EQ(*memory->allocate(32 * kMiB, 1), before);
  EXPECT_NE(*memory->allocate(32 * kMiB, 1), inside);
  ASSERT_TRUE(memory->release_pool(id));
  EXPECT_NE(*memory->allocate(32 * kMiB, 1), inside);
  machine_.begin(9);  // a replay
  ASSERT_TRUE(memory->release_pool(id));
  EXPECT_TRUE(machine_.is_idle(9));
  EXPECT_EQ(*memory->allocate(32 * kMiB, 1), inside);
  ASSERT_TRUE(memory->release_pool(id));  // once too often
  EXPECT_TRUE(memory->check());
}

// A graph's object may go at any time. The wait for its replays would end the capture of another one.
TEST_F(DeviceMemoryTest, AGraphThatIsReleasedWhileAnotherIsCapturedIsFreedAfterTheCapture) {
  const auto memory = open();
  const PoolId released{1, 0}, captured{2, 0};
  memory->begin_pool(released);
  const Address inside = *memory->allocate(32 * kMiB, 1);
  ASSERT_TRUE(memory->end_pool(released));
  ASSERT_TRUE(memory->free(inside, 1));
  memory->begin_pool(captured);
  machine_.set_capturing(2, true);
  const Status put_off = memory->release_pool(released);
  EXPECT_TRUE(put_off) << put_off.error().message;
  EXPECT_NE(*memory->allocate(32 * kMiB, 1), inside);
  machine_.set_capturing(2, false);
  machine_.begin(9);  // a replay of the released graph
  ASSERT_TRUE(memory->end_pool(captured));
  EXPECT_TRUE(machine_.is_idle(9));
  EXPECT_EQ(*memory->allocate(32 * kMiB, 1), inside);
}

// The program ended a capture in an order that was not expected: nothing is lost.
TEST_F(DeviceMemoryTest, WhatAReleaseCouldNotFreeIsFreedByTheNextOne) {
  const auto memory = open();
  memory->begin_pool({1, 0});
  const Address inside = *memory->allocate(32 * kMiB, 1);
  ASSERT_TRUE(memory->end_pool({1, 0}));
  ASSERT_TRUE(memory->free(inside, 1));
  machine_.failing["context_synchronize"] = gpu::kFirstOfCapture;
  EXPECT_FALSE(memory->release_pool({1, 0}));
  EXPECT_NE(*memory->allocate(32 * kMiB, 1), inside);
  machine_.failing.clear();
  ASSERT_TRUE(memory->release_pool({1, 0}));
  EXPECT_EQ(*memory->allocate(32 * kMiB, 1), inside);
}

TEST_F(DeviceMemoryTest, WhatIsUsedByTwoPoolsIsKeptUntilBothAreReleased) {
  const auto memory = open();
  memory->begin_pool({1, 0});
  memory->begin_pool({2, 0});
  const Address inside = *memory->allocate(32 * kMiB, 1);
  ASSERT_TRUE(memory->free(inside, 1));
  EXPECT_EQ(memory->free(inside, 1).error().code, Code::kInvalidArgument);  // twice
  ASSERT_TRUE(memory->release_pool({1, 0}));
  EXPECT_NE(*memory->allocate(32 * kMiB, 1), inside);
  ASSERT_TRUE(memory->release_pool({2, 0}));
  EXPECT_EQ(*memory->allocate(32 * kMiB, 1), inside);
}

TEST_F(DeviceMemoryTest, WhenTheDriverHasEndedFreesDoNothingAndNothingIsAllocated) {
  auto memory = open();
  const Address address = *memory->allocate(4 * kMiB, 0);
  machine_.deinitialize();
  EXPECT_FALSE(memory->allocate(4 * kMiB, 0));
  EXPECT_TRUE(memory->free(address, 0));
  EXPECT_TRUE(memory->free_and_give_back(address));
  EXPECT_TRUE(memory->release_cached());
  static const DeviceMemory* const never_goes = memory.release();  // as in libcachalot_torch.so
  EXPECT_NE(never_goes, nullptr);
}

TEST_F(DeviceMemoryTest, AnUnknownAddressIsAnError) {
  const auto memory = open();
  EXPECT_EQ(memory->free(0x1234, 0).error().code, Code::kInvalidArgument);
  EXPECT_EQ(memory->use_on(0x1234, 0).error().code, Code::kInvalidArgument);
  const Address address = *memory->allocate(0, 0);
  EXPECT_NE(address, *memory->allocate(0, 0));
  ASSERT_TRUE(memory->free(address, 0));
  const Status twice = memory->free(address, 0);
  ASSERT_FALSE(twice);
  EXPECT_NE(std::string(twice.error().message).find("free: 0x"), std::string::npos);
}

TEST_F(DeviceMemoryTest, APeerIsAnotherDeviceOfTheList) {
  const auto memory = open({.peers = {0, 1, 2}}, 1);
  ASSERT_TRUE(memory->allocate(4 * kMiB, 0));
  EXPECT_EQ(machine_.last_access.size(), 3u);
  const auto alone = open({.peers = {0, 1}}, 2);
  ASSERT_TRUE(alone->allocate(4 * kMiB, 0));
  EXPECT_EQ(machine_.last_access.size(), 1u);
}

// Threads that are on different devices, streams that lag behind; run under ThreadSanitizer.
TEST_F(DeviceMemoryTest, ServesThreadsOfManyStreamsAndDevices) {
  machine_.memory_bytes = std::uint64_t{8} << 30;
  Devices devices([&] { return Result<gpu::Driver>(driver_); }, Settings{},
                  [](const Error& error) { FAIL() << error.message; });
  const auto work = [&](unsigned seed) {
    std::mt19937_64 random(seed);
    struct Block {
      DeviceMemory* memory;
      Address address;
      gpu::StreamId stream;
    };
    std::vector<Block> live;
    for (int i = 0; i < 400; ++i) {
      const gpu::StreamId stream = random() % 4;
      if (live.size() < 12 && random() % 5 != 0) {
        const Result<DeviceMemory*> memory = devices.at(static_cast<int>(random() % 2));
        ASSERT_TRUE(memory) << memory.error().message;
        const Result<Address> address = (*memory)->allocate(random() % (24 * kMiB), stream);
        ASSERT_TRUE(address) << address.error().message;
        machine_.begin(stream);
        live.push_back({*memory, *address, stream});
      } else if (!live.empty()) {
        std::swap(live[random() % live.size()], live.back());
        const Block block = live.back();
        live.pop_back();
        if (random() % 4 == 0) {
          ASSERT_TRUE(block.memory->use_on(block.address, stream));
        }
        ASSERT_TRUE(block.memory->free(block.address, random() % 8 == 0 ? stream : block.stream));
      }
      if (random() % 3 == 0) machine_.finish(stream);
      if (random() % 100 == 0) {
        ASSERT_TRUE((*devices.at(0))->release_cached());
      }
    }
    for (const Block& block : live) ASSERT_TRUE(block.memory->free(block.address, block.stream));
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  for (const int device : {0, 1}) {
    DeviceMemory* const memory = devices.opened(device);
    ASSERT_NE(memory, nullptr);
    const Status checked = memory->check();
    EXPECT_TRUE(checked) << checked.error().message;
    EXPECT_EQ(memory->stats().allocator.live_bytes, 0u);
    EXPECT_TRUE(memory->release_cached());
  }
  EXPECT_EQ(machine_.used_bytes(), 0u);
}

TEST_F(DeviceMemoryTest, ADeviceThatCannotBeOpenedIsReportedOnce) {
  std::vector<std::string> said;
  Devices devices([&] { return Result<gpu::Driver>(driver_); }, Settings{},
                  [&](const Error& error) { said.emplace_back(error.message); });
  EXPECT_FALSE(devices.at(3));
  EXPECT_FALSE(devices.at(3));
  EXPECT_EQ(devices.opened(3), nullptr);
  EXPECT_EQ(devices.at(-1).error().code, Code::kInvalidArgument);
  EXPECT_EQ(devices.at(Devices::kMost).error().code, Code::kInvalidArgument);
  EXPECT_TRUE(devices.at(1));
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("device 3"), std::string::npos) << said[0];
}

TEST_F(DeviceMemoryTest, BadSettingsAndAMissingDriverAreReportedOnce) {
  std::vector<std::string> said;
  const auto report = [&](const Error& error) { said.emplace_back(error.message); };
  Devices bad_settings([&] { return Result<gpu::Driver>(driver_); },
                       Error::make(Code::kInvalidArgument, "X: bad"), report);
  EXPECT_FALSE(bad_settings.check());
  EXPECT_FALSE(bad_settings.at(0));
  EXPECT_FALSE(bad_settings.at(1));
  EXPECT_EQ(said, std::vector<std::string>{"X: bad"});
  Devices no_driver([] { return gpu::load_driver("libcachalot-no-such-driver.so.1"); }, Settings{},
                    report);
  EXPECT_EQ(no_driver.check().error().code, Code::kUnsupported);
  EXPECT_FALSE(no_driver.at(0));
  EXPECT_FALSE(no_driver.at(1));
  EXPECT_EQ(said.size(), 2u);
}

}  // namespace
}  // namespace cachalot::torch
