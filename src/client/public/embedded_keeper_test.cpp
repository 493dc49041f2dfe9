// What an embedded keeper creates, finds and removes.
#include <cachalot/client.h>
#include <cachalot/keeper.h>
#include <cachalot/opaque_client.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "os/child.h"
#include "os/shared_file.h"
#include "pool/expansion/expansion_device.h"
#include "pool/making.h"
#include "pool/pool.h"
#include "pool/sizing.h"

namespace cachalot {
namespace {

namespace fs = std::filesystem;

class EmbeddedKeeperTest : public testing::Test {
 protected:
  EmbeddedKeeperTest() {
    folder_ = fs::path("/dev/shm") / ("cachalot_embedded_" + std::to_string(getpid()));
    fs::create_directories(folder_ / "other");
    before_ = fs::current_path();
  }
  ~EmbeddedKeeperTest() override {
    fs::current_path(before_);
    fs::remove_all(folder_);
  }
  std::string path(const std::string& name) const { return folder_ / name; }
  KeeperOptions small(const std::string& pool) const {
    return {.pool = pool, .block_bytes = 4096, .capacity_blocks = 8};
  }
  // A pool without a keeper.
  void make_pool(const std::string& at, std::uint32_t clients = 8) const {
    pool::CreateOptions create;
    create.paths = {at};
    create.geometry.block_bytes = 4096;
    create.geometry.capacity_blocks = 8;
    create.geometry.blocks = 16;
    create.geometry.clients = clients + 1;
    create.geometry.directory_slots = pool::rated_directory_slots(8);
    ASSERT_TRUE(pool::Pool::create(create));
  }

  fs::path folder_, before_;
};

// A pool has 256 namespaces, for good: one that cannot hold a block must not take one.
TEST_F(EmbeddedKeeperTest, AClientWhoseBlocksDoNotFitOpensNoNamespace) {
  Result<EmbeddedKeeper> keeper = EmbeddedKeeper::start(small(path("kv")));
  ASSERT_TRUE(keeper) << keeper.error().message;
  ClientOptions options;
  options.pool = {path("kv")};
  options.model = "too-large@1";
  options.geometry.layers = 80;
  options.geometry.kv_heads = 8;
  options.geometry.head_dim = 128;
  options.geometry.block_tokens = 16;
  EXPECT_EQ(Client::attach(options).error().code, Code::kInvalidArgument);
  OpaqueOptions opaque;
  opaque.pool = {path("kv")};
  opaque.fingerprint = "too-large@2";
  opaque.block_bytes = 4097;
  EXPECT_EQ(OpaqueClient::attach(opaque).error().code, Code::kInvalidArgument);
  options.model = "small@1";
  options.geometry.layers = options.geometry.kv_heads = 1;
  options.geometry.head_dim = 8;
  const Result<Client> client = Client::attach(options);
  ASSERT_TRUE(client) << client.error().message;
  EXPECT_EQ(client->namespaces().size(), 1u);
}

TEST_F(EmbeddedKeeperTest, RemovesThePoolThatItMadeAndNoOther) {
  fs::current_path(folder_);
  Result<EmbeddedKeeper> keeper = EmbeddedKeeper::start(small("kv"));
  ASSERT_TRUE(keeper) << keeper.error().message;
  make_pool(path("other/kv"));
  fs::current_path(folder_ / "other");
  EXPECT_TRUE(keeper->stop());
  EXPECT_FALSE(fs::exists(path("kv")));
  EXPECT_TRUE(fs::exists(path("other/kv")));
}

TEST_F(EmbeddedKeeperTest, LeavesThePoolToTheNextKeeperIfAsked) {
  KeeperOptions options = small(path("kv"));
  options.keep_pool = true;
  for (int reign = 0; reign < 2; ++reign) {  // it makes the pool, then finds it
    Result<EmbeddedKeeper> keeper = EmbeddedKeeper::start(options);
    ASSERT_TRUE(keeper) << keeper.error().message;
    EXPECT_TRUE(keeper->stop());
    EXPECT_TRUE(fs::exists(path("kv")));
  }
}

TEST_F(EmbeddedKeeperTest, ADeviceThatWasAddedAndIsGoneIsGivenUpOnlyIfAsked) {
  pool::Geometry shape;
  shape.block_bytes = 4096;
  shape.clients = 4;
  const Result<pool::Geometry> first = pool::with_capacity(shape, 8);
  ASSERT_TRUE(first);
  pool::CreateOptions create;
  create.paths = {path("kv")};
  const Result<pool::Geometry> geometry = pool::with_room_to_grow(*first, 32u << 20, false);
  ASSERT_TRUE(geometry) << geometry.error().message;
  create.geometry = *geometry;
  std::uint32_t grown = 0;
  {
    Result<pool::Pool> pool = pool::Pool::create(create);
    ASSERT_TRUE(pool) << pool.error().message;
    const Result<EmbeddedKeeper> keeper = EmbeddedKeeper::start({.pool = path("kv")});
    ASSERT_TRUE(keeper) << keeper.error().message;
    const auto more = pool::make_expansion(pool->access(), path("more"), 4u << 20);
    ASSERT_TRUE(more) << more.error().message;
    Result<pool::PoolClient> client = pool->attach({});
    ASSERT_TRUE(client) << client.error().message;
    ASSERT_TRUE(client->client().requests().add_expansion(more->path, more->serial));
    grown = pool->state().capacity_blocks();
  }
  fs::remove(path("more"));
  const Result<EmbeddedKeeper> refused = EmbeddedKeeper::start({.pool = path("kv")});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kIo);
  EXPECT_NE(std::string(refused.error().message).find(path("more")), std::string::npos);
  const Result<EmbeddedKeeper> keeper =
      EmbeddedKeeper::start({.pool = path("kv"), .without_lost_devices = true});
  ASSERT_TRUE(keeper) << keeper.error().message;
  EXPECT_LT(pool::Pool::open({path("kv")})->state().capacity_blocks(), grown);
}

TEST_F(EmbeddedKeeperTest, ASizeIsWhatThePoolTakesInAll) {
  constexpr std::uint64_t kSize = 64u << 20;
  KeeperOptions options{.pool = path("kv"), .block_bytes = 65536, .size_bytes = kSize};
  options.keep_pool = true;
  for (int reign = 0; reign < 2; ++reign) {  // it makes the pool, then finds it
    Result<EmbeddedKeeper> keeper = EmbeddedKeeper::start(options);
    ASSERT_TRUE(keeper) << keeper.error().message;
    EXPECT_LE(fs::file_size(path("kv")), kSize);
    EXPECT_GT(fs::file_size(path("kv")), kSize - (4u << 20));
    EXPECT_TRUE(keeper->stop());
  }
  options.size_bytes *= 2;
  const Result<EmbeddedKeeper> other = EmbeddedKeeper::start(options);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::string(other.error().message).find("bytes in all"), std::string::npos);
  const Result<EmbeddedKeeper> both = EmbeddedKeeper::start(
      {.pool = path("new"), .block_bytes = 65536, .capacity_blocks = 8, .size_bytes = kSize});
  ASSERT_FALSE(both);
  EXPECT_EQ(both.error().code, Code::kInvalidArgument);
}

