#include "pool/check/mend.h"

#include <cstring>
#include <set>
#include <vector>

#include "pool/check/client_check.h"
#include "pool/check/keeper_check.h"
#include "pool/check/lines.h"
#include "pool/format/context_lines.h"
#include "pool/format/notes.h"
#include "pool/keeper/keeper_line.h"
#include "pool/reader/published_blocks.h"

namespace cachalot::pool {
namespace {

class Mending {
 public:
  explicit Mending(const Access& access)
      : access_(access), predecessor_(find_predecessor(access)) {}

  void mend_keeper_lines() {
    std::set<std::uint32_t> epochs;
    for (std::uint32_t area = 0; area < kKeeperSlots; ++area) {
      const KeeperLine newer = read_keeper_line(access_, area);
      const std::uint64_t at = access_.layout.keeper_line(area);
      const bool can_be =
          newer.epoch != 0 && newer.min_epoch <= newer.epoch && epochs.insert(newer.epoch).second;
      if (area == predecessor_.area || can_be) {
        written_ += mend_keeper_line(access_, area, newer);
      } else {
        // A keeper with a higher epoch rules: nothing depends on what stood here.
        wipe(at);
        wipe(access_.layout.keeper_line_copy(area));
      }
    }
  }

  void mend_area() {
    const std::uint32_t area = predecessor_.area;
    for_each_report_line(access_, area, [this](std::uint64_t at) { clear(at); });
    for (std::uint32_t i = 0; i < kMaxNamespaces; ++i)
      clear(access_.layout.namespace_line(area, i));
    for (std::uint32_t client = 0; client < access_.geometry.clients; ++client)
      clear(access_.layout.view_line(area, client));
    for (std::uint32_t index = 0, room = context_room(access_); index < room; ++index)
      clear(access_.layout.context_line(area, index, access_.geometry.clients));
  }

  // A keeper writes the directory again when it takes over, but not in a pool that never had one.
  void mend_directory() {
    Entry free{};
    free.block = free.parent = kNoBlock;
    free.state = kEntryFree;
    for (std::uint32_t slot = 0; slot < access_.geometry.directory_slots; ++slot) {
      Entry entry{};
      const std::uint64_t at = access_.layout.entry(slot);
      if (access_.region.read_as(at, entry)) continue;
      access_.region.publish(at, free);
      ++written_;
    }
  }

  // The next client of the slot must have another incarnation than all before.
  void mend_client(std::uint32_t client) {
    ClientLine line{};
    const std::uint64_t at = access_.layout.client_line(client);
    const LineState state = look_at_line(access_, at, line);
    const std::uint32_t admitted = admitted_incarnation(access_, predecessor_, client);
    const bool is_wrong = state == LineState::kDamaged || line.incarnation < admitted ||
                          line.host >= access_.geometry.hosts;
    if (is_wrong) {
      ClientLine mended{};
      mended.incarnation = std::max(admitted, state == LineState::kGood ? line.incarnation : 0);
      mended.host = client / access_.geometry.clients_per_host();
      if (mended.host >= access_.geometry.hosts) mended.host = 0;
      access_.region.publish(at, mended);
      ++written_;
    }
    clear(access_.layout.client_pins(client));
    for_each_report_line_of_client(access_, client,
                                   [this](std::uint64_t report) { clear(report); });
  }

  void mend_notes() {
    std::vector<std::uint32_t> tokens;
    for_each_published(access_, [&](const Entry& entry) {
      const BlockUse use{entry.block, entry.generation};
      const BlockHash hash{entry.hash_low, entry.hash_high};
      if (!note_names(access_, use, hash) || read_note(access_, use, hash, tokens)) return;
      clear_note(access_, entry.block);
      ++written_;
    });
  }

  std::uint32_t written() const { return written_; }

 private:
  // A line that is damaged.
  void clear(std::uint64_t offset) {
    if (is_damaged(access_, offset)) wipe(offset);
  }
  void wipe(std::uint64_t offset) {
    KeeperLine line{};
    if (look_at_line(access_, offset, line) == LineState::kBlank) return;
    access_.domain().write_line(access_.region.at(offset), memory::Line{});
    ++written_;
  }

  const Access& access_;
  const Predecessor predecessor_;
  std::uint32_t written_ = 0;
};

}  // namespace

std::uint32_t mend_lines(const Access& access,
                         const std::function<bool(std::uint32_t client)>& is_idle) {
  Mending mending(access);
  mending.mend_keeper_lines();
  mending.mend_area();
  mending.mend_directory();
  for (std::uint32_t client = 0; client < access.geometry.clients; ++client) {
    if (is_idle(client)) mending.mend_client(client);
  }
  mending.mend_notes();
  access.domain().complete();
  return mending.written();
}

}  // namespace cachalot::pool
