// What the driver is given: what is merged, where copies end, when sources are read. In an engine:
// cuda_engine_test.cpp.
#include "kv/cuda/driver_copies.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>

#include "kv/cuda/way.h"
#include "testing/kv/fake_kernels.h"
#include "testing/kv/kernels_under_test.h"

namespace cachalot::kv {
namespace {

// A pool that is registered in parts of 4 KiB, and as many bytes of the device's.
class DriverCopiesOnFakeGpu : public testing::Test {
 protected:
  static constexpr std::uint64_t kBytes = 16 << 10, kPart = 4 << 10;

  DriverCopiesOnFakeGpu() {
    add_kernels_under_test(machine_);
    device_ = *CudaDevice::open(machine_.driver(), kFakeImage, 0);
    for (std::size_t i = 0; i < pool_.size(); ++i) {
      pool_[i] = static_cast<std::byte>(i * 7 / 64);
    }
    EXPECT_TRUE(device_->register_pool(pool_.data(), kBytes, kPart));
    entered_.emplace(*device_);
    EXPECT_TRUE(ok(driver().memory_allocate(&pages_, kBytes)));
    EXPECT_TRUE(ok(driver().stream_create(&stream_, gpu::kStreamNonBlocking)));
  }
  ~DriverCopiesOnFakeGpu() override {
    EXPECT_TRUE(ok(driver().stream_destroy(stream_)));
    EXPECT_TRUE(ok(driver().memory_free(pages_)));
    entered_.reset();
    device_.reset();
    EXPECT_EQ(machine_.faults + machine_.refused, 0u);
  }

  const gpu::Driver& driver() const { return device_->driver(); }
  bool ok(int result) const { return device_->check(result, "a test").ok(); }
  DriverCopies copies(Direction direction, std::uint32_t at_once) {
    return DriverCopies(*device_, stream_, direction, at_once);
  }
  memory::Extent pool(std::uint64_t at, std::uint64_t bytes) { return {pool_.data() + at, bytes}; }
  std::byte* page(std::uint64_t at) { return reinterpret_cast<std::byte*>(pages_ + at); }
  bool wait() { return ok(driver().stream_synchronize(stream_)); }

