// What is the memfd backend's own: bytes, faults, the kernel's mappings. Its rules: conformance_test.
#include "device_memory/memfd/memfd_backend.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "testing/device_memory/memfd_faults.h"

namespace cachalot::device_memory {
namespace {

constexpr std::uint64_t kChunk = PageStore::kChunkBytes;

// In small pages: faults and bytes are the same, and every machine has them.
class SmallPages : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = MemfdBackend::open({.source = PageSource::kSmall});
    ASSERT_TRUE(opened) << opened.error().message;
    backend_ = *std::move(opened);
    range_ = *backend_->reserve(8 * kChunk);
    handle_ = *backend_->create(kChunk);
  }
  std::unique_ptr<MemfdBackend> backend_;
  Address range_ = 0;
  Handle handle_;
};

TEST_F(SmallPages, TouchingIsDeathUntilAccessIsSet) {
  EXPECT_EQ(fate_of_reading(range_), "signal 11 (SEGV)");
  ASSERT_TRUE(backend_->map(range_, handle_));
  EXPECT_EQ(fate_of_reading(range_), "signal 11 (SEGV)");
  ASSERT_TRUE(backend_->set_access(range_, kChunk, Access::kRead));
  EXPECT_EQ(fate_of_reading(range_ + kChunk - 1), "nothing");
  EXPECT_EQ(fate_of_writing(range_), "signal 11 (SEGV)");
  ASSERT_TRUE(backend_->set_access(range_, kChunk, Access::kReadWrite));
  EXPECT_EQ(fate_of_writing(range_), "nothing");
  EXPECT_EQ(fate_of_reading(range_ + kChunk), "signal 11 (SEGV)");
  ASSERT_TRUE(backend_->set_access(range_, kChunk, Access::kNone));
  EXPECT_EQ(fate_of_reading(range_), "signal 11 (SEGV)");
}

TEST_F(SmallPages, TouchingWhatWasUnmappedIsDeath) {
  ASSERT_TRUE(backend_->map(range_, handle_));
  ASSERT_TRUE(backend_->set_access(range_, kChunk, Access::kReadWrite));
  store(range_, 7);
  ASSERT_TRUE(backend_->unmap(range_, kChunk));
  EXPECT_EQ(fate_of_reading(range_), "signal 11 (SEGV)");
  // A new mapping begins without access, whatever the place had before.
  ASSERT_TRUE(backend_->map(range_, handle_));
  EXPECT_EQ(fate_of_reading(range_), "signal 11 (SEGV)");
}

TEST_F(SmallPages, AllMappingsOfAHandleShowTheSameBytes) {
  for (const std::uint64_t place : {0, 1, 5}) {
    ASSERT_TRUE(backend_->map(range_ + place * kChunk, handle_));
    ASSERT_TRUE(backend_->set_access(range_ + place * kChunk, kChunk, Access::kReadWrite));
  }
  for (const std::uint64_t at : {std::uint64_t{0}, std::uint64_t{4095}, kChunk - 1}) {
    store(range_ + at, 42);
    EXPECT_EQ(load(range_ + kChunk + at), 42);
    store(range_ + 5 * kChunk + at, 43);
    EXPECT_EQ(load(range_ + at), 43);
  }
}

TEST_F(SmallPages, BytesLiveAsLongAsTheHandleOrAMapping) {
  ASSERT_TRUE(backend_->map(range_, handle_));
  ASSERT_TRUE(backend_->set_access(range_, kChunk, Access::kReadWrite));
  store(range_, 9);
  ASSERT_TRUE(backend_->unmap(range_, kChunk));  // only the handle is left
  ASSERT_TRUE(backend_->map(range_ + kChunk, handle_));
  ASSERT_TRUE(backend_->release(handle_));  // only the mapping is left
  ASSERT_TRUE(backend_->set_access(range_ + kChunk, kChunk, Access::kRead));
  EXPECT_EQ(load(range_ + kChunk), 9);
}