TEST_F(EmbeddedKeeperTest, APoolWhosePublishedBlocksHaveTheSizeIsUsed) {
  make_pool(path("kv"));  // 8 blocks, and 8 spare ones
  KeeperOptions options{.pool = path("kv"), .block_bytes = 4096, .size_bytes = 8 * 4096};
  EXPECT_TRUE(EmbeddedKeeper::start(options));
  options.size_bytes = 16u << 20;
  EXPECT_FALSE(EmbeddedKeeper::start(options));
}

TEST_F(EmbeddedKeeperTest, APoolThatTookTheNameStays) {
  Result<EmbeddedKeeper> keeper = EmbeddedKeeper::start(small(path("kv")));
  ASSERT_TRUE(keeper);
  fs::remove(path("kv"));
  make_pool(path("kv"));
  const Status stopped = keeper->stop();
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, Code::kStale);
  EXPECT_TRUE(pool::Pool::open({path("kv")}));
}

TEST_F(EmbeddedKeeperTest, WhatIsGivenMustBeSoAndWhatIsNotIsAsItIs) {
  make_pool(path("kv"));
  const auto code = [&](KeeperOptions options) {
    options.pool = path("kv");
    const Result<EmbeddedKeeper> keeper = EmbeddedKeeper::start(options);
    return keeper ? std::optional<Code>() : keeper.error().code;
  };
  EXPECT_EQ(code({}), std::nullopt);
  EXPECT_EQ(code({.clients = 8, .domain = "coherent"}), std::nullopt);
  EXPECT_EQ(code({.block_bytes = 2048}), std::nullopt) << "these fit into 4,096";
  EXPECT_EQ(code({.block_bytes = 8192}), Code::kInvalidArgument);
  EXPECT_EQ(code({.domain = "noncoherent"}), Code::kInvalidArgument);
  EXPECT_EQ(code({.domain = "bogus"}), Code::kInvalidArgument);
  EXPECT_EQ(code({.clients = 9}), Code::kInvalidArgument);
  EXPECT_EQ(code({.clients = ~0u}), Code::kInvalidArgument);
  EXPECT_TRUE(fs::exists(path("kv"))) << "it did not make it";
}

