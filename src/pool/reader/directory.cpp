#include "pool/reader/directory.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

#include "pool/expansion/expansion_memory.h"

namespace cachalot::pool {

using memory::Line;

// A keeper that has finished its takeover has made all older epochs void, for good: also while a keeper that looked at the
// lines before rules by its announcement, which still has the min_epoch of then. No lock keeps another machine from that.
KeeperView DirectoryReader::ruling(const Line* lines) const {
  KeeperView view;
  std::uint32_t min_epoch = 0;
  for (std::uint32_t keeper = 0; keeper < kKeeperSlots; ++keeper) {
    Line line = lines[keeper];
    const std::uint64_t offset = access_->layout.keeper_line(keeper);
    // A slot that was never used is blank for good and is not worth a second look.
    if (!access_->region.checks(line, offset)) {
      const bool is_blank = std::all_of(std::begin(line.words), std::end(line.words),
                                        [](std::uint64_t word) { return word == 0; });
      if (is_blank || !access_->region.read(offset, line)) continue;
    }
    const auto said = memory::as<KeeperLine>(line);
    if (said.epoch > view.epoch) view = {said.epoch, said.min_epoch, keeper, said.flags};
    if (said.min_epoch <= said.epoch) min_epoch = std::max(min_epoch, said.min_epoch);
  }
  view.min_epoch = std::max(view.min_epoch, min_epoch);
  return view;
}

KeeperView DirectoryReader::read_keepers() const {
  Line lines[kKeeperSlots];
  const void* addresses[kKeeperSlots];
  for (std::uint32_t k = 0; k < kKeeperSlots; ++k) {
    addresses[k] = access_->region.at(access_->layout.keeper_line(k));
  }
  access_->domain().gather_lines(addresses, kKeeperSlots, lines);
  return ruling(lines);
}

namespace {

// One field of an Entry, from where it lies: a copy of the whole goes by way of the stack.
template <class T>
T field(const Line& line, std::size_t offset) {
  T value;
  std::memcpy(&value, reinterpret_cast<const char*>(&line) + offset, sizeof value);
  return value;
}

}  // namespace

// Without branches: where an entry stands is a coin toss to a branch predictor, and a wrong guess
// costs more than all of this.
bool DirectoryReader::holds(const Line& line, const BlockHash& hash, std::uint32_t namespace_id,
                            const KeeperView& view) const {
  const auto u32_at = [&](std::size_t at) { return field<std::uint32_t>(line, at); };
  const bool is_the_one = (line.words[0] == hash.low) & (line.words[1] == hash.high) &
                          (field<std::uint16_t>(line, offsetof(Entry, state)) == kEntryLive) &
                          (u32_at(offsetof(Entry, namespace_id)) == namespace_id) &
                          view.admits(u32_at(offsetof(Entry, epoch)));
  // What comes from the pool is checked before it is used as an index or a size.
  return is_the_one & (u32_at(offsetof(Entry, block)) < access_->geometry.blocks) &
         (u32_at(offsetof(Entry, length)) - std::uint64_t{1} < access_->geometry.block_bytes);
}

// A batch of a lookup, worked off while its lines come in: all home lines, and then the lines that
// their spill bits lead to. It ends at the first hash that is absent, or, with `is_published`, says of
// each hash whether it is there.
class DirectoryReader::Batch {
 public:
  Batch(const DirectoryReader& reader, std::span<const BlockHash> hashes,
        std::uint32_t namespace_id, std::span<Found> found, bool* is_published = nullptr)
      : reader_(reader),
        access_(*reader.access_),
        hashes_(hashes),
        namespace_id_(namespace_id),
        found_(found),
        is_published_(is_published),
        end_(hashes.size()) {
    assume_all_published();
  }

  // @param read_keepers  `view` is read first, in the same gather
  // @return how many leading hashes were found, or are told of in `is_published`; `ended` says that
  //         the next one is absent
  //
  // Inlined into both callers, with gather_homes(): as a function of its own it reads all it works on from
  // memory again for each hash. Measured on an EPYC: 128 hashes of a warm directory in 1.6 us, not 3.0.
  [[gnu::always_inline]] std::size_t run(KeeperView& view, bool read_keepers, bool& ended) {
    view_ = view;
    keepers_ = read_keepers ? kKeeperSlots : 0;
    for (std::uint32_t k = 0; k < keepers_; ++k) {
      addresses_[k] = access_.region.at(access_.layout.keeper_line(k));
    }
    gather_homes();
    view = view_;
    if (torn_ != 0) look_again();
    look_elsewhere();
    ended = is_absent_;
    return end_;
  }

