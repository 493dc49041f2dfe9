// The blocks that HitDensity knows of, whether they are resident or not, and the lists they stand
// in.
//
// 1. A named block is found by its name, and there is one of each name.
// 2. Each block stands in at most one circular list a shadow; the first numbers are the lists'
//    heads.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/huge_allocator.h"
#include "eviction/shadow_guard.h"
#include "eviction/structure/name_table.h"
#include "eviction/structure/node.h"

namespace cachalot::eviction {

// @threads one at a time
// @cost    O(1) each; 64 bytes a block (one cache line) and 11 to 21 of names
class SeenBlocks {
 public:
  using Seen = std::uint32_t;
  static constexpr Seen kNone = 0xffffffffu;

  struct alignas(64) Record {
    std::uint64_t name = 0;
    std::uint64_t used_at = 0;                   // 0: not yet
    Seen parent = kNone;                         // as long as the block is resident or in a shadow
    NodeId node = kNoNode;                       // kNoNode: not resident
    std::array<Seen, 2> older = {kNone, kNone};  // by shadow
    std::array<Seen, 2> newer = {kNone, kNone};
    std::array<std::uint32_t, 2> children = {0, 0};  // in each shadow
    std::uint8_t turn = 0;                           // of the request that stored it first
    std::uint8_t cls = 0;                            // of its last use
    std::uint8_t shadows = 0;                        // bit s: is in shadow s
    bool is_named : 1 = false;
    bool is_sample : 1 = false;
    bool is_ghost : 1 = false;

    bool is_resident() const { return node != kNoNode; }
    bool is_in(Shadow s) const { return (shadows >> static_cast<int>(s) & 1) != 0; }
  };
  static_assert(sizeof(Record) == 64);

  // `heads` empty lists, of which each may be used for one shadow's links.
  explicit SeenBlocks(std::uint32_t heads);

  Record& operator[](Seen e) { return records_[e]; }
  const Record& operator[](Seen e) const { return records_[e]; }

  Seen find(std::uint64_t name) const {
    return names_.find(name, [&](Seen e) { return records_[e].name == name; });
  }
  // No block of this name may be there. References to records end here.
  Seen add(std::uint64_t name, bool is_named);
  // Soon to be unlinked, or removed.
  void prefetch(Seen e) const { __builtin_prefetch(&records_[e], 1); }
  void prefetch_removal(Seen e) const { names_.prefetch(records_[e].name); }
  // It stands in no list any more.
  void remove(Seen e);

  std::uint64_t size() const { return used_ - heads_ - free_.size(); }
  // Calls visit(Seen, const Record&) for each block.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (Seen e = heads_; e < used_; ++e) {
      if (!is_free(e)) visit(e, records_[e]);
    }
  }

  bool is_listed(Seen e, Shadow s) const { return records_[e].older[index(s)] != kNone; }
  Seen newer(Seen e, Shadow s) const { return records_[e].newer[index(s)]; }
  // Puts `e` one place on the older side of `place`, which may be a list's head: its newest end.
  void link(Seen e, Seen place, Shadow s) {
    const std::size_t i = index(s);
    const Seen older = records_[place].older[i];
    records_[e].older[i] = older;
    records_[e].newer[i] = place;
    records_[older].newer[i] = e;
    records_[place].older[i] = e;
  }
  void unlink(Seen e, Shadow s) {
    const std::size_t i = index(s);
    Record& r = records_[e];
    records_[r.older[i]].newer[i] = r.newer[i];
    records_[r.newer[i]].older[i] = r.older[i];
    r.older[i] = r.newer[i] = kNone;
  }
  // What stands in the list of `from` goes to the newest end of that of `to`.
  void append(Seen to, Seen from, Shadow s);

  // Checks 1, and that the lists' links agree. O(blocks).
  bool is_valid() const;

 private:
  // A free record is its own parent.
  bool is_free(Seen e) const { return records_[e].parent == e; }

  std::uint32_t heads_;
  std::uint32_t used_;
  base::HugeVector<Record> records_;
  NameTable names_;
  std::vector<Seen> free_;
};

}  // namespace cachalot::eviction
