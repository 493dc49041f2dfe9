// What the backend makes of its calls, seen by an emulated driver. Its rules: conformance_test.cpp.
#include "device_memory/cuda/cuda_backend.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "testing/gpu/fake_gpu.h"

namespace cachalot::device_memory {
namespace {

constexpr std::uint64_t kChunk = gpu::FakeMachine::kGranularity;

class CudaOnFakeGpu : public testing::Test {
 protected:
  std::unique_ptr<CudaBackend> open(const CudaOptions& options = {}) {
    auto backend = CudaBackend::open(machine_.driver(), options);
    EXPECT_TRUE(backend) << backend.error().message;
    return *std::move(backend);
  }
  Error refusal(const CudaOptions& options) {
    const auto backend = CudaBackend::open(machine_.driver(), options);
    EXPECT_FALSE(backend);
    EXPECT_EQ(machine_.contexts, 0) << "a context is still held";
    return backend ? Error() : backend.error();
  }
  static void expect_in(const Error& error, const char* part) {
    EXPECT_NE(std::strstr(error.message, part), nullptr) << error.message;
  }

  gpu::FakeMachine machine_;
};

TEST_F(CudaOnFakeGpu, SaysWhatItIs) {
  EXPECT_EQ(open({.device = 1})->description(), "Fake GPU (device 1)");
  EXPECT_EQ(open({.peers = {1, 2}, .rdma = true})->description(),
            "Fake GPU (device 0), RDMA; peers 1 2");
  EXPECT_EQ(open()->granularity_bytes(), kChunk);
}

TEST_F(CudaOnFakeGpu, CreatesHandlesWithWhatTheOptionsSay) {
  ASSERT_TRUE(open({.device = 2})->create(kChunk));
  EXPECT_EQ(machine_.last_properties.location.id, 2);
  EXPECT_EQ(machine_.last_properties.export_types, 0);
  EXPECT_EQ(machine_.last_properties.rdma_capable, 0);
  ASSERT_TRUE(open({.rdma = true})->create(kChunk));
  EXPECT_EQ(machine_.last_properties.rdma_capable, 1);
  EXPECT_EQ(machine_.last_properties.compression, 0);
  EXPECT_EQ(machine_.last_properties.usage, 0);
}

TEST_F(CudaOnFakeGpu, SetsAccessOfTheDeviceAndItsPeersInOneCallASpan) {
  const auto backend = open({.device = 1, .peers = {0, 2}});
  const Address range = *backend->reserve(8 * kChunk);
  for (std::uint64_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(backend->map(range + i * kChunk, *backend->create(kChunk)));
  }
  for (const auto& [access, flags] :
       {std::pair{Access::kReadWrite, 3}, {Access::kRead, 1}, {Access::kNone, 0}}) {
    const std::uint64_t before = machine_.access_calls;
    ASSERT_TRUE(backend->set_access(range, 8 * kChunk, access));
    EXPECT_EQ(machine_.access_calls, before + 1);
    ASSERT_EQ(machine_.last_access.size(), 3u);
    const int ids[] = {1, 0, 2};
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(machine_.last_access[i].location.type, 1);
      EXPECT_EQ(machine_.last_access[i].location.id, ids[i]);
      EXPECT_EQ(machine_.last_access[i].flags, flags);
    }
  }
}

TEST_F(CudaOnFakeGpu, IsRefusedWhereTheDeviceCannotDoWhatTheOptionsSay) {
  const struct {
    int attribute;
    CudaOptions options;
    const char* says;
  } cases[] = {{gpu::kHasVirtualMemory, {}, "virtual memory management"},
               {gpu::kHasRdmaWithVirtualMemory, {.rdma = true}, "RDMA"}};
  for (const auto& c : cases) {
    machine_.missing_attributes = {c.attribute};
    const Error error = refusal(c.options);
    EXPECT_EQ(error.code, Code::kUnsupported);
    expect_in(error, c.says);
    expect_in(error, "device 0");
  }
  // What is not asked for may be missing.
  machine_.missing_attributes = {gpu::kHasRdmaWithVirtualMemory};
  EXPECT_TRUE(open());
}

TEST_F(CudaOnFakeGpu, IsRefusedWhereAPeerCannotReachTheDevice) {
  machine_.strangers = {{2, 0}};
  EXPECT_TRUE(open({.device = 0, .peers = {1}}));
  const Error error = refusal({.device = 0, .peers = {1, 2}});
  EXPECT_EQ(error.code, Code::kUnsupported);
  expect_in(error, "device 2 cannot reach the memory of device 0");
}

TEST_F(CudaOnFakeGpu, IsRefusedWithoutDriverOrDevice) {
  const Error no_such = refusal({.device = 3});
  EXPECT_EQ(no_such.code, Code::kInvalidArgument);
  expect_in(no_such, "device 3");
  machine_.failing["init"] = gpu::kNoDevice;
  EXPECT_EQ(refusal({}).code, Code::kUnsupported);
  const auto missing = gpu::load_driver("libcachalot-no-such-driver.so.1");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::kUnsupported);
  expect_in(missing.error(), "expected an NVIDIA driver");
  const auto other = gpu::load_driver("libc.so.6");
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::kUnsupported);
  expect_in(other.error(), "libc.so.6 has no cuInit");
}

