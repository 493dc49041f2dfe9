// Headers: what is known of a damaged one, and whole pools in files, checked and repaired by their paths.

#include "pool/check/header_check.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "os/file_descriptor.h"
#include "pool/check/fsck.h"
#include "testing/os/shm_folder.h"
#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

class HeaderCheckTest : public os::ShmFolder {
 protected:
  void make(std::uint32_t devices = 1) {
    CreateOptions create;
    create.paths = {path("kv")};
    create.geometry = small_geometry();
    create.geometry.devices = devices;
    create.huge_pages = create.populate = false;
    const Result<Pool> made = Pool::create(create);
    ASSERT_TRUE(made) << made.error().message;
  }
  std::string device(std::uint32_t index) const {
    return index == 0 ? path("kv") : path("kv") + "." + std::to_string(index);
  }
  void flip(std::uint32_t device_index, std::uint64_t offset, unsigned char flip = 0x40) {
    const os::FileDescriptor file(open(device(device_index).c_str(), O_RDWR));
    unsigned char byte = 0;
    ASSERT_EQ(pread(file.get(), &byte, 1, static_cast<off_t>(offset)), 1);
    byte ^= flip;
    ASSERT_EQ(pwrite(file.get(), &byte, 1, static_cast<off_t>(offset)), 1);
  }
  void clear(std::uint32_t device_index, std::uint64_t offset, std::size_t bytes) {
    const os::FileDescriptor file(open(device(device_index).c_str(), O_RDWR));
    const std::vector<char> zeros(bytes);
    ASSERT_EQ(pwrite(file.get(), zeros.data(), bytes, static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes));
  }
  FsckReport check() {
    Result<FsckReport> report = check_pool_at({path("kv")}, {});
    EXPECT_TRUE(report) << (report ? "" : report.error().message);
    return report ? *std::move(report) : FsckReport{};
  }
  RepairReport repair() {
    Result<RepairReport> report = repair_pool_at({path("kv")}, {});
    EXPECT_TRUE(report) << (report ? "" : report.error().message);
    return report ? *std::move(report) : RepairReport{};
  }
};

TEST_F(HeaderCheckTest, EveryWrongByteOfAHeaderIsMended) {
  make();
  for (std::uint64_t at = 0; at < 128; ++at) {
    flip(0, at, static_cast<unsigned char>(at % 255 + 1));
    EXPECT_FALSE(Pool::open({path("kv")})) << "byte " << at;
    const FsckReport report = check();
    EXPECT_EQ(report.count_faults(), 1u) << "byte " << at;
    EXPECT_EQ(report.faults[0].kind, at < 64 ? FaultKind::kHeaderLine : FaultKind::kGeometryLine);
    EXPECT_TRUE(report.is_whole);
    const RepairReport repaired = repair();
    EXPECT_EQ(repaired.after.count_faults(), 0u) << "byte " << at;
    EXPECT_TRUE(Pool::open({path("kv")})) << "byte " << at;
  }
}

// CACHALOT_SWEEP_ALL=1 repairs each, too (`make soak-fsck`).
TEST_F(HeaderCheckTest, EveryBitOfEachHeaderIsNamedAndMended) {
  make(2);
  const bool repairs_all = std::getenv("CACHALOT_SWEEP_ALL") != nullptr;
  std::size_t flipped = 0, repaired = 0;
  for (std::uint32_t index = 0; index < 2; ++index) {
    for (std::uint64_t bit = 0; bit < 128 * 8; ++bit, ++flipped) {
      SCOPED_TRACE("device " + std::to_string(index) + ", bit " + std::to_string(bit));
      const auto mask = static_cast<unsigned char>(1u << bit % 8);
      flip(index, bit / 8, mask);
      EXPECT_FALSE(Pool::open({path("kv")}));
      EXPECT_FALSE(Pool::open({path("kv")}, {.read_only = true}));
      const FsckReport report = check();
      EXPECT_TRUE(report.is_whole);
      ASSERT_EQ(report.count_faults(), 1u);
      EXPECT_EQ(report.faults[0].kind,
                bit < 64 * 8 ? FaultKind::kHeaderLine : FaultKind::kGeometryLine);
      EXPECT_EQ(report.faults[0].device, index);
      if (!repairs_all && bit % 61 != 0) {
        flip(index, bit / 8, mask);
        continue;
      }
      EXPECT_EQ(repair().after.count_faults(), 0u);
      EXPECT_TRUE(Pool::open({path("kv")}));
      ++repaired;
    }
  }
  std::printf("  bits: %zu, all named; repaired: %zu\n", flipped, repaired);
}

