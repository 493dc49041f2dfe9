// Geometry, layout, header: what a pool may be, and what is refused.

#include "pool/format/format.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <functional>
#include <string>

#include "pool/format/statistics.h"
#include "pool/keeper/ledger.h"
#include "testing/pool/test_pool.h"

namespace cachalot::pool {
namespace {

using memory::kStripeBytes;

Geometry good_geometry() {
  Geometry g = small_geometry();
  g.device_bytes = *device_bytes_needed(g);
  return g;
}

void expect_refused(const char* named, const std::function<void(Geometry&)>& spoil) {
  Geometry g = good_geometry();
  spoil(g);
  const Result<Layout> layout = lay_out(g);
  ASSERT_FALSE(layout) << named;
  EXPECT_EQ(layout.error().code, Code::kInvalidArgument);
  EXPECT_NE(std::string(layout.error().message).find(named), std::string::npos)
      << layout.error().message;
}

TEST(Geometry, EachBadValueIsRefusedByName) {
  ASSERT_TRUE(lay_out(good_geometry()));
  expect_refused("devices: 0", [](Geometry& g) { g.devices = 0; });
  expect_refused("devices: 65", [](Geometry& g) { g.devices = kMaxDevices + 1; });
  expect_refused("block bytes: 0", [](Geometry& g) { g.block_bytes = 0; });
  expect_refused("block bytes: 63", [](Geometry& g) { g.block_bytes = 63; });
  expect_refused("block bytes: 100 is not a multiple of 64",
                 [](Geometry& g) { g.block_bytes = 100; });
  expect_refused("block bytes: 4294967296", [](Geometry& g) { g.block_bytes = 1ull << 32; });
  expect_refused("block bytes: 9223372036854775808",
                 [](Geometry& g) { g.block_bytes = 1ull << 63; });
  expect_refused("blocks: 0", [](Geometry& g) { g.blocks = 0; });
  expect_refused("blocks: 4294967295", [](Geometry& g) { g.blocks = kNoBlock; });
  expect_refused("capacity in blocks: 0", [](Geometry& g) { g.capacity_blocks = 0; });
  expect_refused("capacity in blocks: 129", [](Geometry& g) { g.capacity_blocks = g.blocks + 1; });
  expect_refused("directory slots: 0", [](Geometry& g) { g.directory_slots = 0; });
  expect_refused("directory slots: 65", [](Geometry& g) { g.directory_slots = 65; });
  expect_refused("directory slots: 4294967295",
                 [](Geometry& g) { g.directory_slots = 0xffffffffu; });
  expect_refused("client slots: 0", [](Geometry& g) { g.clients = 0; });
  expect_refused("client slots: 1025", [](Geometry& g) { g.clients = kMaxClients + 1; });
  expect_refused("hosts: 0", [](Geometry& g) { g.hosts = 0; });
  expect_refused("hosts: 4", [](Geometry& g) { g.hosts = g.clients + 1; });
  expect_refused("coherence domain: 9",
                 [](Geometry& g) { g.domain = static_cast<memory::DomainKind>(9); });
  expect_refused("note bytes: 100 is not a multiple", [](Geometry& g) { g.note_bytes = 100; });
  expect_refused("note bytes: 1048640", [](Geometry& g) { g.note_bytes = kMaxNoteBytes + 64; });
  expect_refused("device size: 0", [](Geometry& g) { g.device_bytes = 0; });
  expect_refused("device size", [](Geometry& g) { g.device_bytes -= kStripeBytes; });
  expect_refused("not a multiple of 2 MiB", [](Geometry& g) { g.device_bytes += 4096; });
}

TEST(Geometry, ADeviceThatIsTooSmallIsToldHowManyBytesItNeeds) {
  Geometry g = good_geometry();
  const std::string needed = std::to_string(g.device_bytes);
  g.device_bytes -= kStripeBytes;
  EXPECT_NE(std::string(lay_out(g).error().message).find(needed), std::string::npos);
}

TEST(Geometry, SizesThatOverflowAreRefused) {
  Geometry g = good_geometry();
  g.blocks = kNoBlock - 1;
  g.block_bytes = 0xffffffc0u;
  EXPECT_NE(std::string(lay_out(g).error().message).find("more than 2^62"), std::string::npos);
  EXPECT_FALSE(device_bytes_needed(g));
}

RC_GTEST_PROP(Geometry, NoNumberCanMakeLayoutMisbehave, ()) {
  Geometry g;
  g.devices = *rc::gen::arbitrary<std::uint32_t>();
  g.device_bytes = *rc::gen::arbitrary<std::uint64_t>();
  g.block_bytes = *rc::gen::arbitrary<std::uint64_t>();
  g.blocks = *rc::gen::arbitrary<std::uint32_t>();
  g.capacity_blocks = *rc::gen::arbitrary<std::uint32_t>();
  g.directory_slots = *rc::gen::arbitrary<std::uint32_t>();
  g.clients = *rc::gen::arbitrary<std::uint32_t>();
  g.hosts = *rc::gen::arbitrary<std::uint32_t>();
  g.note_bytes = *rc::gen::arbitrary<std::uint32_t>();
  const Result<Layout> layout = lay_out(g);
  if (layout) RC_ASSERT(layout->data_offset + layout->data_bytes_per_device <= g.device_bytes);
}

RC_GTEST_PROP(Layout, SectionsFollowEachOtherPageByPageInsideTheDevice, ()) {
  Geometry g;
  g.devices = *rc::gen::inRange(1u, kMaxDevices + 1);
  g.block_bytes = *rc::gen::inRange(1u, 100'000u) * 64ull;
  g.blocks = *rc::gen::inRange(1u, 2'000'000u);
  g.capacity_blocks = *rc::gen::inRange(1u, g.blocks + 1);
  g.directory_slots = *rc::gen::inRange(1u, 60'000u) * kBucketSlots;
  g.clients = *rc::gen::inRange(1u, kMaxClients + 1);
  g.hosts = *rc::gen::inRange(1u, g.clients + 1);
  g.note_bytes = *rc::gen::inRange(0u, 40u) * 64;
  g.device_bytes = *device_bytes_needed(g);
  const Result<Layout> made = lay_out(g);
  RC_ASSERT(made);
  const Layout& l = *made;
  std::uint64_t end = 0;
  const auto section = [&](std::uint64_t begin, std::uint64_t bytes) {
    RC_ASSERT(begin % kPageBytes == 0u);
    RC_ASSERT(begin >= end);
    end = begin + bytes;
  };
  section(0, 128);
  for (std::uint32_t k = 0; k < kKeeperSlots; ++k) {
    section(l.keeper_line(k), 64);
    RC_ASSERT(l.keeper_counters(k) + 8 * 64 <= l.namespace_line(k, 0));
    section(l.namespace_line(k, 0), kMaxNamespaces * 64);
    section(l.name_line(k, 0, 0), kMaxNamespaces * kNameLines * 64);
    section(l.view_line(k, 0), 0);
    end = l.view_line(k, g.clients - 1) + 64;
    section(l.response_ring(k, 0), 0);
    end = l.response_ring(k, g.clients - 1) + kRingLines * 64;
    section(l.keeper_line(k) + l.ledger_in_area, 0);
    RC_ASSERT(l.ledger_line(k, 0) == end);
    end = l.ledger_line(k, g.blocks - 1) + 64;
  }
  section(l.client_line(0), 64);
  RC_ASSERT(ClientCounters::kLines <= 8u && KeeperCounters::kLines <= 16u);
  RC_ASSERT(l.keeper_info(0) == l.keeper_counters(0) + 16 * 64);
  RC_ASSERT(l.client_totals(0, 0) >= l.client_counters(0) + 8 * 64);
  RC_ASSERT(l.client_totals(0, 1) == l.client_totals(0, 0) + 8 * 64);
  RC_ASSERT(l.client_totals(g.clients - 1, 1) + 8 * 64 <=
            l.client_line(g.clients - 1) + kPageBytes);
  RC_ASSERT(l.client_counters(g.clients - 1) + 8 * 64 <= l.client_line(g.clients - 1) + kPageBytes);
  end = l.client_line(g.clients - 1) + kPageBytes;
  section(l.doorbell_page, kPageBytes);
  section(l.request_ring(0), 0);
  end = l.request_ring(g.clients - 1) + kRingLines * 64;
  section(l.entry(0), 0);
  end = l.entry(g.directory_slots - 1) + 64;
  section(l.notes, std::uint64_t{g.blocks} * g.note_bytes);
  RC_ASSERT(l.metadata_bytes >= end);
  RC_ASSERT(l.data_offset >= l.metadata_bytes);
  RC_ASSERT(l.data_offset % kStripeBytes == 0u);
  RC_ASSERT(l.other_data_offset % kStripeBytes == 0u);
  RC_ASSERT(l.data_offset + l.data_bytes_per_device <= g.device_bytes);
  // All blocks have room, and not a stripe row more than that.
  const std::uint64_t data = std::uint64_t{g.blocks} * g.block_bytes;
  RC_ASSERT(l.data_bytes_per_device * g.devices >= data);
  RC_ASSERT((l.data_bytes_per_device - kStripeBytes) * g.devices < data);
}

TEST(Geometry, TheRatedDirectoryHasTwoSlotsABlockAndFourBucketsAtLeast) {
  EXPECT_EQ(rated_directory_slots(1), 256u);
  EXPECT_EQ(rated_directory_slots(1000), 2048u);
  EXPECT_EQ(rated_directory_slots(0x7fffffffu), 0xffffffc0u);
  EXPECT_EQ(rated_directory_slots(0xffffffffu) % kBucketSlots, 0u);
}

// --- Header ------------------------------------------------------------------------------------

class HeaderTest : public testing::Test {
 protected:
  std::string refusal(Code code) {
    const Result<Header> header =
        read_header(pool_.domain(), base(), pool_.access().view.bytes_each, "the-pool");
    if (header) return "accepted";
    EXPECT_EQ(header.error().code, code) << header.error().message;
    return header.error().message;
  }
  std::byte* base() { return pool_.access().view.bases[0]; }

  TestPool pool_;
};

TEST_F(HeaderTest, SaysWhatThePoolWasMadeOf) {
  const Result<Header> header =
      read_header(pool_.domain(), base(), pool_.access().view.bytes_each, "p");
  ASSERT_TRUE(header);
  const Geometry &a = header->geometry, &b = pool_.access().geometry;
  EXPECT_TRUE(header->id == (PoolId{7, 8}));
  EXPECT_EQ(header->created_unix_s, 1u);
  EXPECT_EQ(header->device_index, 0u);
  EXPECT_TRUE(a.domain == b.domain && a.devices == b.devices && a.device_bytes == b.device_bytes);
  EXPECT_TRUE(a.block_bytes == b.block_bytes && a.blocks == b.blocks &&
              a.capacity_blocks == b.capacity_blocks);
  EXPECT_TRUE(a.directory_slots == b.directory_slots && a.clients == b.clients &&
              a.hosts == b.hosts);
}

TEST(Header, SaysHowLargeANoteIs) {
  Geometry geometry = small_geometry();
  geometry.note_bytes = 192;
  TestPool pool(geometry);
  const Result<Header> header =
      read_header(pool.domain(), pool.access().view.bases[0], pool.access().view.bytes_each, "p");
  ASSERT_TRUE(header);
  EXPECT_EQ(header->geometry.note_bytes, 192u);
}

TEST_F(HeaderTest, AWrongMagicIsNoPool) {
  base()[0] ^= std::byte{1};
  const std::string said = refusal(Code::kNotAPool);
  EXPECT_NE(said.find("the-pool"), std::string::npos);
  EXPECT_NE(said.find("magic"), std::string::npos);
}

TEST_F(HeaderTest, AnotherVersionIsNamedEvenIfItsChecksumIsOfAnotherKind) {
  base()[8] = std::byte{9};
  EXPECT_NE(refusal(Code::kVersionMismatch).find("version 9"), std::string::npos);
}

TEST_F(HeaderTest, AnyOtherFlippedBitIsDamage) {
  base::Rng rng(1);
  for (int i = 0; i < 500; ++i) {
    const std::size_t at = 12 + rng.below(128 - 12);
    const std::byte bit{static_cast<unsigned char>(1u << rng.below(8))};
    base()[at] ^= bit;
    EXPECT_NE(refusal(Code::kCorrupt).find("CRC"), std::string::npos) << at;
    base()[at] ^= bit;
  }
  EXPECT_EQ(refusal(Code::kCorrupt), "accepted");
}

TEST_F(HeaderTest, AFileSmallerThanAStripeIsNoPool) {
  const Result<Header> header = read_header(pool_.domain(), base(), kStripeBytes - 1, "p");
  ASSERT_FALSE(header);
  EXPECT_EQ(header.error().code, Code::kNotAPool);
  EXPECT_NE(std::string(header.error().message).find("2097151"), std::string::npos);
}

TEST_F(HeaderTest, APoolWithOtherConstantsIsOfAnotherVersion) {
  auto line = pool_.line_at<GeometryLine>(64);
  line.ring_lines = 512;
  pool_.put_line(64, line);
  EXPECT_NE(refusal(Code::kVersionMismatch).find("512"), std::string::npos);
}

TEST(Access, DevicesThatAreNotThoseOfTheHeaderAreRefused) {
  TestPool pool;
  Geometry g = pool.access().geometry;
  memory::PoolView view = pool.access().view;
  view.bytes_each -= kStripeBytes;
  EXPECT_FALSE(make_access({7, 8}, g, view, pool.domain()));
  view = pool.access().view;
  view.bases.push_back(view.bases[0]);
  EXPECT_FALSE(make_access({7, 8}, g, view, pool.domain()));
}

// The example of docs/formats/pool.md.
TEST(Seal, IsTheOneThatTheFormatPageWorksOut) {
  const memory::LineSeal seal(0x0706050403020100u, 0x0f0e0d0c0b0a0908u);
  memory::Line line{};
  KeeperLine keeper{};
  keeper.epoch = 3;
  keeper.min_epoch = 3;
  keeper.flags = kKeeperServing;
  keeper.pid = 4242;
  line = memory::to_line(keeper);
  seal.seal(line, 0x1000);
  EXPECT_EQ(memory::as<KeeperLine>(line).crc, 0x4577a0efu);
  EXPECT_TRUE(seal.checks(line, 0x1000));
  EXPECT_FALSE(seal.checks(line, 0x1040));
  // Bit by bit, by the definition of CRC-32C with its reflected polynomial.
  std::uint32_t crc = 0xffffffffu;
  const auto word = [&](std::uint64_t value) {
    for (int bit = 0; bit < 64; ++bit, value >>= 1) {
      const bool odd = ((crc ^ value) & 1) != 0;
      crc = (crc >> 1) ^ (odd ? 0x82f63b78u : 0u);
    }
  };
  word(0x0706050403020100u);
  word(0x0f0e0d0c0b0a0908u);
  word(0x1000);
  for (int i = 0; i < 7; ++i) word(line.words[i]);
  word(line.words[7] & 0xffffffffu);
  EXPECT_EQ(crc, memory::as<KeeperLine>(line).crc);
}

TEST(Geometry, TheLastSlotOfEachHostIsTheOperatorsUnlessItIsTheOnlyOne) {
  Geometry g;
  g.clients = 5;
  EXPECT_EQ(g.engine_clients(), 4u);
  g.hosts = 2;  // slots 0 and 1, 2 and 3; unused: 4
  EXPECT_EQ(g.engine_clients(), 3u);
  g.clients = 2;
  EXPECT_EQ(g.engine_clients(), 2u);
}

}  // namespace
}  // namespace cachalot::pool
