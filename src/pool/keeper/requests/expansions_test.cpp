// Pools that get and give up devices while they are served: real files, a mapping for each process that there would be.
// In the coherent domain no checksum would hide bytes of another device.

#include "pool/keeper/requests/expansions.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <thread>

#include "base/rng.h"
#include "pool/expansion/expansion_device.h"
#include "pool/pool.h"
#include "pool/sizing.h"
#include "testing/os/scratch_folder.h"
#include "testing/pool/chains.h"

namespace cachalot::pool {
namespace {

using memory::DomainKind;
using memory::kStripeBytes;

constexpr std::uint64_t kBlockBytes = 16 << 10;
constexpr std::uint64_t kPartBytes = 8 * kStripeBytes;  // of blocks, on each added device
constexpr std::size_t kChainBlocks = 20;
constexpr std::uint32_t kPartBlocks = kPartBytes / kBlockBytes;

class ExpansionsTest : public testing::TestWithParam<DomainKind> {
 protected:
  void SetUp() override {
    Geometry shape;
    shape.block_bytes = kBlockBytes;
    shape.clients = 6;
    const Result<Geometry> first = with_capacity(shape, 100);
    ASSERT_TRUE(first) << first.error().message;
    const Result<Geometry> geometry = with_room_to_grow(*first, 128u << 20, false);
    ASSERT_TRUE(geometry) << geometry.error().message;
    CreateOptions create;
    create.paths = {path("pool")};
    create.geometry = *geometry;
    create.geometry.domain = GetParam();
    if (GetParam() == DomainKind::kMixed) create.geometry.noncoherent_devices = 2;
    create.huge_pages = create.populate = false;
    Result<Pool> made = Pool::create(create);
    ASSERT_TRUE(made) << made.error().message;
    pool_.emplace(*std::move(made));
    start_keeper();
  }
  void TearDown() override { stop_keeper(); }

  std::string path(const std::string& name) const { return scratch_.path(name); }

  void start_keeper(const KeeperOptions& options = {}) {
    stop_ = false;
    std::atomic<bool> ready{false};
    // A keeper that takes over is another process: it has mapped nothing yet.
    keeper_pool_.emplace(open());
    keeper_ = std::thread([this, &ready, &options] {
      Result<PoolKeeper> keeper = keeper_pool_->serve(options);
      EXPECT_TRUE(keeper) << keeper.error().message;
      ready = true;
      if (!keeper) return;
      (void)keeper->run(stop_);
      EXPECT_TRUE(keeper->keeper().is_valid());
    });
    while (!ready) std::this_thread::yield();
  }
  void stop_keeper() {
    stop_ = true;
    if (keeper_.joinable()) keeper_.join();
  }

  Pool open() const {
    OpenOptions options;
    options.huge_pages = false;
    Result<Pool> opened = Pool::open({path("pool")}, options);
    EXPECT_TRUE(opened) << (opened ? "" : opened.error().message);
    return *std::move(opened);
  }

  // A process of its own: what it has mapped no other one knows.
  struct Process {
    explicit Process(Pool opened, const ClientOptions& options = {}) : pool(std::move(opened)) {
      Result<PoolClient> attached = pool.attach(options);
      EXPECT_TRUE(attached) << (attached ? "" : attached.error().message);
      client = std::make_unique<PoolClient>(*std::move(attached));
    }
    // Chains of 20 blocks, called first, first + 1, … @return blocks that were published
    std::size_t put(std::uint64_t first, std::size_t n) const {
      std::size_t published = 0;
      for (std::size_t at = 0; at < n; at += kChainBlocks) {
        const auto verdicts =
            put_chain(client->client(), kBlockBytes, first + at, std::min(kChainBlocks, n - at));
        published += static_cast<std::size_t>(
            std::count(verdicts.begin(), verdicts.end(), Verdict::kCommitted));
      }
      return published;
    }
    // @return blocks that were hits
    std::size_t read(std::uint64_t first, std::size_t n) const {
      std::size_t hits = 0;
      for (std::size_t at = 0; at < n; at += kChainBlocks)
        hits +=
            read_chain(client->client(), kBlockBytes, first + at, std::min(kChainBlocks, n - at));
      return hits;
    }
    KeeperRequests& requests() const { return client->client().requests(); }
    Pool pool;
    std::unique_ptr<PoolClient> client;
  };
  Process process() const { return Process(open()); }

