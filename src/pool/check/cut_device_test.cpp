// Device files that were cut off at a page, and those that grew again, with zeros where their end was.
//
// A cut pool is an error for each program that opens it: no signal, no hang, nothing is written. In one that grew
// again fsck names what was lost, and the repaired pool is clean, served, and takes blocks. CACHALOT_SWEEP_ALL=1 lets the
// only device grow again at every page (`make soak-fsck`).

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "os/file_descriptor.h"
#include "pool/check/fsck.h"
#include "testing/os/shm_folder.h"
#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

constexpr std::uint64_t kNames = 40, kNewName = 1000;

bool takes_all() {
  return std::getenv("CACHALOT_SWEEP_ALL") != nullptr;
}

// A pool of this many devices with blocks on each, stopped in order.
class CutDevice : public os::ShmFolder, public testing::WithParamInterface<std::uint32_t> {
 protected:
  void SetUp() override {
    CreateOptions create;
    create.paths = {path("kv")};
    create.geometry = small_geometry(kNames + 8, 32);
    create.geometry.devices = devices();
    create.geometry.block_bytes = devices() == 1 ? 4096 : 65536;
    create.huge_pages = create.populate = false;
    ASSERT_TRUE(Pool::create(create));
    serve([&](Pool& pool) {
      ClientOptions options;
      options.write_checksums = true;
      Result<PoolClient> client = pool.attach(options);
      ASSERT_TRUE(client) << client.error().message;
      put_chain(client->client(), create.geometry.block_bytes, 0, 10);
      put_chain(client->client(), create.geometry.block_bytes, 10, kNames - 10);
    });
    for (std::uint32_t i = 0; i < devices(); ++i) {
      std::ifstream in(device(i), std::ios::binary);
      whole_.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    }
  }
  ~CutDevice() override {
    std::printf("  cut: %zu; cut and grown: %zu, of which fsck named %zu; blocks read: %zu\n", cut_,
                grown_, named_, blocks_read_);
  }

  static std::uint32_t devices() { return GetParam(); }
  std::string device(std::uint32_t index) const {
    return index == 0 ? path("kv") : path("kv") + "." + std::to_string(index);
  }
  void cut(std::uint32_t index, std::uint64_t bytes) const {
    std::filesystem::resize_file(device(index), bytes);
  }
  void restore() const {
    for (std::uint32_t i = 0; i < devices(); ++i) {
      const os::FileDescriptor file(open(device(i).c_str(), O_RDWR | O_CLOEXEC));
      ASSERT_EQ(pwrite(file.get(), whole_[i].data(), whole_[i].size(), 0),
                static_cast<ssize_t>(whole_[i].size()));
    }
  }

  // Runs `body` while a keeper serves the pool.
  template <class F>
  void serve(F&& body) {
    Result<Pool> pool = Pool::open({path("kv")}, {.huge_pages = false});
    ASSERT_TRUE(pool) << pool.error().message;
    Result<PoolKeeper> keeper = pool->serve({});
    ASSERT_TRUE(keeper) << keeper.error().message;
    std::atomic<bool> stop{false};
    std::thread thread([&] { EXPECT_TRUE(keeper->run(stop)); });
    body(*pool);
    stop = true;
    thread.join();
    EXPECT_TRUE(keeper->keeper().is_valid());
    keeper->keeper().stop();
  }
  // Blocks that a reader gets; a wrong byte fails the test (read_chain).
  std::size_t count_served() {
    std::size_t blocks = 0;
    serve([&](Pool& pool) {
      ClientOptions options;
      options.verify_checksums = options.reads_only = true;
      Result<PoolClient> reader = pool.attach(options);
      ASSERT_TRUE(reader) << reader.error().message;
      for (std::uint64_t name = 0; name < kNames; ++name)
        blocks += read_chain(reader->client(), pool.access().geometry.block_bytes, name, 1);
    });
    blocks_read_ += blocks;
    return blocks;
  }
  void expect_stores() {
    serve([&](Pool& pool) {
      ClientOptions options;
      options.fingerprint = "new";
      options.write_checksums = options.verify_checksums = true;
      Result<PoolClient> writer = pool.attach(options);
      ASSERT_TRUE(writer) << writer.error().message;
      static_cast<void>((*writer)->requests().fence_unknown());  // there may be none
      const std::uint64_t block_bytes = pool.access().geometry.block_bytes;
      put_chain(writer->client(), block_bytes, kNewName, 3);
      EXPECT_EQ(read_chain(writer->client(), block_bytes, kNewName, 3), 3u);
    });
  }

