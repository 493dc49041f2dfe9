#include "pool/format/storage_state.h"

#include <cstring>
#include <utility>

#include "pool/format/namespace_names.h"

namespace cachalot::pool {
namespace {

constexpr std::uint32_t kFirstLine = 40;
constexpr std::uint32_t kErrorLines = 3;
constexpr std::uint32_t kInUse = 1, kHasPeers = 2;

struct StorageLine {
  std::uint32_t epoch;
  std::uint32_t flags;
  std::uint64_t objects, bytes, queued_blocks, outages;
  char kind[16];  // padded with zeros
  std::uint32_t peers;
  std::uint32_t crc;
};
static_assert(sizeof(StorageLine) == 64);

std::uint64_t line_offset_of(const Access& access, std::uint32_t area, std::uint32_t line) {
  return access.layout.keeper_line(area) + (kFirstLine + line) * memory::kLineBytes;
}

}  // namespace

void publish_storage_state(const Access& access, std::uint32_t area, std::uint32_t epoch,
                           const StorageState& state) {
  for (std::uint32_t part = 0; part < kErrorLines; ++part) {
    NameLine text{};
    text.epoch = epoch;
    const std::size_t at = std::size_t{part} * kNameLineBytes;
    if (at < state.last_error.size()) state.last_error.copy(text.text, kNameLineBytes, at);
    access.region.publish(line_offset_of(access, area, 1 + part), text);
  }
  StorageLine line{};
  line.epoch = epoch;
  line.flags = (state.is_up ? kInUse : 0) | (state.peers ? kHasPeers : 0);
  line.peers = state.peers.value_or(0);
  line.objects = state.objects;
  line.bytes = state.bytes;
  line.queued_blocks = state.queued_blocks;
  line.outages = state.outages;
  state.kind.copy(line.kind, sizeof line.kind - 1);
  access.region.publish(line_offset_of(access, area, 0), line);
}

std::optional<StorageState> read_storage_state(const Access& access, std::uint32_t area,
                                               std::uint32_t epoch) {
  StorageLine line{};
  if (!access.region.read_as(line_offset_of(access, area, 0), line) || line.epoch != epoch)
    return {};
  StorageState state;
  state.kind = printable({line.kind, strnlen(line.kind, sizeof line.kind)});
  state.is_up = (line.flags & kInUse) != 0;
  if ((line.flags & kHasPeers) != 0) state.peers = line.peers;
  state.objects = line.objects;
  state.bytes = line.bytes;
  state.queued_blocks = line.queued_blocks;
  state.outages = line.outages;
  for (std::uint32_t part = 0; part < kErrorLines; ++part) {
    NameLine text{};
    if (!access.region.read_as(line_offset_of(access, area, 1 + part), text) || text.epoch != epoch)
      break;
    state.last_error.append(text.text, strnlen(text.text, kNameLineBytes));
  }
  state.last_error = printable(std::move(state.last_error));
  return state;
}

}  // namespace cachalot::pool
