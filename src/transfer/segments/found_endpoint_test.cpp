// Endpoints that find each other in a registry, by name.
#include <cachalot/transfer_endpoint.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "testing/os/scratch_folder.h"
#include "testing/transfer/etcd_server.h"
#include "transfer/ucx/listening.h"

namespace cachalot::transfer {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kLong = 20 * kSecond;

// An endpoint with a segment "cache" of 4 KiB of one byte.
struct Owner {
  Owner(const std::string& registry, std::byte value, const std::string& name = "owner",
        const std::string& key_file = "")
      : memory(4096, value) {
    Result<TransferEndpoint> opened = TransferEndpoint::open({.name = name,
                                                              .listen = {"tcp:127.0.0.1:0"},
                                                              .registry = registry,
                                                              .cluster_key_file = key_file});
    if (!opened) ADD_FAILURE() << opened.error().message;
    endpoint.emplace(*std::move(opened));
    EXPECT_TRUE(endpoint->register_memory("cache", memory, SegmentAccess::kReadWrite).ok());
  }
  std::vector<std::byte> memory;
  std::optional<TransferEndpoint> endpoint;
};

TransferEndpoint open_other(const std::string& registry, const std::string& key_file = "") {
  Result<TransferEndpoint> opened =
      TransferEndpoint::open({.name = "other", .registry = registry, .cluster_key_file = key_file});
  if (!opened) ADD_FAILURE() << opened.error().message;
  return *std::move(opened);
}

// The error, or none: all bytes of the segment have this value.
Status read_all(TransferEndpoint& other, SegmentId segment, std::byte value) {
  std::vector<std::byte> got(4096);
  const TransferDescriptor whole{{0, {}, got.size()}, {0, {}, got.size()}};
  CACHALOT_TRY_ASSIGN(const BatchId batch,
                      other.read(segment, got, {&whole, 1}, {.deadline_ns = kLong}));
  CACHALOT_TRY_ASSIGN(const BatchStatus status, other.wait(batch));
  other.release(batch);
  if (status.state != BatchState::kDone) return status.error;
  EXPECT_EQ(got, std::vector<std::byte>(4096, value));
  return {};
}

struct FoundEndpoint : ::testing::Test {
  const os::ScratchFolder scratch;
  const std::string folder = scratch.path(), registry = "file:" + folder;
};

TEST_F(FoundEndpoint, ByNameInADirectory) {
  Owner owner(registry, std::byte{7}), second(registry, std::byte{9}, "second");
  TransferEndpoint other = open_other(registry);
  for (const auto& [name, value] : {std::pair{"owner", std::byte{7}}, {"second", std::byte{9}}}) {
    const Result<Segment> segment = other.open({.name = name}, "cache", kLong);
    ASSERT_TRUE(segment.ok()) << segment.error().message;
    EXPECT_EQ(segment->peer, name);
    EXPECT_TRUE(read_all(other, segment->id, value).ok());
  }
  // An endpoint that does not listen cannot be found.
  const Result<Segment> back = owner.endpoint->open({.name = "nobody"}, "cache", kLong);
  ASSERT_FALSE(back.ok());
  EXPECT_EQ(back.error().code, Code::kNotFound);
  EXPECT_NE(std::string(back.error().message).find("nobody"), std::string::npos);
}

TEST_F(FoundEndpoint, AgainAfterARestartAtAnotherAddress) {
  auto owner = std::make_unique<Owner>(registry, std::byte{1});
  TransferEndpoint other = open_other(registry);
  const Result<Segment> first = other.open({.name = "owner"}, "cache", kLong);
  ASSERT_TRUE(first.ok()) << first.error().message;
  const std::vector<std::string> address = owner->endpoint->addresses();
  owner.reset();
  const Result<Segment> none = other.open({.name = "owner"}, "cache", kSecond / 2);
  ASSERT_FALSE(none.ok());
  owner = std::make_unique<Owner>(registry, std::byte{2});
  EXPECT_NE(owner->endpoint->addresses(), address);
  const Result<Segment> second = other.open({.name = "owner"}, "cache", kLong);
  ASSERT_TRUE(second.ok()) << second.error().message;
  EXPECT_TRUE(read_all(other, second->id, std::byte{2}).ok());
  EXPECT_FALSE(read_all(other, first->id, std::byte{1}).ok());
}

// The other side may not have noticed yet that the old one has ended.
TEST_F(FoundEndpoint, AtOnceAfterEachOfManyRestarts) {
  TransferEndpoint other = open_other(registry);
  for (int i = 0; i < 100; ++i) {
    Owner owner(registry, std::byte(i));
    const Result<Segment> segment = other.open({.name = "owner"}, "cache", kLong);
    ASSERT_TRUE(segment.ok()) << i << ": " << segment.error().message;
    EXPECT_TRUE(read_all(other, segment->id, std::byte(i)).ok());
  }
}

TEST_F(FoundEndpoint, NotWithoutARegistryOrAName) {
  Owner owner(registry, std::byte{1});
  TransferEndpoint other = open_other(registry), alone = open_other("");
  Result<Segment> opened = alone.open({.name = "owner"}, "cache", kSecond);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::string(opened.error().message).find("no registry"), std::string::npos);
  opened = other.open({}, "cache", kSecond);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, Code::kInvalidArgument);
  const Result<TransferEndpoint> wrong = TransferEndpoint::open({.name = "x", .registry = "dns:a"});
  ASSERT_FALSE(wrong.ok());
  EXPECT_EQ(wrong.error().code, Code::kInvalidArgument);
  // With addresses the registry is not asked.
  const Result<Segment> direct =
      alone.open({"owner", owner.endpoint->addresses()}, "cache", kSecond);
  EXPECT_TRUE(direct.ok());
}

