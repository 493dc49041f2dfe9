// libcachalot_torch.so as PyTorch has it: opened by its path, called by pointers, on a libcuda.so.1 of
// emulated GPUs. One process plays one training, so each test uses a device of its own.
#include <cachalot/torch.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "fake_libcuda.h"

namespace {

constexpr intptr_t kMiB = 1 << 20;
void* const kStream = reinterpret_cast<void*>(0x5000);

template <class Function>
Function* find(const char* name) {
  static void* const library = dlopen(CACHALOT_TORCH_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(library, nullptr) << dlerror();
  void* const symbol = dlsym(library, name);
  EXPECT_NE(symbol, nullptr) << name;
  return reinterpret_cast<Function*>(symbol);
}
#define PLUGIN(name) (*find<decltype(cachalot_torch_##name)>("cachalot_torch_" #name))

cachalot_torch_statistics statistics(int device) {
  cachalot_torch_statistics now{};
  now.struct_size = sizeof now;
  EXPECT_EQ(PLUGIN(get_statistics)(device, &now), CACHALOT_OK);
  return now;
}

TEST(TorchPlugin, FindsTheDriverByItsNameAndOpensADeviceWhenItIsUsed) {
  fake_machine().devices = 8;
  EXPECT_EQ(PLUGIN(check)(), CACHALOT_OK) << PLUGIN(last_message)();
  EXPECT_EQ(statistics(0).is_open, 0u);
  void* const pointer = PLUGIN(malloc)(5 * kMiB, 0, kStream);
  ASSERT_NE(pointer, nullptr);
  EXPECT_EQ(statistics(0).is_open, 1u);
  EXPECT_EQ(statistics(0).live_bytes, 5u * kMiB);
  EXPECT_EQ(statistics(0).reserved_bytes, 6u * kMiB);
  PLUGIN(free)(pointer, 5 * kMiB, 0, kStream);
  PLUGIN(empty_cache)();
  EXPECT_EQ(statistics(0).reserved_bytes, 0u);
  EXPECT_EQ(statistics(0).peak_live_bytes, 5u * kMiB);
}

TEST(TorchPlugin, AnswersOddSizesAndPointersWithoutACrash) {
  fake_machine().devices = 8;
  void* const none = PLUGIN(malloc)(0, 1, nullptr);
  EXPECT_NE(none, nullptr);
  testing::internal::CaptureStderr();
  EXPECT_EQ(PLUGIN(malloc)(-1, 1, nullptr), nullptr);
  EXPECT_EQ(PLUGIN(malloc)(INTPTR_MAX, 1, nullptr), nullptr);
  EXPECT_EQ(PLUGIN(malloc)(INTPTR_MIN, 1, nullptr), nullptr);
  PLUGIN(free)(nullptr, 0, 1, nullptr);
  PLUGIN(free)(kStream, 0, 1, nullptr);
  PLUGIN(free)(kStream, 0, 7, nullptr);
  PLUGIN(free_segment)(kStream, 0, 1, nullptr);
  PLUGIN(free)(kStream, 0, -5, nullptr);
  PLUGIN(record_stream)(kStream, nullptr);
  PLUGIN(set_memory_fraction)(2.0, 1);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("cachalot-torch: out of memory, device 1: -1 bytes asked for"),
            std::string::npos);
  EXPECT_NE(said.find("a negative size, expected 0 or more"), std::string::npos) << said;
  EXPECT_NE(said.find("trouble, device 1: free: 0x5000, expected an address"), std::string::npos);
  EXPECT_NE(said.find("record_stream: 0x5000"), std::string::npos) << said;
  EXPECT_NE(said.find("memory fraction: 2, expected 0 to 1"), std::string::npos) << said;
  PLUGIN(free)(none, 0, 1, nullptr);
  cachalot_torch_statistics wrong{};
  EXPECT_EQ(PLUGIN(get_statistics)(1, &wrong), CACHALOT_INVALID_ARGUMENT);
  EXPECT_STRNE(PLUGIN(last_message)(), "");
  EXPECT_EQ(PLUGIN(get_statistics)(1, nullptr), CACHALOT_INVALID_ARGUMENT);
  wrong.struct_size = sizeof wrong;
  EXPECT_EQ(PLUGIN(get_statistics)(64, &wrong), CACHALOT_INVALID_ARGUMENT);
}

TEST(TorchPlugin, SaysNothingMoreOfAKindAfterTenLines) {
  fake_machine().devices = 8;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 30; ++i) PLUGIN(malloc)(-1, 2, nullptr);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_LE(std::count(said.begin(), said.end(), '\n'), 10);
}