TEST_F(HeaderCheckTest, ALostHeaderComesFromAnotherDevice) {
  make(3);
  for (const std::uint32_t lost : {0u, 2u}) {
    clear(lost, 0, 4096);
    EXPECT_FALSE(Pool::open({path("kv")}));
    const FsckReport report = check();
    EXPECT_EQ(report.count_faults(), 2u);
    EXPECT_EQ(report.faults[0].device, lost);
    EXPECT_TRUE(report.is_whole);
    EXPECT_EQ(repair().after.count_faults(), 0u);
    const Result<Pool> pool = Pool::open({path("kv")});
    ASSERT_TRUE(pool) << pool.error().message;
    EXPECT_EQ(pool->access().geometry.devices, 3u);
  }
}

TEST_F(HeaderCheckTest, ALostHeaderOfTheOnlyDeviceCannotBeMended) {
  make();
  clear(0, 64, 64);
  const FsckReport report = check();
  EXPECT_GE(report.count_faults(), 1u);
  EXPECT_FALSE(report.is_whole);
  const RepairReport repaired = repair();
  EXPECT_FALSE(repaired.was_taken_over);
  EXPECT_FALSE(Pool::open({path("kv")}));
}

TEST_F(HeaderCheckTest, WhatIsNoPoolIsAnError) {
  std::ofstream(path("kv")) << std::string(4 << 20, 'x');
  const Result<FsckReport> other = check_pool_at({path("kv")}, {});
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::kNotAPool);
  std::filesystem::resize_file(path("kv"), 100);
  EXPECT_FALSE(check_pool_at({path("kv")}, {}));
  std::filesystem::remove(path("kv"));
  const Result<FsckReport> absent = check_pool_at({path("kv")}, {});
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, Code::kNotFound);
}

TEST_F(HeaderCheckTest, AnotherVersionIsAnError) {
  make();
  {
    Result<Pool> pool = Pool::open({path("kv")});
    ASSERT_TRUE(pool);
    auto line =
        memory::as<HeaderLine>(pool->access().domain().read_line(pool->access().region.at(0)));
    line.version = 7;
    pool->access().region.publish(0, line);
  }
  const Result<FsckReport> report = check_pool_at({path("kv")}, {});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::kVersionMismatch);
}

TEST_F(HeaderCheckTest, AServedPoolIsCheckedAndNotRepaired) {
  make();
  Result<Pool> pool = Pool::open({path("kv")});
  ASSERT_TRUE(pool);
  Result<PoolKeeper> keeper = pool->serve({});
  ASSERT_TRUE(keeper) << keeper.error().message;
  const FsckReport report = check();
  EXPECT_EQ(report.keeper, KeeperPlace::kHere);
  EXPECT_EQ(report.count_faults(), 0u);
  const Result<RepairReport> repaired = repair_pool_at({path("kv")}, {});
  ASSERT_FALSE(repaired);
  EXPECT_EQ(repaired.error().code, Code::kBusy);
  EXPECT_NE(std::string(repaired.error().message).find("cachalot stop"), std::string::npos);
}

// The locks of a pool in a part of a file are its own.
TEST_F(HeaderCheckTest, OnlyTheServedOneOfTwoPoolsInAFileIsInUse) {
  ASSERT_TRUE(os::SharedFile::create(path("both"), 64 << 20, {}));
  const std::string parts[] = {path("both") + "@0+16MiB", path("both") + "@32MiB+32MiB"};
  for (const std::string& part : parts) {
    CreateOptions create;
    create.paths = {part};
    create.geometry = small_geometry();
    create.huge_pages = create.populate = false;
    ASSERT_TRUE(Pool::create(create));
  }
  for (std::size_t served = 0; served < 2; ++served) {
    Result<Pool> pool = Pool::open({parts[served]});
    ASSERT_TRUE(pool) << pool.error().message;
    const Result<PoolKeeper> keeper = pool->serve({});
    ASSERT_TRUE(keeper) << keeper.error().message;
    for (std::size_t part = 0; part < 2; ++part) {
      const Result<FsckReport> report = check_pool_at({parts[part]}, {});
      ASSERT_TRUE(report) << report.error().message;
      EXPECT_EQ(report->keeper, part == served ? KeeperPlace::kHere : KeeperPlace::kNone) << part;
    }
  }
}

}  // namespace
}  // namespace cachalot::pool
