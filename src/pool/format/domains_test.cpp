#include "pool/format/domains.h"

#include <gtest/gtest.h>

#include "memory/mixed_domain.h"

namespace cachalot::pool {
namespace {

using memory::DomainKind;

Geometry of_devices(std::uint32_t devices) {
  Geometry geometry;
  geometry.devices = devices;
  return geometry;
}

TEST(DomainsTest, OneWordIsOfAllDevices) {
  Geometry geometry = of_devices(3);
  ASSERT_TRUE(set_domains(geometry, "noncoherent"));
  EXPECT_EQ(geometry.domain, DomainKind::kNoncoherent);
  EXPECT_EQ(domains_text(geometry), "noncoherent");
  ASSERT_TRUE(set_domains(geometry, "coherent"));
  EXPECT_EQ(domains_text(geometry), "coherent");
}

TEST(DomainsTest, AWordForEachDevice) {
  Geometry geometry = of_devices(3);
  ASSERT_TRUE(set_domains(geometry, "coherent,noncoherent,coherent"));
  EXPECT_EQ(geometry.domain, DomainKind::kMixed);
  EXPECT_EQ(geometry.noncoherent_devices, 2u);
  EXPECT_EQ(domains_text(geometry), "coherent,noncoherent,coherent");
  ASSERT_TRUE(set_domains(geometry, "noncoherent,noncoherent,noncoherent"));
  EXPECT_EQ(geometry.domain, DomainKind::kNoncoherent);
  EXPECT_EQ(geometry.noncoherent_devices, 0u);
}

TEST(DomainsTest, AsManyDevicesAsAPoolMayHave) {
  Geometry geometry = of_devices(kMaxDevices);
  std::string text = "coherent";
  for (std::uint32_t i = 1; i < kMaxDevices; ++i) text += ",noncoherent";
  ASSERT_TRUE(set_domains(geometry, text));
  EXPECT_EQ(geometry.noncoherent_devices, ~std::uint64_t{1});
  EXPECT_EQ(domains_text(geometry), text);
}

TEST(DomainsTest, TheSecondWordOfAPoolThatMayGrowIsOfAddedDevices) {
  Geometry geometry = of_devices(1);
  geometry.growable = true;
  ASSERT_TRUE(set_domains(geometry, "coherent,noncoherent"));
  EXPECT_EQ(geometry.domain, DomainKind::kMixed);
  EXPECT_EQ(domains_text(geometry), "coherent,noncoherent");
}

TEST(DomainsTest, WhatCannotBeIsRefused) {
  const auto error_of = [](std::uint32_t devices, const char* text) {
    Geometry geometry = of_devices(devices);
    const Status status = set_domains(geometry, text);
    return std::string(status ? "" : status.error().message);
  };
  EXPECT_EQ(error_of(2, "coherent,maybe"), "domain: 'maybe', expected coherent or noncoherent");
  EXPECT_EQ(error_of(2, "coherent,"), "domain: '', expected coherent or noncoherent");
  EXPECT_EQ(error_of(1, "coherent,noncoherent"),
            "domain: coherent,noncoherent: 2 words for one device, expected one");
  EXPECT_EQ(error_of(3, "coherent,noncoherent"),
            "domain: coherent,noncoherent: 2 words, expected one, or 3: one for each device");
  EXPECT_EQ(error_of(2, "noncoherent,coherent"),
            "domain: noncoherent,coherent: the first device has the metadata, and is not coherent; "
            "expected a coherent one first where there is one");
}

TEST(DomainsTest, EachDeviceIsAccessedAsItsWordSays) {
  Geometry geometry = of_devices(3);
  ASSERT_TRUE(set_domains(geometry, "coherent,noncoherent,coherent"));
  memory::Line devices[3][4] = {};
  memory::PoolView view;
  view.bytes_each = sizeof devices[0];
  for (auto& device : devices) view.bases.push_back(reinterpret_cast<std::byte*>(device));
  const auto made = make_domain(geometry, view, "the pool");
  ASSERT_TRUE(made) << made.error().message;
  const auto& mixed = dynamic_cast<const memory::MixedDomain&>(**made);
  EXPECT_TRUE(mixed.is_coherent(devices[0], view.bytes_each));
  EXPECT_FALSE(mixed.is_coherent(devices[1], memory::kLineBytes));
  EXPECT_TRUE(mixed.is_coherent(devices[2], view.bytes_each));
}

TEST(DomainsTest, WhatIsAddedToAPoolThatMayGrowIsNotCoherent) {
  Geometry geometry = of_devices(1);
  geometry.growable = true;
  ASSERT_TRUE(set_domains(geometry, "coherent,noncoherent"));
  memory::Line lines[4] = {};  // the first device's two, and those of one behind it
  memory::PoolView view;
  view.bytes_each = 2 * memory::kLineBytes;
  view.bases = {reinterpret_cast<std::byte*>(lines)};
  const auto made = make_domain(geometry, view, "the pool");
  ASSERT_TRUE(made) << made.error().message;
  const auto& mixed = dynamic_cast<const memory::MixedDomain&>(**made);
  EXPECT_TRUE(mixed.is_coherent(lines, view.bytes_each));
  EXPECT_FALSE(mixed.is_coherent(lines + 2, memory::kLineBytes));
  EXPECT_FALSE(mixed.is_coherent(lines + 1, 2 * memory::kLineBytes));  // a block across the border
}

// Numbers that a header may contain.
TEST(DomainsTest, AGeometryWhoseMetadataIsNotCoherentIsNone) {
  Geometry geometry = of_devices(2);
  geometry.block_bytes = 4096;
  geometry.blocks = geometry.capacity_blocks = 8;
  geometry.directory_slots = 64;
  geometry.clients = 1;
  const auto is_geometry = [&](DomainKind domain, std::uint64_t noncoherent) {
    geometry.domain = domain;
    geometry.noncoherent_devices = noncoherent;
    return device_bytes_needed(geometry).ok();
  };
  EXPECT_TRUE(is_geometry(DomainKind::kMixed, 2));
  EXPECT_FALSE(is_geometry(DomainKind::kMixed, 0));
  EXPECT_FALSE(is_geometry(DomainKind::kMixed, 1));
  EXPECT_FALSE(is_geometry(DomainKind::kMixed, 3));
  EXPECT_FALSE(is_geometry(DomainKind::kMixed, 4));
  EXPECT_FALSE(is_geometry(DomainKind::kCoherent, 2));
  EXPECT_FALSE(is_geometry(DomainKind::kNoncoherent, 2));
  EXPECT_FALSE(is_geometry(static_cast<DomainKind>(5), 0));
}

}  // namespace
}  // namespace cachalot::pool
