// Lines of a pool whose values are hostile and whose seals are right.
//
// First byte: bit 0, entries keep what tells their content (hash, checksum, length); bit 1, the next keeper verifies
// payloads. Then changes: which kind of line, which of them, the first byte, how many, the bytes.
//
// Nothing crashes, the check ends, a reader gets no block beside the pool; and where entries keep what tells their
// content, no wrong byte. A keeper that has taken over is valid.
#include <array>

#include "input.h"
#include "pool/check/mend.h"
#include "pool/check/pool_check.h"
#include "pool_image.h"

namespace cachalot::pool {
namespace {

enum Bits : std::uint32_t { kTrueContent = 1, kVerifies = 2 };

// All but those of a client and a keeper that have exited.
class AllHaveExited final : public Evidence {
 public:
  bool has_exited(const ProcessIdentity&) override { return true; }
};

// The offset of a line of this kind.
std::uint64_t place_of(const Access& access, std::uint32_t kind, std::uint32_t index) {
  const Layout& layout = access.layout;
  const Geometry& g = access.geometry;
  const std::uint32_t keeper = index % kKeeperSlots, client = index % g.clients;
  switch (kind) {
    case 0:
      return layout.keeper_line(keeper);
    case 1:
      return layout.keeper_line_copy(keeper);
    case 2:
      return layout.keeper_info(keeper);
    case 3:
      return layout.keeper_counters(keeper);
    case 4:
      return layout.namespace_line(keeper, index / kKeeperSlots % 4);
    case 5:
      return layout.name_line(keeper, index / kKeeperSlots % 4, 0);
    case 6:
      return layout.view_line(keeper, index / kKeeperSlots % g.clients);
    case 7:
      return layout.ledger_line(keeper, index / kKeeperSlots * kLedgerRecordsPerLine % g.blocks);
    case 8:
      return layout.client_line(client) + index / g.clients % 3 * memory::kLineBytes;
    case 9:
      return layout.client_counters(client);
    case 10:
      return layout.client_totals(client, index / g.clients % 2);
    case 11:
      return layout.departure(client);
    case 12:
      return layout.host_line(0);
    case 13: {  // an entry in use
      const std::uint32_t slot = access.geometry.directory_slots;
      for (std::uint32_t i = 0, live = 0; i < slot; ++i) {
        Entry entry{};
        if (access.region.read_as(layout.entry(i), entry) && entry.state == kEntryLive &&
            live++ == index % kImageBlocks)
          return layout.entry(i);
      }
      return layout.entry(0);
    }
    default:
      return layout.entry(index % g.directory_slots);
  }
}

void change_lines(const Access& access, fuzz::Input& input, std::uint32_t bits) {
  while (!input.is_empty()) {
    const std::uint32_t kind = input.below(15), index = input.take<std::uint8_t>();
    const std::uint32_t first = input.below(60), count = input.below(61 - first);
    const std::uint64_t at = place_of(access, kind, index);
    memory::Line line;
    access.domain().read_lines(access.region.at(at), 1, &line);
    const memory::Line before = line;
    const auto bytes = input.take_bytes(count);
    if (!bytes.empty())
      std::memcpy(reinterpret_cast<std::byte*>(&line) + first, bytes.data(), bytes.size());
    if (kind >= 13 && (bits & kTrueContent) != 0) {
      const auto old = memory::as<Entry>(before);
      auto entry = memory::as<Entry>(line);
      entry.hash_low = old.hash_low, entry.hash_high = old.hash_high;
      entry.namespace_id = old.namespace_id;
      entry.length = old.length, entry.checksum = old.checksum, entry.flags = old.flags;
      if (old.state != kEntryLive) entry.state = old.state;
      line = memory::to_line(entry);
    }
    access.region.publish(at, line);
  }
}

// Without a keeper, as any process does that maps the pool.
void read_directory(const Access& access) {
  std::vector<BlockHash> hashes;
  for (std::uint64_t name = 0; name <= kImageBlocks; ++name) hashes.push_back(hash_of(name));
  std::vector<Found> found(hashes.size());
  std::array<bool, kImageBlocks + 1> is_published{};
  const DirectoryReader reader(access);
  for (std::uint32_t space = 0; space < 3; ++space) {
    KeeperView view;
    const std::size_t hits = reader.lookup(hashes, space, view, found);
    for (std::size_t i = 0; i < hits; ++i) {
      const Entry& entry = found[i].entry;
      CACHALOT_CHECK(entry.hash_low == hashes[i].low && entry.hash_high == hashes[i].high);
      CACHALOT_CHECK(entry.block < access.geometry.blocks);
      CACHALOT_CHECK(entry.length <= access.geometry.block_bytes);
    }
    reader.find_each(hashes, space, is_published);
  }
}

void read_blocks(TestPool& pool, std::uint32_t bits) {
  ClientOptions options = PoolImage::options();
  options.reads_only = true;
  for (std::uint32_t slot = 0; slot < pool.access().geometry.clients; ++slot) {
    Result<std::unique_ptr<Client>> client = pool.try_attach(slot, options);
    if (!client) continue;
    for (std::uint64_t name = 0; name < kImageBlocks; ++name) {
      if ((bits & kTrueContent) != 0) {
        pool.read(**client, name, 1);  // looks at the bytes
        continue;
      }
      std::vector<std::byte> room(pool.access().geometry.block_bytes);
      std::byte* const to = room.data();
      Found found;
      const BlockHash hash = hash_of(name);
      if ((*client)->lookup({&hash, 1}, {&found, 1}) == 1) (*client)->read({&found, 1}, {&to, 1});
    }
    (void)(*client)->detach();
    return;
  }
}

void try_input(fuzz::Input input) {
  static PoolImage image;
  static AllHaveExited evidence;
  TestPool& pool = image.pool();
  pool.evidence = &evidence;
  image.restore();
  const std::uint32_t bits = input.take<std::uint8_t>();
  change_lines(pool.access(), input, bits);
  read_directory(pool.access());
  FaultLog log(4);
  const std::uint32_t blocks = pool.access().geometry.blocks;
  CACHALOT_CHECK(check_pool(pool.access(), 1, log).figures.blocks.sum() == blocks);
  KeeperOptions options;
  options.verify_payloads = (bits & kVerifies) != 0;
  if (!pool.try_start_keeper(options)) return;
  CACHALOT_CHECK(pool.keeper().is_valid());
  read_blocks(pool, bits);
  CACHALOT_CHECK(pool.keeper().is_valid());
  pool.stop_keeper();
  if (!options.verify_payloads) return;
  mend_lines(pool.access(), [](std::uint32_t) { return true; });
  FaultLog after(4);
  check_pool(pool.access(), 1, after);
  for (const Fault& fault : after.faults())
    ADD_FAILURE() << "after the repair: " << text_of(fault.kind).name << " " << fault.what;
}

}  // namespace
}  // namespace cachalot::pool

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  cachalot::pool::try_input({data, bytes});
  return 0;
}