  gpu::FakeMachine machine_;
  std::unique_ptr<CudaDevice> device_;
  std::optional<CudaDevice::Entered> entered_;
  std::vector<std::byte> pool_ = std::vector<std::byte>(kBytes);
  gpu::DevicePointer pages_ = 0;
  gpu::Stream stream_ = nullptr;
};

TEST_F(DriverCopiesOnFakeGpu, RunsThatTouchOnBothSidesAreOneCopy) {
  for (const std::uint32_t at_once : {0u, 8u}) {
    std::memset(page(0), 0, kBytes);
    machine_.batches.clear();
    machine_.copies = 0;
    DriverCopies these = copies(Direction::kScatter, at_once);
    these.add(pool(0, 100), 0, pages_ + 1000);
    these.add(pool(100, 50), 0, pages_ + 1100);
    these.add(pool(150, 50), 0, pages_ + 1151);  // apart on the device
    these.add(pool(201, 50), 0, pages_ + 1201);  // apart in the pool
    these.add(pool(251, 50), 1, pages_ + 1251);  // in another tensor
    ASSERT_TRUE(these.finish());
    if (at_once == 0) {
      EXPECT_EQ(machine_.copies, 4u);
    } else {
      EXPECT_EQ(machine_.batches, std::vector<std::size_t>{4});
    }
    ASSERT_TRUE(wait());
    EXPECT_EQ(std::memcmp(page(1000), &pool_[0], 150), 0);
    EXPECT_EQ(page(1150)[0], std::byte{0});
    EXPECT_EQ(std::memcmp(page(1151), &pool_[150], 50), 0);
    EXPECT_EQ(std::memcmp(page(1201), &pool_[201], 100), 0);
  }
}

TEST_F(DriverCopiesOnFakeGpu, ACopyEndsWhereARegistrationEnds) {
  DriverCopies these = copies(Direction::kScatter, 8);
  these.add(pool(kPart - 64, 64), 0, pages_);
  these.add(pool(kPart, 2 * kPart), 0, pages_ + 64);
  ASSERT_TRUE(these.finish());
  EXPECT_EQ(machine_.batches, std::vector<std::size_t>{3});
  ASSERT_TRUE(wait());
  EXPECT_EQ(std::memcmp(page(0), &pool_[kPart - 64], 2 * kPart + 64), 0);
}

// The device begins when the first call ends.
TEST_F(DriverCopiesOnFakeGpu, TheFirstOfSeveralCallsIsShort) {
  DriverCopies these = copies(Direction::kScatter, 64);
  for (std::uint64_t i = 0; i < 100; ++i) these.add(pool(i * 128, 64), 0, pages_ + i * 64);
  ASSERT_TRUE(these.finish());
  EXPECT_EQ(machine_.batches, (std::vector<std::size_t>{kFirstBatchCopies, 64, 20}));
  ASSERT_TRUE(wait());
  for (std::uint64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(std::memcmp(page(i * 64), &pool_[i * 128], 64), 0) << i;
  }
}

// What a kernel before writes into the pages is what a gather brings. The fake reads the first source of a batch
// when the batch is submitted, if that is allowed.
TEST_F(DriverCopiesOnFakeGpu, SourcesOfAGatherAreReadInTheStreamsOrder) {
  const std::vector<std::byte> former(256, std::byte{1}), newer(256, std::byte{2});
  std::memcpy(page(0), former.data(), 256);
  ASSERT_TRUE(ok(driver().copy_to_device(pages_, newer.data(), 256, stream_)));
  DriverCopies gather = copies(Direction::kGather, 8);
  gather.add(pool(512, 256), 0, pages_);
  ASSERT_TRUE(gather.finish());
  EXPECT_NE(std::memcmp(&pool_[512], newer.data(), 256), 0);
  ASSERT_TRUE(wait());
  EXPECT_EQ(std::memcmp(&pool_[512], newer.data(), 256), 0);
}

// The target is written in the stream's order even then.
TEST_F(DriverCopiesOnFakeGpu, SourcesOfAScatterMayBeReadBefore) {
  const std::vector<std::byte> before(256, std::byte{1});
  ASSERT_TRUE(ok(driver().copy_to_device(pages_, before.data(), 256, stream_)));
  DriverCopies scatter = copies(Direction::kScatter, 8);
  scatter.add(pool(512, 256), 0, pages_);
  ASSERT_TRUE(scatter.finish());
  const std::vector<std::byte> wanted(pool_.begin() + 512, pool_.begin() + 768);
  std::memset(&pool_[512], 9, 256);
  ASSERT_TRUE(wait());
  EXPECT_EQ(std::memcmp(page(0), wanted.data(), 256), 0);
}

TEST_F(DriverCopiesOnFakeGpu, AnErrorNamesTheCopyAndEndsTheCopies) {
  for (const std::uint32_t at_once : {0u, 1u}) {
    machine_.failing = {{"copy", gpu::kOutOfMemory}, {"copy_batch", gpu::kOutOfMemory}};
    machine_.failing_copy = gpu::kNoCopy;
    DriverCopies these = copies(Direction::kGather, at_once);
    these.add(pool(0, 100), 0, pages_);
    these.add(pool(200, 100), 0, pages_ + 200);
    machine_.failing_copy = 0;
    these.add(pool(400, 100), 0, pages_ + 400);
    machine_.failing.clear();
    these.add(pool(600, 100), 0, pages_ + 600);
    const Status status = these.finish();
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::kNoSpace);
    const std::string message = status.error().message;
    EXPECT_EQ(message.find(at_once == 0 ? "cuMemcpyAsync, copy 0: 100 bytes from 0x"
                                        : "cuMemcpyBatchAsync of 1 copies: CUDA_ERROR"),
              0u)
        << message;
  }
  EXPECT_EQ(machine_.copies + machine_.batches.size(), 0u);
}

}  // namespace
}  // namespace cachalot::kv