  Expansion prepare(const char* name, std::uint64_t bytes = kPartBytes) const {
    const Result<Expansion> made = make_expansion(pool_->access(), path(name), bytes);
    EXPECT_TRUE(made) << (made ? "" : made.error().message);
    return made ? *made : Expansion{};
  }
  Expansion grow(const Process& by, const char* name) const {
    const Expansion made = prepare(name);
    const Result<ExpansionAnswer> answer = by.requests().add_expansion(made.path, made.serial);
    EXPECT_TRUE(answer) << (answer ? "" : answer.error().message);
    return made;
  }
  // @return blocks that stayed in use
  std::uint32_t shrink(const Process& by, const Expansion& device) const {
    std::uint32_t in_use = 0;
    for (int i = 0; i < 50; ++i) {
      const Result<ExpansionAnswer> answer = by.requests().give_up_expansion(device.serial);
      EXPECT_TRUE(answer) << (answer ? "" : answer.error().message);
      in_use = answer ? answer->in_use : 0;
      if (in_use == 0) break;
      by.client->client().return_inaccessible();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (in_use == 0) {
      EXPECT_TRUE(dispose_of_expansion(pool_->access(), device));
    }
    return in_use;
  }
  const os::ScratchFolder scratch_{"/dev/shm"};
  std::optional<Pool> pool_;
  std::optional<Pool> keeper_pool_;
  std::atomic<bool> stop_{false};
  std::thread keeper_;
};

TEST_P(ExpansionsTest, ADeviceIsUsedByProcessesThatMappedThePoolBefore) {
  const Process writer = process(), reader = process();
  const std::uint32_t before = writer.pool.state().capacity_blocks();
  EXPECT_GE(before, 100u);  // and what the last 2 MiB have room for
  EXPECT_EQ(writer.put(1, 900), 900u);
  EXPECT_LE(reader.read(1, 900), before);
  grow(writer, "more");
  EXPECT_EQ(writer.pool.state().capacity_blocks(), before + kPartBlocks);
  EXPECT_EQ(writer.put(2000, 1000), 1000u);
  EXPECT_EQ(reader.read(2000, 1000), 1000u);
}

TEST_P(ExpansionsTest, AnotherDeviceInTheSamePlaceIsReadByProcessesThatMappedTheFirst) {
  const Process writer = process(), reader = process();
  const Expansion first = grow(writer, "first");
  writer.put(1, 600);
  ASSERT_EQ(reader.read(1, 600), 600u);
  EXPECT_EQ(shrink(writer, first), 0u);
  EXPECT_FALSE(std::filesystem::exists(first.path));
  EXPECT_LT(reader.read(1, 600), 600u);  // what lay on it was evicted, with all below
  grow(writer, "second");
  writer.put(5000, 600);
  EXPECT_EQ(reader.read(5000, 600), 600u);
}

TEST_P(ExpansionsTest, ASuccessorHasTheDevices) {
  std::size_t blocks = 0;
  {
    const Process writer = process();
    grow(writer, "one");
    grow(writer, "two");
    blocks = writer.pool.state().capacity_blocks();
    EXPECT_EQ(writer.put(1, 2000), 2000u);
  }
  stop_keeper();
  start_keeper();
  const Process reader = process();
  EXPECT_EQ(reader.pool.state().capacity_blocks(), blocks);
  EXPECT_EQ(reader.read(1, 2000), 2000u);
  EXPECT_EQ(reader.put(9000, 200), 200u);
}

// A thread that was delayed since it looked at the keepers, while others of its process read.
TEST_P(ExpansionsTest, TheTableOfAnEarlierKeeperMapsNothing) {
  std::optional<Process> client(process());
  const Expansion first = grow(*client, "first");
  client->put(1, 600);
  const KeeperView before = client->pool.state().read_keepers();
  client.reset();
  stop_keeper();
  start_keeper();
  client.emplace(process());
  std::uint32_t in_use = 1;
  for (int i = 0; i < 50 && in_use != 0; ++i) {
    client->client->client().return_inaccessible();
    in_use = client->requests().give_up_expansion(first.serial)->in_use;  // its file stays
  }
  ASSERT_EQ(in_use, 0u);
  grow(*client, "second");
  client->put(5000, 600);
  ASSERT_EQ(client->read(5000, 600), 600u);
  const Access& access = client->pool.access();
  const std::byte* const there = access.view.bases[0] + access.geometry.device_bytes;
  const std::vector<std::byte> bytes(there, there + kPartBytes);
  EXPECT_EQ(client->pool.expansions()->follow(access, before.keeper, before.epoch),
            access.layout.first_blocks);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), there));
}

