#include "index/eviction/seen_blocks.h"

namespace cachalot::index {

SeenBlocks::SeenBlocks(std::uint32_t heads)
    : heads_(heads), used_(heads), records_(heads), table_(1024, kNone) {
  for (Seen e = 0; e < heads; ++e) records_[e].older = records_[e].newer = {e, e};
}

SeenBlocks::Seen SeenBlocks::add(std::uint64_t name, bool is_named) {
  Seen e = used_;
  if (!free_.empty()) {
    e = free_.back();
    free_.pop_back();
  } else if (++used_ > records_.size()) {
    records_.resize(records_.size() * 2);
  }
  Record& r = records_[e] = Record{};
  if (!is_named) return e;
  if (size() > table_.size()) grow_table();
  Seen& head = table_[place(name, table_.size())];
  r.name = name;
  r.is_named = true;
  r.chain = std::exchange(head, e);
  return e;
}

void SeenBlocks::remove(Seen e) {
  Record& r = records_[e];
  if (r.is_named) {
    Seen* at = &table_[place(r.name, table_.size())];
    while (*at != e) at = &records_[*at].chain;
    *at = r.chain;
  }
  r = Record{.parent = e};
  free_.push_back(e);
}

void SeenBlocks::grow_table() {
  base::HugeVector<Seen> table(table_.size() * 2, kNone);
  for (Seen e : table_) {
    while (e != kNone) {
      Seen& head = table[place(records_[e].name, table.size())];
      e = std::exchange(records_[e].chain, std::exchange(head, e));
    }
  }
  table_.swap(table);
}

void SeenBlocks::append(Seen to, Seen from, Shadow s) {
  const std::size_t i = index(s);
  const Seen first = records_[from].newer[i];
  if (first == from) return;
  const Seen last = records_[from].older[i];
  const Seen before = records_[to].older[i];
  records_[before].newer[i] = first;
  records_[first].older[i] = before;
  records_[last].newer[i] = to;
  records_[to].older[i] = last;
  records_[from].older[i] = records_[from].newer[i] = from;
}

bool SeenBlocks::is_valid() const {
  std::uint64_t count = 0;
  bool is_valid = true;
  for_each([&](Seen e, const Record& r) {
    ++count;
    is_valid = is_valid && (!r.is_named || find(r.name) == e);
  });
  for (Seen e = 0; e < used_; ++e) {
    for (std::size_t i = 0; i < kShadows.size() && !is_free(e); ++i) {
      const Record& r = records_[e];
      if ((r.older[i] == kNone) != (r.newer[i] == kNone)) return false;
      if (r.older[i] != kNone && records_[r.older[i]].newer[i] != e) return false;
      if (r.newer[i] != kNone && records_[r.newer[i]].older[i] != e) return false;
    }
  }
  return is_valid && count == size();
}

}  // namespace cachalot::index
