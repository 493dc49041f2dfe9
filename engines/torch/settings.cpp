#include "settings.h"

#include <charconv>
#include <cinttypes>
#include <string_view>

#include "base/byte_size.h"

namespace cachalot::torch {
namespace {

// Chunks are of this size on every GPU so far; a slab is a chunk.
constexpr std::uint64_t kChunkBytes = std::uint64_t{2} << 20;

Result<std::vector<int>> read_devices(const char* name, std::string_view text) {
  std::vector<int> devices;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    int device = 0;
    const auto [stop, error] = std::from_chars(at, end, device);
    const bool is_last = stop == end;
    if (error != std::errc() || device < 0 || (!is_last && (*stop != ',' || stop + 1 == end))) {
      return Error::make(Code::kInvalidArgument,
                         "%s: \"%.*s\", expected numbers of devices with commas between: 0,1", name,
                         static_cast<int>(text.substr(0, 80).size()), text.data());
    }
    devices.push_back(device);
    at = is_last ? end : stop + 1;
  }
  return devices;
}

}  // namespace

Result<Settings> read_settings(const std::function<const char*(const char*)>& get) {
  Settings settings;
  const std::pair<const char*, std::uint64_t*> sizes[] = {
      {"CACHALOT_TORCH_LIMIT", &settings.limit_bytes},
      {"CACHALOT_TORCH_FRAG_LIMIT", &settings.stitch.frag_limit_bytes},
      {"CACHALOT_TORCH_STITCHED_LIMIT", &settings.stitch.stitched_limit_bytes},
      {"CACHALOT_TORCH_SMALL_REQUEST", &settings.stitch.small_request_bytes}};
  for (const auto& [name, bytes] : sizes) {
    const char* const text = get(name);
    if (text == nullptr) continue;
    CACHALOT_TRY_ASSIGN(*bytes, base::parse_byte_size(name, text));
  }
  if (settings.limit_bytes != 0 && settings.limit_bytes < kChunkBytes) {
    return Error::make(Code::kInvalidArgument,
                       "CACHALOT_TORCH_LIMIT: %" PRIu64 " bytes, expected a chunk of %" PRIu64
                       " at least, or 0 for no limit",
                       settings.limit_bytes, kChunkBytes);
  }
  if (settings.stitch.small_request_bytes > kChunkBytes) {
    return Error::make(Code::kInvalidArgument,
                       "CACHALOT_TORCH_SMALL_REQUEST: %" PRIu64
                       " bytes, expected at most a chunk of %" PRIu64,
                       settings.stitch.small_request_bytes, kChunkBytes);
  }
  if (const char* const peers = get("CACHALOT_TORCH_PEERS")) {
    CACHALOT_TRY_ASSIGN(settings.peers, read_devices("CACHALOT_TORCH_PEERS", peers));
  }
  if (const char* const rdma = get("CACHALOT_TORCH_RDMA")) {
    const std::string_view text = rdma;
    if (text != "0" && text != "1") {
      return Error::make(Code::kInvalidArgument, "CACHALOT_TORCH_RDMA: \"%.80s\", expected 0 or 1",
                         rdma);
    }
    settings.rdma = text == "1";
  }
  return settings;
}

}  // namespace cachalot::torch