TEST_F(FoundEndpoint, WithAClusterKeyOnlyByPeersThatHaveIt) {
  const std::string key = folder + "/key", place = "file:" + folder + "/peers";
  std::ofstream(key) << std::string(64, 'a');
  std::filesystem::permissions(key, std::filesystem::perms::owner_read);
  Owner owner(place, std::byte{5}, "owner", key), plain(place, std::byte{6}, "plain");
  TransferEndpoint same = open_other(place, key), without = open_other(place);
  const Result<Segment> segment = same.open({.name = "owner"}, "cache", kLong);
  ASSERT_TRUE(segment.ok()) << segment.error().message;
  EXPECT_TRUE(read_all(same, segment->id, std::byte{5}).ok());
  // A record without the key's tag leads nowhere, and a peer without the key is not called.
  const auto refused = [](TransferEndpoint& by, const PeerEndpoint& peer) {
    const Result<Segment> opened = by.open(peer, "cache", kLong);
    return opened ? Error::make(Code::kInternal, "is let in") : opened.error();
  };
  EXPECT_EQ(refused(same, {.name = "plain"}).code, Code::kPermission);
  EXPECT_EQ(refused(same, {"plain", plain.endpoint->addresses()}).code, Code::kPermission);
  const Error none = refused(without, {.name = "owner"});
  EXPECT_EQ(none.code, Code::kPermission) << none.message;
  EXPECT_NE(std::string(none.message).find("no cluster key"), std::string::npos) << none.message;

  const auto options = [&](const std::string& address, const std::string& file) {
    return TransferEndpoint::open({.name = "x", .listen = {address}, .cluster_key_file = file});
  };
  const Result<TransferEndpoint> absent = options("tcp:127.0.0.1:0", folder + "/none");
  EXPECT_EQ(absent.error().code, Code::kNotFound);
  EXPECT_NE(std::string(absent.error().message).find("cluster key file"), std::string::npos);
}

TEST(ClusterKey, UcxAddressesAreRefused) {
  const std::vector<std::string> listen = {"tcp:127.0.0.1:0", "ucx:127.0.0.1:0"};
  EXPECT_TRUE(read_cluster_key("", listen).ok());
  const auto refused = read_cluster_key("/none", listen);
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::string(refused.error().message).find("UCX links are not encrypted"),
            std::string::npos);
}

TEST(FoundInEtcd, EndpointsGoOnWhileEtcdIsDownAndNewOnesAreFoundAfterwards) {
  ASSERT_TRUE(EtcdServer::is_installed());
  const auto etcd = *EtcdServer::start();
  const std::string registry = "etcd://" + etcd->endpoint() + "/endpoints?ttl_s=3";
  Owner owner(registry, std::byte{3});
  TransferEndpoint other = open_other(registry);
  const Result<Segment> segment = other.open({.name = "owner"}, "cache", kLong);
  ASSERT_TRUE(segment.ok()) << segment.error().message;
  etcd->kill();
  EXPECT_TRUE(read_all(other, segment->id, std::byte{3}).ok());
  // A connected peer needs no registry; another one is not found, in time.
  EXPECT_TRUE(other.open({.name = "owner"}, "cache", kLong).ok());
  EXPECT_FALSE(other.open({.name = "second"}, "cache", kSecond).ok());
  ASSERT_TRUE(etcd->restart().ok());
  Owner second(registry, std::byte{4}, "second");
  const Result<Segment> found = other.open({.name = "second"}, "cache", kLong);
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_TRUE(read_all(other, found->id, std::byte{4}).ok());
}

}  // namespace
}  // namespace cachalot::transfer