 private:
  // Hashes between one that is hinted at and one that is looked at: about as many misses as a core
  // has in flight. More, and it stands still instead of looking (measured: docs/design/pool.md).
  static constexpr std::size_t kAhead = 16;
  static constexpr std::size_t kPiece = 8;

  struct Place {  // where a hash that is not at home may stand
    std::uint32_t index, slot;
  };

  const void* address_of(std::uint32_t slot) const {
    return access_.region.at(access_.layout.entry(slot));
  }

  // Where hints help, even the finding of the places is hidden behind the lines on their way.
  [[gnu::always_inline]] void gather_homes() {
    memory::Domain& domain = access_.domain();
    const std::size_t count = keepers_ + hashes_.size();
    if (!domain.hints_help()) {
      find_homes(keepers_, count);
      domain.gather_lines(addresses_, count, lines_);
      return visit(0, count);
    }
    for (std::size_t k = 0; k < keepers_; ++k) domain.hint(addresses_[k]);
    find_homes(keepers_, std::min(kAhead, count));
    for (std::size_t first = 0; first < count && !is_absent_; first += kPiece) {
      const std::size_t last = std::min(first + kPiece, count);
      find_homes(first + kAhead, std::min(last + kAhead, count));
      domain.gather_lines(addresses_ + first, last - first, lines_ + first);
      visit(first, last);
    }
  }

  void find_homes(std::size_t first, std::size_t last) {
    const std::uint32_t slots = access_.geometry.directory_slots;
    for (std::size_t at = first; at < last; ++at) {
      const std::uint32_t slot = home_of(hashes_[at - keepers_], namespace_id_, slots).slot;
      found_[at - keepers_].slot = slot;
      addresses_[at] = address_of(slot);
      access_.domain().hint(addresses_[at]);
    }
  }

  void visit(std::size_t first, std::size_t last) {
    if (first < keepers_) {
      view_ = reader_.ruling(lines_);
      first = keepers_;
    }
    for (; first < last && !is_absent_; first += kPiece)
      look_at_homes(first, std::min(first + kPiece, last));
  }

  // Lines [first, last), a piece: which hashes are at home? Without branches: that is a coin toss to a branch
  // predictor, and a wrong guess costs more than all of this.
  void look_at_homes(std::size_t first, std::size_t last) {
    const KeeperView view = view_;
    const BlockHash* const hashes = hashes_.data() - keepers_;
    Found* const found = found_.data() - keepers_;
    std::size_t strays[kPiece + 1];  // one more is written than counted
    std::size_t count = 0, torn = 0;
    for (std::size_t at = first; at < last; ++at) {
      const Line& line = lines_[at];
      const bool is_good = access_.region.checks(line, access_.layout.entry(found[at].slot));
      const bool is_home = reader_.holds(line, hashes[at], namespace_id_, view);
      found[at].entry = memory::as<Entry>(line);
      strays[count] = at - keepers_;
      count += !(is_good & is_home);
      torn += !is_good;
    }
    torn_ += torn;
    for (std::size_t s = 0; s < count && !is_absent_ && strays[s] < end_; ++s) follow(strays[s]);
  }

  // Hash i is not at home: notes where it may stand.
  void follow(std::size_t i) {
    std::uint64_t spill = found_[i].entry.spill;
    if (places_ + static_cast<std::size_t>(std::popcount(spill)) > kBatch) {
      end_ = i;  // the rest goes into another batch: there is at least one hash before it
      return;
    }
    if (spill == 0) note_absent(i);
    const std::uint32_t bucket = found_[i].slot / kBucketSlots * kBucketSlots;
    for (; spill != 0; spill &= spill - 1) {
      const std::uint32_t slot = bucket + static_cast<std::uint32_t>(std::countr_zero(spill));
      place_[places_++] = {static_cast<std::uint32_t>(i), slot};
      access_.domain().hint(address_of(slot));
    }
  }

  void note_absent(std::size_t i) {
    if (is_published_ != nullptr) {
      is_published_[i] = false;
      return;
    }
    end_ = i;
    is_absent_ = true;
  }

  void assume_all_published() {
    if (is_published_ != nullptr) std::fill_n(is_published_, hashes_.size(), true);
  }

