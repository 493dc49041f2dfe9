#include "testing/memory/write_buffer.h"

#include <bit>
#include <utility>

#include "base/check.h"

namespace cachalot::memory {
namespace {

void put_words(std::uint8_t mask, const Line& from, Line& to) {
  for (unsigned word = 0; word < 8; ++word) {
    if (mask >> word & 1) to.words[word] = from.words[word];
  }
}

}  // namespace

WriteBuffer::Entries& WriteBuffer::open(std::size_t core) {
  if (core >= open_.size()) open_.resize(core + 1);
  return open_[core];
}

void WriteBuffer::put(std::size_t core, std::uint64_t line, const Line& value) {
  Entries& own = open(core);
  if (holds(line)) {
    // Combined with what the core has open there: the old words are never seen, which is allowed.
    for (Entry& entry : own) {
      if (entry.line != line) continue;
      entry = {line, stamp_, 0xff, value};
      return;
    }
  }
  own.push_back({line, stamp_, 0xff, value});
  ++pending()[line];
  ++size_;
  ++open_size_;
}

std::uint64_t WriteBuffer::order(std::size_t core) {
  Entries& own = open(core);
  if (own.empty()) return stamp_;
  open_size_ -= own.size();
  groups_.push_back(std::exchange(own, {}));
  return ++stamp_;
}

// A random open entry of a random core; open_size_ is not 0.
WriteBuffer::Entry* WriteBuffer::random_open(base::Rng& rng, Entries*& from) {
  std::size_t nth = rng.below(open_size_);
  for (Entries& entries : open_) {
    if (nth < entries.size()) {
      from = &entries;
      return &entries[nth];
    }
    nth -= entries.size();
  }
  CACHALOT_CHECK(false && "open_size_ counts the open entries");
  return nullptr;
}

bool WriteBuffer::drain_any(base::Rng& rng, double whole_line, Drained& out) {
  if (size_ == 0) return false;
  const std::size_t candidates = open_size_ + (groups_.empty() ? 0 : groups_.front().size());
  if (rng.below(candidates) < open_size_) {
    Entries* from = nullptr;
    Entry* entry = random_open(rng, from);
    if (entry->stamp <= drained()) {
      const std::size_t before = from->size();
      drain(*from, static_cast<std::size_t>(entry - from->data()), rng, whole_line, out);
      open_size_ -= before - from->size();
      return true;
    }
  }
  // An open line waits for a group, so there is one.
  drain_first_group(rng, whole_line, out);
  return true;
}

bool WriteBuffer::drain_through(std::uint64_t stamp, base::Rng& rng, double whole_line,
                                Drained& out) {
  if (stamp <= drained()) return false;
  drain_first_group(rng, whole_line, out);
  return true;
}

void WriteBuffer::drain_first_group(base::Rng& rng, double whole_line, Drained& out) {
  CACHALOT_CHECK(!groups_.empty());
  Entries& first = groups_.front();
  drain(first, rng.below(first.size()), rng, whole_line, out);
  if (first.empty()) groups_.pop_front();
}

void WriteBuffer::drain(Entries& from, std::size_t index, base::Rng& rng, double whole_line,
                        Drained& out) {
  Entry& entry = from[index];
  out.line = entry.line;
  out.value = entry.value;
  if (rng.chance(whole_line)) {
    out.mask = entry.mask;
  } else {
    std::uint8_t left = entry.mask;
    for (std::uint64_t skip = rng.below(std::popcount(left)); skip > 0; --skip) {
      left = static_cast<std::uint8_t>(left & (left - 1));
    }
    out.mask = static_cast<std::uint8_t>(left & -left);
  }
  entry.mask = static_cast<std::uint8_t>(entry.mask & ~out.mask);
  if (entry.mask != 0) return;
  --pending()[entry.line];
  --size_;
  if (&entry != &from.back()) entry = from.back();
  from.pop_back();
}

void WriteBuffer::overlay(std::size_t core, std::uint64_t line, Line& value) const {
  for (const Entries& group : groups_) {
    for (const Entry& entry : group) {
      if (entry.line == line) put_words(entry.mask, entry.value, value);
    }
  }
  if (core >= open_.size()) return;
  for (const Entry& entry : open_[core]) {
    if (entry.line == line) put_words(entry.mask, entry.value, value);
  }
}

}  // namespace cachalot::memory