  void try_cut(std::uint32_t index, std::uint64_t bytes) {
    SCOPED_TRACE("device " + std::to_string(index) + " of " + std::to_string(bytes) + " bytes");
    cut(index, bytes);
    ++cut_;
    for (const bool read_only : {false, true}) {
      const Result<Pool> pool =
          Pool::open({path("kv")}, {.huge_pages = false, .read_only = read_only});
      ASSERT_FALSE(pool);
      EXPECT_NE(std::string(pool.error().message).find(device(index)), std::string::npos)
          << pool.error().message;
    }
    const Result<FsckReport> report = check_pool_at({path("kv")}, {});
    if (bytes < memory::kStripeBytes) {
      ASSERT_FALSE(report);
      EXPECT_NE(std::string(report.error().message).find(device(index)), std::string::npos)
          << report.error().message;
    } else {
      ASSERT_TRUE(report) << report.error().message;
      EXPECT_EQ(report->counts[static_cast<std::size_t>(FaultKind::kShortDevice)], 1u);
      EXPECT_EQ(report->count_faults(), 1u);
      EXPECT_FALSE(report->is_whole);
    }
    const Result<RepairReport> repaired = repair_pool_at({path("kv")}, {});
    EXPECT_TRUE(!repaired || !repaired->was_taken_over);
    EXPECT_EQ(std::filesystem::file_size(device(index)), bytes);
  }

  // The rest of the device is zeros.
  void try_grown(std::uint32_t index, std::uint64_t bytes) {
    SCOPED_TRACE("device " + std::to_string(index) + ", zeros from byte " + std::to_string(bytes));
    restore();
    cut(index, bytes);
    cut(index, whole_[index].size());
    ++grown_;
    const Result<FsckReport> found = check_pool_at({path("kv")}, {});
    // Without its header the only device is no pool.
    if (devices() == 1 && bytes == 0) {
      EXPECT_FALSE(found);
      EXPECT_FALSE(repair_pool_at({path("kv")}, {}));
      EXPECT_FALSE(Pool::open({path("kv")}));
      return;
    }
    ASSERT_TRUE(found) << found.error().message;
    named_ += found->count_faults() != 0;
    if (bytes != 0) {
      const std::size_t served = count_served();
      EXPECT_TRUE(served == kNames || found->count_faults() != 0) << served << " blocks are left";
      restore();
      cut(index, bytes);
      cut(index, whole_[index].size());
    }
    const Result<RepairReport> repaired = repair_pool_at({path("kv")}, {});
    ASSERT_TRUE(repaired) << repaired.error().message;
    EXPECT_EQ(repaired->after.count_faults() + repaired->after.count_remnants(), 0u);
    EXPECT_EQ(count_served(), repaired->after.check.figures.blocks.live);
    expect_stores();
  }

  std::vector<std::string> whole_;  // each device's bytes
  std::size_t cut_ = 0, grown_ = 0, named_ = 0, blocks_read_ = 0;
};

TEST_P(CutDevice, IsNamedAtEveryPage) {
  for (std::uint32_t index = 0; index < devices(); ++index) {
    std::uint64_t bytes = whole_[index].size() - 1;
    for (; !HasFatalFailure(); bytes = (bytes - 1) / kPageBytes * kPageBytes) {
      try_cut(index, bytes);
      if (bytes == 0) break;
    }
    cut(index, whole_[index].size());
    restore();
  }
  EXPECT_EQ(count_served(), kNames);
}

TEST_P(CutDevice, IsNamedAndRepairedAfterItGrewAgain) {
  const std::uint64_t pages = !takes_all() ? 61 : devices() == 1 ? 1 : 8;
  for (std::uint32_t index = 0; index < devices(); ++index) {
    for (std::uint64_t bytes = 0; bytes < whole_[index].size() && !HasFatalFailure();
         bytes += pages * kPageBytes)
      try_grown(index, bytes);
    restore();
  }
}

class SparseDevice : public os::ShmFolder {
 protected:
  // What a sparse copy has no space for: pages of zeros.
  void punch_holes(const std::string& file) const {
    const os::FileDescriptor fd(open(file.c_str(), O_RDWR | O_CLOEXEC));
    const std::string zeros(kPageBytes, '\0');
    std::string page(kPageBytes, '\0');
    for (off_t at = 0; pread(fd.get(), page.data(), page.size(), at) > 0; at += kPageBytes) {
      if (page != zeros) continue;
      ASSERT_EQ(fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, kPageBytes), 0);
    }
  }
};

// To touch a hole there would be death by SIGBUS.
TEST_F(SparseDevice, IsRefusedOnAFullFileSystemAndCheckedOnceThereIsSpace) {
  if (!mount_here("tmpfs", "size=12m")) GTEST_SKIP() << "this user cannot mount a tmpfs";
  ASSERT_TRUE(create_small_pool(path("kv")));
  // Also a header may be in a hole.
  for (const bool has_header : {true, false}) {
    if (!has_header)
      std::ofstream(path("kv"), std::ios::in | std::ios::binary) << std::string(128, '\0');
    punch_holes(path("kv"));
    {
      std::ofstream filler(path("filler"), std::ios::binary);
      while (filler.write(std::string(kPageBytes, 'x').data(), kPageBytes).flush()) {
      }
    }
    const Result<FsckReport> full = check_pool_at({path("kv")}, {});
    ASSERT_FALSE(full);
    EXPECT_EQ(full.error().code, has_header ? Code::kNoSpace : Code::kNotAPool)
        << full.error().message;
    EXPECT_FALSE(repair_pool_at({path("kv")}, {}));
    std::filesystem::remove(path("filler"));
    if (!has_header) break;
    const Result<FsckReport> report = check_pool_at({path("kv")}, {});
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->count_faults(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CutDevice, testing::Values(1, 2));

}  // namespace
}  // namespace cachalot::pool
