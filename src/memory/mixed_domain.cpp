#include "memory/mixed_domain.h"

namespace cachalot::memory {

bool MixedDomain::is_coherent(const void* at, std::size_t bytes) const {
  const std::byte* const begin = static_cast<const std::byte*>(at);
  for (const Range& range : coherent_memory_) {
    if (begin >= range.begin && begin + bytes <= range.end) return true;
  }
  return false;
}

template <class IsCoherent, class F>
void MixedDomain::for_each_stretch(std::size_t count, IsCoherent&& is_coherent, F&& f) const {
  for (std::size_t first = 0; first < count;) {
    const bool coherent = is_coherent(first);
    std::size_t last = first + 1;
    while (last < count && is_coherent(last) == coherent) ++last;
    f(coherent ? *coherent_ : *noncoherent_, first, last - first);
    first = last;
  }
}

void MixedDomain::write_lines(void* to, const Line* lines, std::size_t count) {
  part_of(to, count * kLineBytes).write_lines(to, lines, count);
}

void MixedDomain::read_lines(const void* from, std::size_t count, Line* lines) {
  part_of(from, count * kLineBytes).read_lines(from, count, lines);
}

void MixedDomain::gather_lines(const void* const* from, std::size_t count, Line* lines) {
  for_each_stretch(
      count, [&](std::size_t i) { return is_coherent(from[i], kLineBytes); },
      [&](Domain& part, std::size_t first, std::size_t n) {
        part.gather_lines(from + first, n, lines + first);
      });
}

void MixedDomain::write_bulk(void* to, const void* from, std::size_t bytes, FusedHash* hash) {
  part_of(to, bytes).write_bulk(to, from, bytes, hash);
}

void MixedDomain::read_bulk(void* to, const void* from, std::size_t bytes, FusedHash* hash) {
  part_of(from, bytes).read_bulk(to, from, bytes, hash);
}

void MixedDomain::write_runs(const CopyRun* runs, std::size_t count, FusedHash* hash) {
  for_each_stretch(
      count, [&](std::size_t i) { return is_coherent(runs[i].to, runs[i].bytes); },
      [&](Domain& part, std::size_t first, std::size_t n) {
        part.write_runs(runs + first, n, hash);
      });
}

// Stripes of a block lie on the devices in turn: what is not coherent is collected, so that one pair of fences does for
// many of them.
void MixedDomain::prepare_read(const Extent* extents, std::size_t count) {
  constexpr std::size_t kBatch = 64;
  Extent batch[kBatch];
  std::size_t used = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (is_coherent(extents[i].at, extents[i].bytes)) {
      coherent_->prepare_read(extents + i, 1);
      continue;
    }
    batch[used++] = extents[i];
    if (used < kBatch) continue;
    noncoherent_->prepare_read(batch, used);
    used = 0;
  }
  if (used != 0) noncoherent_->prepare_read(batch, used);
}

void MixedDomain::read_prepared(const CopyRun* runs, std::size_t count, FusedHash* hash) {
  for_each_stretch(
      count, [&](std::size_t i) { return is_coherent(runs[i].from, runs[i].bytes); },
      [&](Domain& part, std::size_t first, std::size_t n) {
        part.read_prepared(runs + first, n, hash);
      });
}

void MixedDomain::order() {
  noncoherent_->complete();
  coherent_->order();
}

void MixedDomain::complete() {
  noncoherent_->complete();
  coherent_->complete();
}

}  // namespace cachalot::memory
