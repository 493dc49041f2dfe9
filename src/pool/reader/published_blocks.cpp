#include "pool/reader/published_blocks.h"

#include "pool/expansion/expansion_memory.h"
#include "pool/reader/directory.h"

namespace cachalot::pool {

using memory::Line;

namespace {

bool is_published(const Access& access, const KeeperView& view, const Entry& entry) {
  const Geometry& geometry = access.geometry;
  return entry.state == kEntryLive && view.admits(entry.epoch) && entry.block < geometry.blocks &&
         entry.length != 0 && entry.length <= geometry.block_bytes &&
         (entry.parent < geometry.blocks || entry.parent == kNoBlock);
}

}  // namespace

void for_each_published(const Access& access, const std::function<void(const Entry&)>& f) {
  constexpr std::uint32_t kBatch = kBucketSlots;
  const KeeperView view = DirectoryReader(access).read_keepers();
  const std::uint32_t accessible = access.expansions == nullptr
                                       ? access.geometry.blocks
                                       : access.expansions->follow(access, view.keeper, view.epoch);
  Line lines[kBatch];
  for (std::uint32_t first = 0; first < access.geometry.directory_slots; first += kBatch) {
    access.domain().read_lines(access.region.at(access.layout.entry(first)), kBatch, lines);
    for (std::uint32_t i = 0; i < kBatch; ++i) {
      const std::uint64_t offset = access.layout.entry(first + i);
      if (!access.region.checks(lines[i], offset) && !access.region.read(offset, lines[i]))
        continue;
      const auto entry = memory::as<Entry>(lines[i]);
      if (is_published(access, view, entry) && entry.block < accessible) f(entry);
    }
  }
}

std::vector<BlockHash> read_namespaces(const Access& access) {
  const KeeperView view = DirectoryReader(access).read_keepers();
  std::vector<BlockHash> digests;
  for (std::uint32_t id = 1; view.epoch != 0 && id <= kMaxNamespaces; ++id) {
    NamespaceLine line{};
    const std::uint64_t offset = access.layout.namespace_line(view.keeper, id - 1);
    if (!access.region.read_as(offset, line) || line.id != id || line.epoch != view.epoch) continue;
    digests.resize(id);
    digests[id - 1] = {line.digest_low, line.digest_high};
  }
  return digests;
}

}  // namespace cachalot::pool
