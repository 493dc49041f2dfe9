// Hosts in one process: each a pool with a real keeper on a thread, an archive that reads from peers, and a client.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "base/clock.h"
#include "node/archive/archive.h"
#include "node/archive/archive_test_engine.h"
#include "node/peers/peers.h"
#include "pool/pool.h"
#include "testing/os/scratch_folder.h"

namespace cachalot::node {

template <class Condition>
bool comes_true(const Condition& condition) {
  const std::uint64_t until_ns = base::SteadyClock::read() + 20 * kSecond;
  while (!condition() && base::SteadyClock::read() < until_ns)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

class Host : public TestEngine {
 public:
  explicit Host(const std::string& path) : path_(path) {}
  Status open(const PeersOptions& options, memory::DomainKind domain, std::uint32_t capacity,
              const pool::KeeperOptions& keeper) {
    pool::CreateOptions create;
    create.paths = {path_};
    create.geometry.domain = domain;
    create.geometry.block_bytes = kBlockBytes;
    create.geometry.capacity_blocks = capacity;
    create.geometry.blocks = capacity + 64;
    create.geometry.directory_slots = pool::rated_directory_slots(capacity);
    create.geometry.note_bytes = 256;
    create.geometry.clients = 5;
    CACHALOT_TRY_ASSIGN(pool_, pool::Pool::create(create));
    CACHALOT_TRY_ASSIGN(keeper_, pool_->serve(keeper));
    CACHALOT_TRY_ASSIGN(peers_, Peers::open(pool_->access(), options));
    archive_.emplace(*pool_, keeper_->keeper(),
                     storage::Store::make(make_peer_backend(*peers_), {}), ArchiveOptions{});
    keeper_->keeper().observe(peers_->observer());
    peers_->observer().on_repaired();
    thread_ = std::thread([this] { EXPECT_TRUE(keeper_->run(ends_)); });
    return attach(path_);
  }
  ~Host() {
    client_.reset();
    if (thread_.joinable()) {
      ends_ = true;
      thread_.join();
      keeper_->keeper().end_observing(peers_->observer());
    }
    archive_.reset();
    peers_.reset();
    keeper_.reset();
    pool_.reset();
    std::filesystem::remove(path_);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // @return blocks that are in the pool then
  std::size_t prefetch(std::span<const BlockHash> hashes, std::uint64_t wait_ns = 10 * kSecond) {
    return TestEngine::prefetch(hashes, wait_ns).in_pool;
  }
  const pool::Access& access() const { return pool_->access(); }
  Peers& peers() { return *peers_; }
  Archive& archive() { return *archive_; }

 private:
  const std::string path_;
  std::optional<pool::Pool> pool_;
  std::optional<pool::PoolKeeper> keeper_;
  std::unique_ptr<Peers> peers_;
  std::optional<Archive> archive_;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

class PeersTest : public ::testing::TestWithParam<memory::DomainKind> {
 protected:
  PeersOptions options() const {
    PeersOptions options = changed_;
    options.registry = "file:" + folder_;
    options.listen = {"tcp:127.0.0.1:0"};
    options.look_pause_ns = 20'000'000;
    if (!is_impatient_) options.patience_ns = 10 * kSecond;  // whatever else the machine does
    return options;
  }
  Host& start(std::size_t number, std::uint32_t capacity = 64) {
    if (hosts_.size() <= number) hosts_.resize(number + 1);
    hosts_[number].reset();
    hosts_[number] = std::make_unique<Host>(
        "/dev/shm/cachalot_peers_test." + std::to_string(getpid()) + "." + std::to_string(number));
    const Status opened = hosts_[number]->open(options(), GetParam(), capacity, keeper_);
    EXPECT_TRUE(opened) << opened.error().message;
    return *hosts_[number];
  }
  // Until a host knows so many blocks of others.
  bool knows(Host& host, std::uint64_t blocks) {
    return comes_true([&] { return host.peers().counts().known_blocks == blocks; });
  }

  const os::ScratchFolder scratch_{"/var/tmp"};
  std::string folder_ = scratch_.path();
  PeersOptions changed_ = {};                            // of the hosts that are started afterwards
  pool::KeeperOptions keeper_ = {.copies_first = true};  // likewise
  bool is_impatient_ = false;                            // the same: with the patience of `serve`
  std::vector<std::unique_ptr<Host>> hosts_;
};

}  // namespace cachalot::node
