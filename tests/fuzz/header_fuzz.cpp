// The two lines of a pool's header. First byte: 0, as they are; else, sealed again, so that hostile values check.
// A header that is accepted lays out a pool that lies within its devices.
#include <cstdlib>
#include <memory>

#include "base/check.h"
#include "input.h"
#include "pool/format/access.h"

namespace cachalot::pool {
namespace {

struct Freed {
  void operator()(void* p) const { std::free(p); }
};

void check_layout(const Geometry& g, const Layout& layout) {
  const std::uint64_t places[] = {layout.keeper_areas,   layout.client_pages, layout.doorbell_page,
                                  layout.request_rings,  layout.directory,    layout.notes,
                                  layout.metadata_bytes, layout.data_offset};
  for (std::size_t i = 1; i < std::size(places); ++i) CACHALOT_CHECK(places[i - 1] <= places[i]);
  CACHALOT_CHECK(layout.keeper_line(kKeeperSlots) <= layout.client_pages);
  CACHALOT_CHECK(layout.ledger_line(0, g.blocks - 1) + 64 <= layout.keeper_line(1));
  CACHALOT_CHECK(layout.client_line(g.clients) <= layout.doorbell_page);
  CACHALOT_CHECK(layout.request_ring(g.clients) <= layout.directory);
  CACHALOT_CHECK(layout.entry(g.directory_slots) <= layout.notes);
  CACHALOT_CHECK(layout.data_offset <= g.device_bytes);
  if (g.growable) {  // it has addresses for more than its device has bytes
    CACHALOT_CHECK(std::uint64_t{layout.first_blocks} * g.block_bytes <=
                   g.device_bytes - layout.data_offset);
    return;
  }
  CACHALOT_CHECK(layout.first_blocks == g.blocks);
  CACHALOT_CHECK(layout.data_bytes_per_device <= g.device_bytes);
  CACHALOT_CHECK(layout.data_offset <= g.device_bytes - layout.data_bytes_per_device);
  CACHALOT_CHECK(layout.other_data_offset <= g.device_bytes - layout.data_bytes_per_device);
}

void check_blocks(const Access& access) {
  const Geometry& g = access.geometry;
  const std::uint32_t blocks = access.layout.first_blocks;
  CACHALOT_CHECK(blocks != 0 && blocks <= g.blocks);
  for (const std::uint32_t block : {0u, blocks / 2, blocks - 1}) {
    std::uint64_t bytes = 0;
    access.interleave.for_each_extent(
        std::uint64_t{block} * g.block_bytes, g.block_bytes,
        [&](std::uint32_t device, std::uint64_t offset, std::uint64_t length) {
          CACHALOT_CHECK(device < g.devices && offset <= g.device_bytes - length);
          bytes += length;
        });
    CACHALOT_CHECK(bytes == g.block_bytes);
  }
}

void try_header(fuzz::Input input) {
  static const auto domain = memory::make_coherent_domain();
  static const std::unique_ptr<std::byte, Freed> device(
      static_cast<std::byte*>(std::aligned_alloc(memory::kStripeBytes, memory::kStripeBytes)));
  const bool is_sealed = input.take<std::uint8_t>() != 0;
  HeaderLine first{};
  GeometryLine second{};
  input.change(first);
  input.change(second);
  memory::Line lines[2] = {memory::to_line(first), memory::to_line(second)};
  if (is_sealed) {
    const memory::LineSeal seal(first.uuid_low, first.uuid_high);
    for (std::uint64_t i = 0; i < 2; ++i) seal.seal(lines[i], i * memory::kLineBytes);
  }
  std::memcpy(device.get(), lines, sizeof lines);
  const Result<Header> header =
      read_header(*domain, device.get(), memory::kStripeBytes, "the device");
  if (!header) return;
  Geometry g = header->geometry;
  if (const Result<std::uint64_t> bytes = device_bytes_needed(g)) {
    CACHALOT_CHECK(lay_out(g).ok() ==
                   (g.device_bytes >= *bytes && g.device_bytes % memory::kStripeBytes == 0));
    if (g.device_bytes < *bytes) g.device_bytes = *bytes;  // so that all the rest is seen, too
  }
  const Result<Layout> layout = lay_out(g);
  if (!layout) return;
  check_layout(g, *layout);
  memory::PoolView view;
  view.bytes_each = g.device_bytes;
  view.bases.assign(g.devices, device.get());
  const Result<Access> access = make_access(header->id, g, view, *domain);
  if (access) check_blocks(*access);
}

}  // namespace
}  // namespace cachalot::pool

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  cachalot::pool::try_header({data, bytes});
  return 0;
}