TEST_P(ExpansionsTest, ADeviceThatIsGoneAtATakeoverTakesOnlyItsOwnBlocks) {
  Expansion two;
  std::uint32_t with_one = 0;
  {
    const Process writer = process();
    grow(writer, "one");
    with_one = writer.pool.state().capacity_blocks();
    two = grow(writer, "two");
    writer.put(1, 600);
  }
  stop_keeper();
  std::filesystem::rename(two.path, path("elsewhere"));
  // Without an order it changes nothing: the blocks are there when the device is.
  for (int attempt = 0; attempt < 6; ++attempt) {
    Pool pool = open();
    const KeeperView before = pool.state().read_keepers();
    const Result<PoolKeeper> refused = pool.serve({});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kIo);
    EXPECT_NE(std::string(refused.error().message).find(two.path), std::string::npos);
    EXPECT_EQ(pool.state().read_keepers().epoch, before.epoch);
  }
  std::filesystem::rename(path("elsewhere"), two.path);
  start_keeper();
  {
    const Process reader = process();
    EXPECT_EQ(reader.read(1, 600), 600u);
  }
  stop_keeper();
  std::filesystem::remove(two.path);
  start_keeper({.without_lost_devices = true});
  const Process again = process();
  EXPECT_EQ(again.pool.state().capacity_blocks(), with_one);
  EXPECT_LE(again.read(1, 600), with_one);
  EXPECT_EQ(again.put(5000, 500), 500u);
  EXPECT_EQ(again.read(5000, 500), 500u);
  grow(again, "three");
  EXPECT_EQ(again.pool.state().capacity_blocks(), with_one + kPartBlocks);
}

TEST_P(ExpansionsTest, LostDevicesAreRememberedAsLongAsThereAreRows) {
  const auto add = [this](const Process& by, const std::string& name) {
    const Expansion made = prepare(name.c_str(), kStripeBytes);
    const Result<ExpansionAnswer> answer = by.requests().add_expansion(made.path, made.serial);
    EXPECT_TRUE(answer) << (answer ? "" : answer.error().message);
    return made;
  };
  std::vector<Expansion> lost;
  {
    const Process client = process();
    for (int i = 0; i < 16; ++i) lost.push_back(add(client, "a" + std::to_string(i)));
  }
  stop_keeper();
  std::filesystem::remove(lost[0].path);
  start_keeper({.without_lost_devices = true});
  const Process client = process();
  const auto table = [&] { return *client.pool.state().read_expansions(); };
  EXPECT_EQ(table().expansions.size(), 0u);
  EXPECT_EQ(table().lost, lost);
  std::vector<Expansion> added;
  for (int i = 0; i < 15; ++i) added.push_back(add(client, "b" + std::to_string(i)));
  EXPECT_EQ(table().expansions, added);
  EXPECT_EQ(table().lost, lost);
  added.push_back(add(client, "c"));  // in the row of the last one
  lost.pop_back();
  EXPECT_EQ(table().expansions, added);
  EXPECT_EQ(table().lost, lost);
  ASSERT_TRUE(client.requests().give_up_expansion(lost[3].serial));
  lost.erase(lost.begin() + 3);
  EXPECT_EQ(table().expansions, added);
  EXPECT_EQ(table().lost, lost);
  EXPECT_EQ(client.requests().give_up_expansion({7, 7}).error().code, Code::kNotFound);
}