TEST_F(CudaOnFakeGpu, TellsTheDriversErrorsApart) {
  const auto backend = open();
  const std::pair<int, Code> cases[] = {{gpu::kOutOfMemory, Code::kNoSpace},
                                        {gpu::kNotSupported, Code::kUnsupported},
                                        {gpu::kNotPermitted, Code::kPermission},
                                        {gpu::kInvalidValue, Code::kInternal},
                                        {719, Code::kIo}};
  for (const auto& [result, code] : cases) {
    machine_.failing["create"] = result;
    const auto handle = backend->create(kChunk);
    ASSERT_FALSE(handle);
    EXPECT_EQ(handle.error().code, code);
    EXPECT_EQ(handle.error().detail, static_cast<std::uint64_t>(result));
    expect_in(handle.error(), "cuMemCreate of 2097152 bytes");
    expect_in(handle.error(), "device 0");
  }
}

TEST_F(CudaOnFakeGpu, EveryFailureOfTheDriverIsAnErrorThatNamesTheCall) {
  const auto backend = open();
  const Address range = *backend->reserve(2 * kChunk);
  const Handle handle = *backend->create(kChunk), other = *backend->create(kChunk);
  ASSERT_TRUE(backend->map(range, handle));
  const auto expect_failure = [&](const char* function, const char* call, auto&& what) {
    machine_.failing = {{function, 719}};
    const auto result = what();
    ASSERT_FALSE(result);
    expect_in(result.error(), call);
    machine_.failing = {};
  };
  expect_failure("address_reserve", "cuMemAddressReserve",
                 [&] { return backend->reserve(kChunk); });
  expect_failure("map", "cuMemMap", [&] { return backend->map(range + kChunk, handle); });
  expect_failure("set_access", "cuMemSetAccess",
                 [&] { return backend->set_access(range, kChunk, Access::kRead); });
  expect_failure("unmap", "cuMemUnmap", [&] { return backend->unmap(range, kChunk); });
  expect_failure("release", "cuMemRelease", [&] { return backend->release(other); });
  ASSERT_TRUE(backend->unmap(range, kChunk));
  expect_failure("address_free", "cuMemAddressFree", [&] { return backend->free_range(range); });
}

TEST_F(CudaOnFakeGpu, TheDevicesMemoryIsALimitToo) {
  machine_.memory_bytes = 3 * kChunk;
  const auto backend = open();
  ASSERT_TRUE(backend->create(2 * kChunk));
  EXPECT_EQ(backend->create(2 * kChunk).error().code, Code::kNoSpace);
  EXPECT_TRUE(backend->create(kChunk));
}

TEST_F(CudaOnFakeGpu, GivesThreadsWithoutAContextTheDevicesOne) {
  const auto backend = open();
  std::thread([&] { EXPECT_TRUE(backend->create(kChunk)); }).join();
  EXPECT_EQ(machine_.without_context, 0u);
}

TEST_F(CudaOnFakeGpu, LeavesNothingOnTheDeviceWhenItIsGone) {
  {
    const auto backend = open();
    const Address range = *backend->reserve(8 * kChunk);
    const Handle two = *backend->create(2 * kChunk), released = *backend->create(kChunk);
    ASSERT_TRUE(backend->map(range, two));
    ASSERT_TRUE(backend->map(range + 4 * kChunk, two));
    ASSERT_TRUE(backend->map(range + 6 * kChunk, released));
    ASSERT_TRUE(backend->release(released));
    ASSERT_TRUE(backend->create(kChunk));
    ASSERT_TRUE(backend->reserve(kChunk));
  }
  EXPECT_EQ(machine_.mappings(), 0u);
  EXPECT_EQ(machine_.handles(), 0u);
  EXPECT_EQ(machine_.ranges(), 0u);
  EXPECT_EQ(machine_.used_bytes(), 0u);
  EXPECT_EQ(machine_.contexts, 0);
  EXPECT_EQ(machine_.refused, 0u);
}

}  // namespace
}  // namespace cachalot::device_memory
