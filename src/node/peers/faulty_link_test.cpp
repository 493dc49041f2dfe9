// A host whose link to another one fails in each way that a TCP connection can, with and without a cluster key.

#include "base/rng.h"
#include "node/peers/peers_test_hosts.h"
#include "testing/storage/proxy.h"

namespace cachalot::node {
namespace {

using storage::TestProxy;
using Mode = TestProxy::Mode;

constexpr std::size_t kBlocks = 20;

class FaultyLinkTest : public PeersTest {
 protected:
  void TearDown() override {
    registry_.reset();
    hosts_.clear();
  }

  // An owner of blocks, and a host that finds it behind the proxy: by a registry of its own.
  // @param paths  1 or 2, by a proxy each
  void begin(int paths = 1) {
    registry_.reset();
    proxy_.reset();
    second_.reset();
    hosts_.clear();
    is_impatient_ = true;
    Host& owner = start(0, 1024);
    transfer::PeerRecord record;
    ASSERT_TRUE(comes_true([&] {
      const auto registry = *transfer::open_registry("file:" + folder_, changed_.key);
      const auto records = *registry->list("", base::SteadyClock::read() + kSecond);
      if (!records.empty()) record = records[0];
      return !records.empty();
    }));
    const std::string& address = owner.peers().addresses().at(0);
    const auto port = static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
    proxy_.emplace(port);
    record.addresses = {"tcp:127.0.0.1:" + std::to_string(proxy_->port())};
    if (paths == 2) {
      second_.emplace(port);
      record.addresses.push_back("tcp:127.0.0.1:" + std::to_string(second_->port()));
    }
    const std::string all = std::exchange(folder_, folder_ + "/behind_proxy");
    registry_ = *transfer::open_registry("file:" + folder_, changed_.key);
    const Status published = registry_->publish(record, base::SteadyClock::read() + 5 * kSecond);
    ASSERT_TRUE(published) << published.error().message;
    start(1, 1024);
    folder_ = all;
  }

  // A chain that the owner has is read while the link breaks, and another one afterwards.
  void read_while(const std::function<void()>& breaks, std::uint64_t name) {
    Host& host = *hosts_[1];
    const std::vector<BlockHash> hashes = store(2 * name);
    breaks();
    const std::uint64_t begin_ns = base::SteadyClock::read();
    const std::size_t found = host.prefetch(hashes, kSecond);
    EXPECT_LT(base::SteadyClock::read() - begin_ns, 4 * kSecond);
    EXPECT_EQ(host.load(hashes), found);  // and every byte is right
    EXPECT_LT(found, kBlocks);
    proxy_->set(Mode::kPass);
    const std::vector<BlockHash> later = store(2 * name + 1);
    EXPECT_TRUE(comes_true([&] { return host.prefetch(later, kSecond) == kBlocks; }));
    EXPECT_EQ(host.load(later), kBlocks);
  }
  std::vector<BlockHash> store(std::uint64_t name) {
    const std::vector<BlockHash> hashes = hosts_[0]->chain(name, kBlocks);
    EXPECT_EQ(hosts_[0]->store(hashes), kBlocks);
    const storage::ObjectKey last{space_, hashes.back()};
    std::optional<storage::ObjectHead> head;
    EXPECT_TRUE(comes_true([&] {
      hosts_[1]->peers().heads({&last, 1}, {&head, 1});
      return head.has_value();
    }));
    return hashes;
  }
  void expect_misses_at_most() {
    for (const Mode mode : {Mode::kHold, Mode::kReset, Mode::kDrip, Mode::kFlip, Mode::kRepeat}) {
      SCOPED_TRACE(static_cast<int>(mode));
      begin();
      for (const std::uint64_t name : {1, 2}) read_while([&] { proxy_->set(mode); }, name);
    }
  }
  // In the middle of a message, of a block, or of none.
  void expect_cuts_cost_misses_at_most() {
    begin();
    base::Rng rng(1);
    for (std::uint64_t name = 1; name <= 8; ++name) {
      const std::uint64_t bytes = rng.below(kBlocks * kBlockBytes);
      SCOPED_TRACE(bytes);
      read_while([&] { proxy_->reset_after(bytes); }, name);
    }
  }

  const BlockHash space_ = block_hash::make_namespace("a model").digest;
  std::optional<TestProxy> proxy_, second_;
  std::unique_ptr<transfer::Registry> registry_;
};

TEST_P(FaultyLinkTest, AFaultCostsMissesAtMost) {
  expect_misses_at_most();
}

TEST_P(FaultyLinkTest, AFaultOfAnEncryptedLinkCostsMissesAtMost) {
  changed_.key = os::SecretKey{};
  expect_misses_at_most();
}

TEST_P(FaultyLinkTest, ACutAnywhereCostsMissesAtMost) {
  expect_cuts_cost_misses_at_most();
}

TEST_P(FaultyLinkTest, ACutOfAnEncryptedLinkCostsMissesAtMost) {
  changed_.key = os::SecretKey{};
  expect_cuts_cost_misses_at_most();
}

// Messages take one path, which may be the lost one.
TEST_P(FaultyLinkTest, NewsThatWereOnALostPathOfTwoAreToldAnew) {
  for (const bool is_first : {true, false}) {
    SCOPED_TRACE(is_first);
    begin(2);
    Host &owner = *hosts_[0], &host = *hosts_[1];
    store(1);
    proxy_->set(Mode::kHold);
    second_->set(Mode::kHold);
    const std::vector<BlockHash> hashes = owner.chain(2, kBlocks);
    EXPECT_EQ(owner.store(hashes), kBlocks);
    ASSERT_TRUE(comes_true([&] { return owner.peers().counts().untold_changes == 0; }));
    (is_first ? proxy_ : second_)->set(Mode::kReset);
    (is_first ? second_ : proxy_)->set(Mode::kPass);
    EXPECT_TRUE(knows(host, 2 * kBlocks));
    EXPECT_TRUE(comes_true([&] { return host.prefetch(hashes, kSecond) == kBlocks; }));
    EXPECT_EQ(host.load(hashes), kBlocks);
  }
}

INSTANTIATE_TEST_SUITE_P(Coherent, FaultyLinkTest, ::testing::Values(memory::DomainKind::kCoherent),
                         [](const auto& kind) { return memory::domain_name(kind.param); });

}  // namespace
}  // namespace cachalot::node
