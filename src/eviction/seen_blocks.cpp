#include "eviction/seen_blocks.h"

namespace cachalot::eviction {

SeenBlocks::SeenBlocks(std::uint32_t heads) : heads_(heads), used_(heads), records_(heads) {
  for (Seen e = 0; e < heads; ++e) records_[e].older = records_[e].newer = {e, e};
}

SeenBlocks::Seen SeenBlocks::add(std::uint64_t name, bool is_named) {
  Seen e = used_;
  if (!free_.empty()) {
    e = free_.back();
    free_.pop_back();
  } else if (++used_ > records_.size()) {
    records_.resize(records_.size() + records_.size() / 2 + 64);
  }
  Record& r = records_[e] = Record{};
  if (!is_named) return e;
  names_.add(name, e);
  r.name = name;
  r.is_named = true;
  return e;
}

void SeenBlocks::remove(Seen e) {
  Record& r = records_[e];
  if (r.is_named) names_.remove(r.name, e);
  r = Record{.parent = e};
  free_.push_back(e);
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

}  // namespace cachalot::eviction