TEST_F(SmallPages, NewMemoryIsZero) {
  for (int round = 0; round < 2; ++round) {
    const Handle handle = *backend_->create(kChunk);
    ASSERT_TRUE(backend_->map(range_, handle));
    ASSERT_TRUE(backend_->set_access(range_, kChunk, Access::kReadWrite));
    for (std::uint64_t at = 0; at < kChunk; at += 512) ASSERT_EQ(load(range_ + at), 0);
    std::memset(reinterpret_cast<void*>(range_), 0xff, kChunk);
    ASSERT_TRUE(backend_->unmap(range_, kChunk));
    ASSERT_TRUE(backend_->release(handle));
  }
}

// The lines of /proc/self/maps inside these addresses.
std::uint64_t mappings_in(Address from, std::uint64_t bytes) {
  std::ifstream maps("/proc/self/maps");
  std::uint64_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    Address begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64, &begin, &end) != 2) continue;
    count += begin < from + bytes && end > from;
  }
  return count;
}

TEST_F(SmallPages, HandlesMadeInARowBecomeOneMappingOfTheKernel) {
  std::vector<Handle> handles(8);
  for (Handle& handle : handles) handle = *backend_->create(kChunk);
  for (std::uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(backend_->map(range_ + i * kChunk, handles[i]));
  ASSERT_TRUE(backend_->set_access(range_, 8 * kChunk, Access::kReadWrite));
  EXPECT_EQ(mappings_in(range_, 8 * kChunk), 1u);
}

TEST_F(SmallPages, UnmapsASpanWithOneCallOfTheKernel) {
  for (std::uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(backend_->map(range_ + i * kChunk, handle_));
  EXPECT_EQ(mappings_in(range_, 8 * kChunk), 8u);  // one handle eight times: nothing to merge
  ASSERT_TRUE(backend_->unmap(range_, 8 * kChunk));
  EXPECT_EQ(mappings_in(range_, 8 * kChunk), 1u);
}

TEST_F(SmallPages, TheKernelsLimitOfMappingsIsAnErrorAndTheProcessLivesOn) {
  std::uint64_t limit = 0;
  std::ifstream("/proc/sys/vm/max_map_count") >> limit;
  if (limit > 200'000) GTEST_SKIP() << "vm.max_map_count is " << limit;
  const Address wide = *backend_->reserve(2 * limit * kChunk);
  std::uint64_t mapped = 0;
  Status status;
  while ((status = backend_->map(wide + 2 * mapped * kChunk, handle_))) ++mapped;
  EXPECT_EQ(status.error().code, Code::kNoSpace);
  EXPECT_NE(std::strstr(status.error().message, "vm.max_map_count"), nullptr);
  // A mapping and a hole each; a sixteenth is spared, so that the process can go on.
  EXPECT_GT(mapped, limit / 2 - limit / 16);
  EXPECT_LT(mapped, limit / 2 - limit / 64);
  EXPECT_EQ(backend_->mapped_bytes(), mapped * kChunk);
  EXPECT_TRUE(backend_->set_access(wide, kChunk, Access::kReadWrite));
  for (std::uint64_t i = 0; i < mapped / 2; ++i) {
    ASSERT_TRUE(backend_->unmap(wide + 2 * i * kChunk, kChunk));
  }
  EXPECT_TRUE(backend_->map(wide, handle_));
}

TEST_F(SmallPages, NothingIsLeftWhenTheBackendIsGone) {
  ASSERT_TRUE(backend_->map(range_, handle_));
  const Handle released = *backend_->create(kChunk);
  ASSERT_TRUE(backend_->map(range_ + 3 * kChunk, released));
  ASSERT_TRUE(backend_->release(released));
  backend_.reset();
  for (std::uint64_t i = 0; i < 8; ++i) {
    // No other thread maps in between, so the place is empty.
    EXPECT_EQ(msync(reinterpret_cast<void*>(range_ + i * kChunk), 4096, MS_ASYNC), -1);
    EXPECT_EQ(errno, ENOMEM);
  }
}

}  // namespace
}  // namespace cachalot::device_memory