  // Some home lines did not check: reads them once more, and all is looked at anew. Rare.
  void look_again() {
    const std::size_t count = keepers_ + hashes_.size();
    find_homes(keepers_, count);
    access_.domain().gather_lines(addresses_ + keepers_, hashes_.size(), lines_ + keepers_);
    for (std::size_t i = 0; i < hashes_.size(); ++i) {
      Line& line = lines_[keepers_ + i];
      const std::uint64_t offset = access_.layout.entry(found_[i].slot);
      if (access_.region.checks(line, offset) || access_.region.read(offset, line)) continue;
      line = Line{};  // it never checks: no entry
    }
    places_ = 0;
    end_ = hashes_.size();
    is_absent_ = false;
    assume_all_published();
    visit(keepers_, count);
  }

  void look_elsewhere() {
    while (places_ != 0 && place_[places_ - 1].index >= end_) --places_;
    if (places_ == 0) return;
    for (std::size_t p = 0; p < places_; ++p) addresses_[p] = address_of(place_[p].slot);
    access_.domain().gather_lines(addresses_, places_, lines_);
    for (std::size_t p = 0; p < places_;) {
      const std::uint32_t i = place_[p].index;
      bool is_found = false;
      for (; p < places_ && place_[p].index == i; ++p) {
        if (is_found || !stands_at(p)) continue;
        found_[i] = {place_[p].slot, memory::as<Entry>(lines_[p])};
        is_found = true;
      }
      if (is_found) continue;
      note_absent(i);
      if (is_published_ == nullptr) return;
    }
  }

  bool stands_at(std::size_t p) {
    const BlockHash& hash = hashes_[place_[p].index];
    Line& line = lines_[p];
    if (!reader_.holds(line, hash, namespace_id_, view_)) return false;
    const std::uint64_t offset = access_.layout.entry(place_[p].slot);
    if (access_.region.checks(line, offset)) return true;
    return access_.region.read(offset, line) && reader_.holds(line, hash, namespace_id_, view_);
  }

  const DirectoryReader& reader_;
  const Access& access_;
  const std::span<const BlockHash> hashes_;
  const std::uint32_t namespace_id_;
  const std::span<Found> found_;
  bool* const is_published_;  // null: the batch ends at the first hash that is absent
  KeeperView view_;
  std::size_t keepers_ = 0, places_ = 0, torn_ = 0;
  std::size_t end_;         // hashes from here on are not in question any more…
  bool is_absent_ = false;  // … because that one is absent
  const void* addresses_[kBatch + kKeeperSlots];
  Place place_[kBatch];
  Line lines_[kBatch + kKeeperSlots];
};

std::size_t DirectoryReader::lookup(std::span<const BlockHash> hashes, std::uint32_t namespace_id,
                                    KeeperView& view, std::span<Found> found) const {
  std::size_t done = 0;
  bool ended = hashes.empty();
  if (ended) view = read_keepers();
  while (!ended && done < hashes.size()) {
    const std::size_t n = std::min(hashes.size() - done, kBatch);
    Batch batch(*this, hashes.subspan(done, n), namespace_id, found.subspan(done));
    done += batch.run(view, done == 0, ended);
  }
  if (access_->expansions != nullptr) done = accessible(view, found.first(done));
  return done;
}

std::uint32_t DirectoryReader::blocks() const {
  if (!access_->geometry.growable) return access_->geometry.blocks;
  const KeeperView view = read_keepers();
  return read_blocks(*access_, view.keeper, view.epoch);
}

// A block that was published on an added device was granted after the keeper's table named the device, and the table is
// read after the entry. So a block below the limit lies where this process has mapped it.
std::size_t DirectoryReader::accessible(const KeeperView& view,
                                        std::span<const Found> found) const {
  const auto is_beyond = [](std::uint32_t blocks) {
    return [blocks](const Found& one) { return one.entry.block >= blocks; };
  };
  if (std::none_of(found.begin(), found.end(), is_beyond(access_->layout.first_blocks)))
    return found.size();
  const std::uint32_t limit = access_->expansions->follow(*access_, view.keeper, view.epoch);
  const auto end = std::find_if(found.begin(), found.end(), is_beyond(limit));
  return static_cast<std::size_t>(end - found.begin());
}

void DirectoryReader::find_each(std::span<const BlockHash> hashes, std::uint32_t namespace_id,
                                std::span<bool> is_published) const {
  Found found[kBatch];
  for (std::size_t done = 0; done < hashes.size();) {
    const std::size_t n = std::min(hashes.size() - done, kBatch);
    KeeperView view;
    bool ended = false;
    Batch batch(*this, hashes.subspan(done, n), namespace_id, found, is_published.data() + done);
    done += batch.run(view, true, ended);
  }
}

}  // namespace cachalot::pool