TEST_F(EmbeddedKeeperTest, OfManyThatStartOneMakesThePoolAndTheOthersHearThatItHasAKeeper) {
  std::vector<os::Child> children;
  for (int i = 0; i < 6; ++i) {
    children.push_back(*os::Child::start([&] {
      KeeperOptions options = small(path("kv"));
      options.capacity_blocks = 4096;
      Result<EmbeddedKeeper> keeper = EmbeddedKeeper::start(options);
      if (keeper) {
        while (!fs::exists(path("end"))) usleep(1000);
        return keeper->stop() ? 0 : 1;
      }
      std::ofstream(path("busy") + std::to_string(getpid()));
      return keeper.error().code == Code::kBusy ? 3 : 2;
    }));
  }
  const auto refused = [&] {
    return std::count_if(
        fs::directory_iterator(folder_), fs::directory_iterator(),
        [](const auto& file) { return file.path().filename().string().starts_with("busy"); });
  };
  while (refused() < 5) usleep(1000);
  std::ofstream(path("end"));
  int served = 0, busy = 0;
  for (os::Child& child : children) {
    const auto status = child.wait();
    ASSERT_TRUE(status);
    served += status->exit_code == 0;
    busy += status->exit_code == 3;
  }
  EXPECT_EQ(served, 1);
  EXPECT_EQ(busy, 5);
}

// Every process that may write to a pool is as trusted as this one.
TEST_F(EmbeddedKeeperTest, APoolThatOthersMayWriteToIsServedAndUsedOnlyWhereThatIsAllowed) {
  make_pool(path("kv"));
  fs::permissions(path("kv"), fs::perms{0666});
  KeeperOptions serve = small(path("kv"));
  const Result<EmbeddedKeeper> refused = EmbeddedKeeper::start(serve);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kPermission) << refused.error().message;
  serve.allow_foreign_pool = true;
  const Result<EmbeddedKeeper> keeper = EmbeddedKeeper::start(serve);
  ASSERT_TRUE(keeper) << keeper.error().message;

  ClientOptions attach;
  attach.pool = {path("kv")};
  attach.model = "m";
  attach.geometry = {.layers = 2, .kv_heads = 2, .head_dim = 32, .block_tokens = 4};
  const Result<Client> not_attached = Client::attach(attach);
  ASSERT_FALSE(not_attached);
  EXPECT_EQ(not_attached.error().code, Code::kPermission) << not_attached.error().message;
  attach.allow_foreign_pool = true;
  const Result<Client> client = Client::attach(attach);
  EXPECT_TRUE(client) << client.error().message;
}

TEST_F(EmbeddedKeeperTest, AFileWithoutAHeaderAndWithoutAMakerIsNoPool) {
  std::ofstream(path("kv")) << std::string(4 << 20, '\0');
  const Result<EmbeddedKeeper> keeper = EmbeddedKeeper::start(small(path("kv")));
  ASSERT_FALSE(keeper);
  EXPECT_EQ(keeper.error().code, Code::kNotAPool);
  ClientOptions options{.pool = {path("kv")}, .model = "m"};
  options.geometry.layers = options.geometry.kv_heads = options.geometry.head_dim =
      options.geometry.block_tokens = 8;
  const Result<Client> client = Client::attach(options);
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code, Code::kNotAPool) << client.error().message;
}

TEST_F(EmbeddedKeeperTest, AFileThatItsMakerHasLockedIsBusy) {
  const Result<os::SharedFile> file = os::SharedFile::create(path("kv"), 4 << 20);
  ASSERT_TRUE(file) << file.error().message;
  const Result<os::FileLock> maker = pool::lock_as_maker(file->fd());
  ASSERT_TRUE(maker) << maker.error().message;
  const Result<EmbeddedKeeper> keeper = EmbeddedKeeper::start(small(path("kv")));
  ASSERT_FALSE(keeper);
  EXPECT_EQ(keeper.error().code, Code::kBusy) << keeper.error().message;
}

}  // namespace
}  // namespace cachalot
