// A GPU, and the pool memory that it shares with others of the process: on a fake machine.
#include "kv/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "memory/line.h"
#include "testing/kv/fake_kernels.h"

namespace cachalot::kv {
namespace {

// Device 0, with 4 KiB of a pool.
class CudaDeviceTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kBytes = 4096;

  CudaDeviceTest() {
    add_kernels(machine_);
    device_ = open(0);
    EXPECT_TRUE(device_->register_pool(pool(), kBytes));
  }
  ~CudaDeviceTest() override {
    device_.reset();
    EXPECT_EQ(machine_.refused, 0u);
    EXPECT_EQ(machine_.registrations(), 0u);
    EXPECT_EQ(machine_.modules + machine_.contexts, 0);
  }
  std::unique_ptr<CudaDevice> open(int ordinal) {
    return *CudaDevice::open(machine_.driver(), kFakeImage, ordinal);
  }
  std::byte* pool() { return reinterpret_cast<std::byte*>(pool_.data()); }
  std::byte* more() { return reinterpret_cast<std::byte*>(more_.data()); }

  gpu::FakeMachine machine_;
  std::vector<memory::Line> pool_ = std::vector<memory::Line>(kBytes / 64), more_ = pool_;
  std::unique_ptr<CudaDevice> device_;
};

TEST_F(CudaDeviceTest, ThePoolIsRegisteredInPartsOrNotAtAll) {
  ASSERT_TRUE(device_->register_pool(more(), kBytes, 1024));
  EXPECT_EQ(machine_.registrations(), 5u);
  EXPECT_TRUE(device_->pool().find({more() + 1024, 1024}));
  EXPECT_FALSE(device_->pool().find({more() + 1024, 1025}));
  ASSERT_TRUE(device_->unregister_pool(more()));
  EXPECT_EQ(machine_.registrations(), 1u);
  // The third of four is there already.
  ASSERT_TRUE(device_->register_pool(more() + 2048, 64));
  EXPECT_EQ(device_->register_pool(more(), kBytes, 1024).error().code, Code::kInvalidArgument);
  EXPECT_EQ(machine_.registrations(), 2u);
  EXPECT_FALSE(device_->pool().find_part({more(), 64}));
  machine_.failing["host_device_pointer"] = gpu::kOutOfMemory;
  EXPECT_EQ(device_->register_pool(more(), 1024).error().code, Code::kNoSpace);
  machine_.failing.clear();
  EXPECT_EQ(machine_.registrations(), 2u);
}

TEST_F(CudaDeviceTest, ADeviceSharesAllThatAnotherReaches) {
  ASSERT_TRUE(device_->register_pool(more(), kBytes, 1024));
  const auto second = open(1);
  ASSERT_TRUE(second->share_pool(*device_));
  EXPECT_EQ(machine_.registrations(), 5u);
  for (const memory::Extent& extent : {memory::Extent{pool(), kBytes}, memory::Extent{more(), 1024},
                                       memory::Extent{more() + 3072, 1024}}) {
    EXPECT_EQ(*second->pool().find(extent), *device_->pool().find(extent));
  }
  EXPECT_FALSE(second->share_pool(*device_));
  EXPECT_TRUE(device_->unregister_pool(more()));
  EXPECT_EQ(machine_.registrations(), 5u) << "the second has it still";
  EXPECT_TRUE(second->unregister_pool(more()));
  EXPECT_EQ(machine_.registrations(), 1u);
}

// The registration's context ends with it, wherever that is.
TEST_F(CudaDeviceTest, AThreadIsNotLeftInAContextThatIsGone) {
  auto second = open(1);
  ASSERT_TRUE(second->share_pool(*device_));
  device_.reset();
  EXPECT_EQ(machine_.contexts, 2) << "the registration's, and the second device's";
  std::thread([&] {
    gpu::Context left = &left;
    EXPECT_TRUE(second->unregister_pool(pool()));
    EXPECT_EQ(machine_.contexts, 1);
    machine_.driver().context_get_current(&left);
    EXPECT_EQ(left, nullptr);
    second.reset();
    machine_.driver().context_get_current(&left);
    EXPECT_EQ(left, nullptr);
  }).join();
}

}  // namespace
}  // namespace cachalot::kv
