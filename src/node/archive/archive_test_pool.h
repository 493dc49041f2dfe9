// A pool with storage behind it: a real keeper on a thread, clients, and a backend in memory with faults.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <thread>

#include "node/archive/archive.h"
#include "node/archive/archive_test_engine.h"
#include "node/changes/mirror.h"
#include "pool/reader/published_blocks.h"
#include "testing/storage/fake_backend.h"

namespace cachalot::node {

class ArchiveTest : public ::testing::TestWithParam<memory::DomainKind>, public TestEngine {
 protected:
  void SetUp() override {
    path_ = "/dev/shm/cachalot_archive_test." + std::to_string(getpid());
    make_pool();
  }
  void TearDown() override {
    stop();
    std::filesystem::remove(path_);
  }

  void make_pool(std::uint32_t capacity = 64) {
    pool::CreateOptions create;
    create.paths = {path_};
    create.geometry.domain = GetParam();
    create.geometry.block_bytes = kBlockBytes;
    create.geometry.capacity_blocks = capacity;
    create.geometry.blocks = capacity + 64;
    create.geometry.directory_slots = pool::rated_directory_slots(capacity);
    create.geometry.note_bytes = 256;
    create.geometry.clients = 5;
    Result<pool::Pool> pool = pool::Pool::create(create);
    ASSERT_TRUE(pool) << pool.error().message;
    pool_.emplace(*std::move(pool));
  }
  void start(const ArchiveOptions& options = {}, const storage::StoreOptions& limits = {}) {
    Result<pool::PoolKeeper> keeper = pool_->serve({});
    ASSERT_TRUE(keeper) << keeper.error().message;
    keeper_.emplace(*std::move(keeper));
    std::vector<std::unique_ptr<storage::Store>> stores;
    for (storage::FakeBackend::Disk* const disk : {&disk_, &second_disk_}) {
      if (disk == &disk_ || has_second_)
        stores.push_back(
            storage::Store::make(std::make_unique<storage::FakeBackend>(*disk), limits));
    }
    if (has_storage_) archive_.emplace(*pool_, keeper_->keeper(), std::move(stores), options);
    ends_ = false;
    thread_ = std::thread([this] { EXPECT_TRUE(keeper_->run(ends_, check_)); });
    const Status attached = attach(path_);
    ASSERT_TRUE(attached) << attached.error().message;
  }
  void stop() {
    client_.reset();
    if (!thread_.joinable()) return;
    ends_ = true;
    thread_.join();
    archive_.reset();
    keeper_.reset();
  }
  // The machine has lost its memory: a new, empty pool.
  void lose_pool(std::uint32_t capacity = 64) {
    stop();
    pool_.reset();
    std::filesystem::remove(path_);
    make_pool(capacity);
  }

  std::size_t pool_blocks() const {
    std::size_t blocks = 0;
    pool::for_each_published(pool_->access(), [&](const pool::Entry&) { ++blocks; });
    return blocks;
  }
  void drain() {
    const std::uint64_t until_ns = base::SteadyClock::read() + 20 * kSecond;
    for (;;) {
      const Result<std::uint64_t> backlog = client_->storage_backlog();
      ASSERT_TRUE(backlog) << backlog.error().message;
      if (*backlog == 0) return;
      ASSERT_LT(base::SteadyClock::read(), until_ns) << "not drained";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  // Waits until storage has so many objects; no client does anything meanwhile.
  bool holds(std::size_t objects) {
    const std::uint64_t until_ns = base::SteadyClock::read() + 30 * kSecond;
    while (disk_.count() < objects && base::SteadyClock::read() < until_ns)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return disk_.count() == objects;
  }

  // Of a pool that has just begun: another host writes a chain into the storage that both share.
  void put_elsewhere(std::span<const BlockHash> hashes) {
    if (objects_elsewhere_.empty()) {
      store(hashes);
      drain();
      const std::lock_guard lock(disk_.mutex);
      objects_elsewhere_.swap(disk_.objects);
    }
    lose_pool(capacity_);
    start();
    const std::lock_guard lock(disk_.mutex);
    disk_.objects = objects_elsewhere_;
    disk_.head_calls = disk_.puts = 0;
  }

  std::string path_;
  std::uint32_t capacity_ = 64;
  decltype(storage::FakeBackend::Disk::objects) objects_elsewhere_;
  bool has_storage_ = true, has_second_ = false;
  storage::FakeBackend::Disk disk_, second_disk_;
  std::optional<pool::Pool> pool_;
  std::optional<pool::PoolKeeper> keeper_;
  std::optional<Archive> archive_;
  std::function<Status()> check_;  // called by the keeper once a second
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

}  // namespace cachalot::node