TEST_P(ExpansionsTest, WhatAClientHoldsInAdvanceKeepsADeviceUntilItIsReturned) {
  const Process idle = process(), other = process();
  const Expansion device = grow(other, "more");
  // Fill the pool, so that the idle one is granted blocks of the device.
  other.put(1, 600);
  ASSERT_EQ(idle.put(3000, 20), 20u);
  Result<ExpansionAnswer> answer = other.requests().give_up_expansion(device.serial);
  ASSERT_TRUE(answer) << answer.error().message;
  for (int i = 0; i < 3; ++i) {
    other.client->client().return_inaccessible();
    answer = other.requests().give_up_expansion(device.serial);
    ASSERT_TRUE(answer) << answer.error().message;
  }
  if (idle.client->client().grants().held() != 0 && answer->in_use != 0) {
    EXPECT_LE(answer->in_use, idle.client->client().grants().held());
    // The device stays, if it is waited for no longer.
    const Result<ExpansionAnswer> kept = other.requests().keep_expansion();
    ASSERT_TRUE(kept) << kept.error().message;
    EXPECT_EQ(kept->in_use, 0u);
    EXPECT_EQ(other.put(8000, 600), 600u);
    idle.client->client().return_inaccessible();
    answer = other.requests().give_up_expansion(device.serial);
    ASSERT_TRUE(answer) << answer.error().message;
  }
  idle.client->client().return_inaccessible();
  EXPECT_EQ(shrink(other, device), 0u);
  EXPECT_EQ(idle.put(6000, 50), 50u);
  EXPECT_EQ(other.read(6000, 50), 50u);
}