TEST(TorchPlugin, ADeviceThatIsNotThereIsSaidOnce) {
  fake_machine().devices = 8;
  testing::internal::CaptureStderr();
  EXPECT_EQ(PLUGIN(malloc)(kMiB, 40, nullptr), nullptr);
  EXPECT_EQ(PLUGIN(malloc)(kMiB, 40, nullptr), nullptr);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_NE(said.find("device 40"), std::string::npos) << said;
}

TEST(TorchPlugin, KeepsWhatOtherStreamsAndGraphsUse) {
  fake_machine().devices = 8;
  void* const other = reinterpret_cast<void*>(0x6000);
  void* const recorded = PLUGIN(malloc)(40 * kMiB, 3, kStream);
  PLUGIN(record_stream)(recorded, other);
  fake_machine().begin(0x6000);
  PLUGIN(free)(recorded, 40 * kMiB, 3, kStream);
  void* const second = PLUGIN(malloc)(40 * kMiB, 3, kStream);
  EXPECT_NE(second, recorded);
  fake_machine().finish(0x6000);
  EXPECT_EQ(PLUGIN(malloc)(40 * kMiB, 3, kStream), recorded);
  const cachalot_torch_pool_id id{3, 4};
  PLUGIN(begin_pool)(3, id, nullptr);
  void* const captured = PLUGIN(malloc)(40 * kMiB, 3, kStream);
  PLUGIN(end_pool)(3, id);
  PLUGIN(free)(captured, 40 * kMiB, 3, kStream);
  EXPECT_NE(PLUGIN(malloc)(40 * kMiB, 3, kStream), captured);
  PLUGIN(release_pool)(3, id);
  EXPECT_EQ(PLUGIN(malloc)(40 * kMiB, 3, kStream), captured);
}

TEST(TorchPlugin, SegmentsGoBackToTheDevice) {
  fake_machine().devices = 8;
  const std::uint64_t before = fake_machine().used_bytes();
  void* const segment = PLUGIN(malloc)(20 * kMiB, 4, kStream);
  PLUGIN(free_segment)(segment, 20 * kMiB, 4, kStream);
  EXPECT_EQ(fake_machine().used_bytes(), before);
  PLUGIN(set_memory_fraction)(0.5, 4);
  EXPECT_EQ(statistics(4).limit_bytes, statistics(4).device_bytes / 2);
}

TEST(TorchPlugin, ServesThreadsThatAreOnOtherDevices) {
  fake_machine().devices = 8;
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i] {
      for (int round = 0; round < 100; ++round) {
        const int device = 5 + round % 2;
        void* const stream = reinterpret_cast<void*>(static_cast<intptr_t>(0x7000 + round % 3));
        void* const pointer = PLUGIN(malloc)((round * 7 + i) % 30 * kMiB / 2, device, stream);
        ASSERT_NE(pointer, nullptr);
        if (round % 4 == 0) PLUGIN(record_stream)(pointer, kStream);
        PLUGIN(free)(pointer, 0, device, stream);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int device : {5, 6}) {
    EXPECT_EQ(statistics(device).live_bytes, 0u);
    EXPECT_EQ(statistics(device).allocations, 200u);
  }
  EXPECT_EQ(fake_machine().refused, 0u);
  EXPECT_EQ(fake_machine().without_context, 0u);
  EXPECT_EQ(fake_machine().of_another_device, 0u);
}

void* left_over = nullptr;

TEST(TorchPluginDeathTest, TensorsThatAreFreedAfterTheDriverHasEndedDoNoHarm) {
  EXPECT_EXIT(
      {
        fake_machine().devices = 8;
        left_over = PLUGIN(malloc)(4 * kMiB, 0, kStream);
        std::atexit([] {
          fake_machine().deinitialize();
          PLUGIN(free)(left_over, 4 * kMiB, 0, kStream);
          PLUGIN(empty_cache)();
        });
        std::exit(left_over == nullptr ? 1 : 0);
      },
      testing::ExitedWithCode(0), "^$");
}

TEST(TorchPluginDeathTest, ABadSettingIsSaidOnceAndNothingIsAllocated) {
  testing::FLAGS_gtest_death_test_style =
      "threadsafe";  // another process reads the environment again
  EXPECT_EXIT(
      {
        setenv("CACHALOT_TORCH_LIMIT", "much", 1);
        void* const first = PLUGIN(malloc)(kMiB, 0, kStream);
        void* const second = PLUGIN(malloc)(kMiB, 1, kStream);
        std::exit(first == nullptr && second == nullptr ? 0 : 1);
      },
      testing::ExitedWithCode(0),
      "^cachalot-torch: no memory can be had: CACHALOT_TORCH_LIMIT: "
      "\"much\" is no size, [^\n]*\n$");
}

}  // namespace
