// Hosts in one process: each a pool with a real keeper on a thread, an archive that reads from peers, and a client.
#pragma once

#include <cachalot/opaque_client.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "base/clock.h"
#include "base/rng.h"
#include "node/archive/archive.h"
#include "node/peers/peers.h"
#include "pool/pool.h"

namespace cachalot::node {

inline constexpr std::uint64_t kBlockBytes = 4096;
inline constexpr std::uint64_t kSecond = 1'000'000'000;

inline std::vector<std::byte> bytes_of(const BlockHash& hash) {
  std::vector<std::byte> bytes(kBlockBytes);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(base::mix64(hash.low + i));
  return bytes;
}

template <class Condition>
bool comes_true(const Condition& condition) {
  const std::uint64_t until_ns = base::SteadyClock::read() + 20 * kSecond;
  while (!condition() && base::SteadyClock::read() < until_ns)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

class Host {
 public:
  explicit Host(const std::string& path) : path_(path) {}
  Status open(const PeersOptions& options, memory::DomainKind domain, std::uint32_t capacity) {
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
    CACHALOT_TRY_ASSIGN(keeper_, pool_->serve({}));
    CACHALOT_TRY_ASSIGN(peers_, Peers::open(pool_->access(), options));
    archive_.emplace(*pool_, keeper_->keeper(),
                     storage::Store::make(make_peer_backend(*peers_), {}), ArchiveOptions{});
    keeper_->keeper().observe(peers_->observer());
    peers_->observer().on_repaired();
    thread_ = std::thread([this] { EXPECT_TRUE(keeper_->run(ends_)); });
    OpaqueOptions attach;
    attach.pool = {path_};
    attach.fingerprint = "a model";
    attach.block_bytes = kBlockBytes;
    attach.block_tokens = 4;
    CACHALOT_TRY_ASSIGN(client_, OpaqueClient::attach(attach));
    return {};
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

  std::vector<BlockHash> chain(std::uint64_t name, std::size_t blocks) const {
    std::vector<std::uint32_t> tokens(blocks * 4);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::uint32_t>(name * 1000 + i);
    return client_->hash_tokens(tokens);
  }
  std::size_t store(std::span<const BlockHash> hashes) {
    std::vector<std::vector<std::byte>> bytes;
    std::vector<const std::byte*> from;
    for (const BlockHash& hash : hashes) bytes.push_back(bytes_of(hash));
    for (const auto& one : bytes) from.push_back(one.data());
    const Result<Stored> stored = client_->store(nullptr, hashes, from);
    EXPECT_TRUE(stored) << stored.error().message;
    return stored ? stored->blocks : 0;
  }
  std::size_t prefetch(std::span<const BlockHash> hashes, std::uint64_t wait_ns = 10 * kSecond) {
    const Result<Prefetched> result = client_->prefetch(hashes, wait_ns);
    EXPECT_TRUE(result) << result.error().message;
    return result ? result->in_pool : 0;
  }
  // Loads what is in the pool, and checks each byte.
  std::size_t load(std::span<const BlockHash> hashes) {
    std::vector<std::vector<std::byte>> bytes(hashes.size(), std::vector<std::byte>(kBlockBytes));
    std::vector<std::byte*> to;
    for (auto& one : bytes) to.push_back(one.data());
    const Result<std::size_t> loaded = client_->load(hashes, to);
    EXPECT_TRUE(loaded) << loaded.error().message;
    for (std::size_t i = 0; loaded && i < *loaded; ++i)
      EXPECT_EQ(bytes[i], bytes_of(hashes[i])) << "block " << i;
    return loaded ? *loaded : 0;
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
  std::optional<OpaqueClient> client_;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

class PeersTest : public ::testing::TestWithParam<memory::DomainKind> {
 protected:
  void SetUp() override {
    char name[] = "/var/tmp/cachalot_peers.XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    for (auto& host : hosts_) host.reset();
    std::filesystem::remove_all(folder_);
  }
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
    const Status opened = hosts_[number]->open(options(), GetParam(), capacity);
    EXPECT_TRUE(opened) << opened.error().message;
    return *hosts_[number];
  }
  // Until a host knows so many blocks of others.
  bool knows(Host& host, std::uint64_t blocks) {
    return comes_true([&] { return host.peers().counts().known_blocks == blocks; });
  }

  std::string folder_;
  PeersOptions changed_ = {};  // of the hosts that are started afterwards
  bool is_impatient_ = false;  // the same: with the patience of `serve`
  std::vector<std::unique_ptr<Host>> hosts_;
};

}  // namespace cachalot::node