// The keeper that comes while the device is given up waits for them, too.
TEST_P(ExpansionsTest, APinnedReadKeepsADeviceOverATakeover) {
  const Process writer = process();
  ClientOptions pins;
  pins.pins = true;
  const Process reader(open(), pins);
  const Expansion device = grow(writer, "more");
  ASSERT_EQ(writer.put(1, 600), 600u);
  const Result<std::uint64_t> pin = reader.client->client().pin();
  ASSERT_TRUE(pin) << pin.error().message;
  const Access& access = reader.pool.access();
  std::uint64_t name = 1;
  Found found;
  for (bool is_on_device = false; !is_on_device; name += is_on_device ? 0 : kChainBlocks) {
    ASSERT_LT(name, 600u);
    const BlockHash root = hash_of(name);
    ASSERT_EQ(reader.client->client().lookup({&root, 1}, {&found, 1}), 1u);
    is_on_device = found.entry.block > access.layout.first_blocks;
  }
  EXPECT_GT(shrink(writer, device), 0u);
  stop_keeper();
  start_keeper();
  ASSERT_TRUE(writer.client->client().reattach(1'000'000'000));
  EXPECT_GT(shrink(writer, device), 0u);
  std::vector<std::byte> bytes;
  access.for_each_extent(
      found.entry.block, found.entry.length,
      [&](std::byte* at, std::uint64_t n) { bytes.insert(bytes.end(), at, at + n); });
  EXPECT_EQ(bytes, payload_of(name, length_of(name, kBlockBytes)));
  reader.client->client().unpin(*pin);
  EXPECT_EQ(shrink(writer, device), 0u);
}

TEST_P(ExpansionsTest, WhatCannotBeIsRefusedAndChangesNothing) {
  const Process client = process();
  const Expansion one = grow(client, "one");
  const Expansion two = grow(client, "two");
  const std::uint32_t blocks = client.pool.state().blocks();
  EXPECT_EQ(client.requests().give_up_expansion(one.serial).error().code, Code::kRefused);
  EXPECT_EQ(client.requests().give_up_expansion({7, 7}).error().code, Code::kNotFound);
  EXPECT_EQ(client.requests().add_expansion(path("absent"), {7, 7}).error().code, Code::kNotFound);
  EXPECT_EQ(client.requests().add_expansion(path("pool"), {7, 7}).error().code,
            Code::kInvalidArgument);
  const Expansion three = prepare("three");
  EXPECT_EQ(client.requests().add_expansion(three.path, two.serial)->blocks, blocks);  // is there
  EXPECT_EQ(client.requests().add_expansion(three.path, {7, 7}).error().code,
            Code::kInvalidArgument);
  EXPECT_EQ(
      client.requests().add_expansion(std::string(kMaxPathBytes + 1, 'x'), {7, 7}).error().code,
      Code::kInvalidArgument);
  const Expansion large = prepare("large", 200u << 20);
  EXPECT_EQ(client.requests().add_expansion(large.path, large.serial).error().code,
            Code::kInvalidArgument);
  // A context keeps a block that lies on the last device.
  client.put(1, 2200);
  BlockHash on_last;
  for (std::uint64_t name = 1; name < 2200; name += kChainBlocks) {
    const BlockHash root = hash_of(name);
    Found found;
    const bool is_there = client.client->client().lookup({&root, 1}, {&found, 1}) == 1;
    if (is_there && found.entry.block > blocks - kPartBlocks) on_last = root;
  }
  const Result<ContextAnswer> context = client.requests().create_context(on_last, 3600);
  ASSERT_TRUE(context) << context.error().message;
  EXPECT_EQ(client.requests().give_up_expansion(two.serial).error().code, Code::kBusy);
  ASSERT_TRUE(client.requests().drop_context(context->handle));
  EXPECT_EQ(client.pool.state().blocks(), blocks);
}

TEST_P(ExpansionsTest, AProcessThatCannotMapADeviceMissesAndStoresElsewhere) {
  const Process able = process();
  const Expansion device = grow(able, "more");
  able.put(1, 600);
  // To a process that comes now the device is gone.
  std::filesystem::rename(device.path, path("elsewhere"));
  const Process unable = process();
  EXPECT_LT(unable.read(1, 600), 600u);
  EXPECT_EQ(able.read(1, 600), 600u);
  // It is granted what it cannot use, returns it, and says so.
  const std::vector<std::byte> bytes = payload_of(7000, 100);
  const PutItem item{hash_of(7000), bytes};
  Verdict verdict{};
  for (int i = 0; i < 8; ++i) {
    const Status put = unable.client->client().put(nullptr, {&item, 1}, {&verdict, 1});
    EXPECT_TRUE(put || put.error().code == Code::kNoSpace) << put.error().message;
  }
  std::filesystem::rename(path("elsewhere"), device.path);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // it tries once a second
  EXPECT_EQ(unable.read(1, 600), 600u);
}

TEST_P(ExpansionsTest, ADamagedTableIsAMissUntilTheKeeperHasWrittenItAnew) {
  const Process writer = process(), reader = process();
  grow(writer, "more");
  writer.put(1, 600);
  ASSERT_EQ(reader.read(1, 600), 600u);
  const Access& access = pool_->access();
  const KeeperView view = pool_->state().read_keepers();
  const std::uint64_t at = access.layout.expansions_line(view.keeper);
  stop_keeper();  // so that none mends it
  access.region.at(at)[8] ^= std::byte{1};
  EXPECT_LT(reader.read(1, 600), 600u);
  access.region.at(at)[8] ^= std::byte{1};
  start_keeper();
  const KeeperView next = pool_->state().read_keepers();
  access.region.at(access.layout.expansions_line(next.keeper))[8] ^= std::byte{1};
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const Process late = process();
  while (late.read(1, 600) != 600u && std::chrono::steady_clock::now() < until) {
  }
  EXPECT_EQ(late.read(1, 600), 600u);
}

// Devices come and go, keepers too, while processes store and read: every byte that is handed out is right.
TEST_P(ExpansionsTest, AnyOrderOfAllThatHandsOutNoWrongByte) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    base::Rng rng(seed);
    std::vector<std::unique_ptr<Process>> processes;
    for (int i = 0; i < 3; ++i) processes.push_back(std::make_unique<Process>(open()));
    std::vector<Expansion> devices;
    std::uint64_t next = seed * 1'000'000;
    std::map<std::uint64_t, std::size_t> chains;
    int names = 0;
    for (int step = 0; step < 60; ++step) {
      Process& by = *processes[rng.below(processes.size())];
      const std::uint64_t what = rng.below(10);
      if (what == 0 && devices.size() < 3) {
        devices.push_back(
            grow(by, ("d" + std::to_string(seed) + "." + std::to_string(names++)).c_str()));
      } else if (what == 1 && !devices.empty()) {
        std::uint32_t in_use = 1;
        for (int i = 0; i < 20 && in_use != 0; ++i) {
          for (const auto& process : processes) process->client->client().return_inaccessible();
          const auto answer = by.requests().give_up_expansion(devices.back().serial);
          ASSERT_TRUE(answer) << answer.error().message;
          in_use = answer->in_use;
        }
        ASSERT_EQ(in_use, 0u);
        ASSERT_TRUE(dispose_of_expansion(pool_->access(), devices.back()));
        devices.pop_back();
      } else if (what == 2) {
        stop_keeper();
        start_keeper();
        for (const auto& process : processes)
          ASSERT_TRUE(process->client->client().reattach(1'000'000'000));
      } else if (what < 6) {
        const std::size_t n = 1 + rng.below(300);
        by.put(next, n);
        chains[next] = n;
        next += 1000;
      } else if (!chains.empty()) {
        auto chain = chains.begin();
        std::advance(chain, static_cast<std::ptrdiff_t>(rng.below(chains.size())));
        by.read(chain->first, chain->second);
      }
    }
    while (!devices.empty()) {
      for (const auto& process : processes) process->client->client().return_inaccessible();
      ASSERT_EQ(shrink(*processes[0], devices.back()), 0u);
      devices.pop_back();
    }
  }
}

TEST_P(ExpansionsTest, DevicesComeAndGoUnderAnEngineThatStoresAndReads) {
  std::atomic<bool> is_over{false};
  std::atomic<std::uint64_t> read{0};
  std::vector<std::thread> engines;
  for (std::uint64_t id = 1; id <= 3; ++id) {
    engines.emplace_back([this, id, &is_over, &read] {
      const Process engine = process();
      base::Rng rng(id);
      std::vector<std::vector<std::byte>> bytes;
      while (!is_over) {
        const std::uint64_t first = rng.below(40) * kChainBlocks + id % 2 * 100'000;
        if (rng.below(2) == 0) {
          read += engine.read(first, kChainBlocks);
          continue;
        }
        bytes.clear();
        std::vector<PutItem> items;
        for (std::size_t i = 0; i < kChainBlocks; ++i)
          bytes.push_back(payload_of(first + i, length_of(first + i, kBlockBytes)));
        for (std::size_t i = 0; i < kChainBlocks; ++i)
          items.push_back({hash_of(first + i), bytes[i]});
        Verdict verdicts[kChainBlocks];
        const Status put = engine.client->client().put(nullptr, items, verdicts);
        EXPECT_TRUE(put || put.error().code == Code::kNoSpace) << put.error().message;
      }
    });
  }
  const Process operators = process();
  for (int cycle = 0; cycle < 12; ++cycle) {
    const Expansion one = grow(operators, ("a" + std::to_string(cycle)).c_str());
    const Expansion two = grow(operators, ("b" + std::to_string(cycle)).c_str());
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    for (const Expansion& device : {two, one}) {
      std::uint32_t in_use = 1;
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (in_use != 0 && std::chrono::steady_clock::now() < until)
        in_use = shrink(operators, device);
      EXPECT_EQ(in_use, 0u);
    }
  }
  is_over = true;
  for (std::thread& engine : engines) engine.join();
  EXPECT_GT(read, 100u);
}

INSTANTIATE_TEST_SUITE_P(Domains, ExpansionsTest,
                         testing::Values(DomainKind::kCoherent, DomainKind::kNoncoherent,
                                         DomainKind::kMixed),
                         [](const auto& tested) {
                           return std::string(memory::domain_name(tested.param));
                         });

TEST(PoolThatCannotGrow, RefusesDevices) {
  const os::ScratchFolder scratch("/dev/shm");
  CreateOptions create;
  create.paths = {scratch.path("pool")};
  Geometry shape;
  shape.block_bytes = kBlockBytes;
  shape.clients = 2;
  create.geometry = *with_capacity(shape, 20);
  create.huge_pages = false;
  Result<Pool> pool = Pool::create(create);
  ASSERT_TRUE(pool) << pool.error().message;
  EXPECT_EQ(pool->expansions(), nullptr);
  EXPECT_FALSE(pool->state().read_expansions());
  EXPECT_EQ(pool->state().capacity_blocks(), 20u);
}

}  // namespace
}  // namespace cachalot::pool
