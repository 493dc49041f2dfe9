#include "vtensor/mapped_planes.h"

#include <algorithm>
#include <cinttypes>

namespace cachalot::vtensor {

std::uint64_t MappedPlanes::tokens() const {
  std::uint64_t least = layout_.max_tokens();
  for (std::uint64_t p = 0; p < planes_.size(); ++p) {
    least = std::min(least, layout_.tokens_in(p, planes_[p].accessible));
  }
  return least;
}

std::uint64_t MappedPlanes::chunks() const {
  std::uint64_t sum = 0;
  for (const Plane& plane : planes_) sum += plane.chunks.size();
  return sum;
}

bool MappedPlanes::has_read_only() const {
  return std::any_of(planes_.begin(), planes_.end(),
                     [](const Plane& plane) { return plane.read_only != 0; });
}

std::vector<std::uint64_t> MappedPlanes::missing(std::uint64_t tokens) const {
  std::vector<std::uint64_t> counts(planes_.size());
  for (std::uint64_t p = 0; p < planes_.size(); ++p) {
    const std::uint64_t need = layout_.chunks(p, tokens), have = planes_[p].chunks.size();
    counts[p] = need > have ? need - have : 0;
  }
  return counts;
}

Status MappedPlanes::set_access(std::uint64_t p, std::uint64_t begin, std::uint64_t end,
                                device_memory::Access access) {
  return backend_.set_access(place(p, begin), (end - begin) * layout_.chunk_bytes(), access);
}

Status MappedPlanes::append_to(std::uint64_t p, std::span<const Chunk> more,
                               device_memory::Access access) {
  Plane& plane = planes_[p];
  const std::uint64_t first = plane.chunks.size();
  for (const Chunk& chunk : more) {
    CACHALOT_TRY(backend_.map(place(p, plane.chunks.size()), chunk.handle));
    plane.chunks.push_back(chunk);
  }
  if (more.empty()) return {};
  return set_access(p, first, plane.chunks.size(), access);
}

Status MappedPlanes::append(const PlaneChunks& more, device_memory::Access access,
                            std::vector<Chunk>& unused) {
  std::vector<std::uint64_t> before(planes_.size());
  for (std::uint64_t p = 0; p < planes_.size(); ++p) before[p] = planes_[p].chunks.size();
  Status done;
  if (is_damaged_) {
    done = Error::make(Code::kInternal,
                       "range 0x%" PRIx64 ": the device did not unmap all of it before", base_);
  }
  std::uint64_t begin = 0, mapped = 0;
  for (std::uint64_t p = 0; p < planes_.size() && done; begin += more.counts[p], ++p) {
    done = append_to(p, std::span(more.chunks).subspan(begin, more.counts[p]), access);
    mapped += planes_[p].chunks.size() - before[p];
  }
  if (done) {
    for (Plane& plane : planes_) {
      plane.accessible = plane.chunks.size();
      if (access == device_memory::Access::kRead) plane.read_only = plane.chunks.size();
    }
    return {};
  }
  for (std::uint64_t p = 0; p < planes_.size(); ++p) {
    static_cast<void>(cut(p, before[p], unused));  // invariant 2; what counts is the first error
  }
  unused.insert(unused.end(), more.chunks.begin() + static_cast<std::ptrdiff_t>(mapped),
                more.chunks.end());
  return done;
}

Status MappedPlanes::cut(std::uint64_t p, std::uint64_t chunks, std::vector<Chunk>& freed) {
  Plane& plane = planes_[p];
  if (plane.chunks.size() <= chunks) return {};
  plane.accessible = std::min(plane.accessible, chunks);
  const std::uint64_t bytes = (plane.chunks.size() - chunks) * layout_.chunk_bytes();
  const Status done = backend_.unmap(place(p, chunks), bytes);
  if (!done) {
    is_damaged_ = true;
    return done;
  }
  const auto first = plane.chunks.begin() + static_cast<std::ptrdiff_t>(chunks);
  freed.insert(freed.end(), first, plane.chunks.end());
  plane.chunks.erase(first, plane.chunks.end());
  plane.read_only = std::min(plane.read_only, chunks);
  return {};
}

Status MappedPlanes::truncate(std::uint64_t tokens, std::vector<Chunk>& freed) {
  Status result;
  for (std::uint64_t p = 0; p < planes_.size(); ++p) {
    const Status done = cut(p, layout_.chunks(p, tokens), freed);
    if (!done && result) result = done;
  }
  if (result && tokens == 0) is_damaged_ = false;
  return result;
}

Status MappedPlanes::protect(std::uint64_t tokens) {
  std::vector<std::uint64_t> before;
  for (std::uint64_t p = 0; p < planes_.size(); ++p) {
    Plane& plane = planes_[p];
    before.push_back(plane.read_only);
    const std::uint64_t full = layout_.full_chunks(p, tokens);
    if (full <= plane.read_only) continue;
    const Status done = set_access(p, plane.read_only, full, device_memory::Access::kRead);
    plane.read_only = full;
    if (done) continue;
    for (std::uint64_t each = 0; each <= p; ++each) make_writable(each, before[each]);
    return done;
  }
  return {};
}

void MappedPlanes::unprotect(std::uint64_t tokens) {
  for (std::uint64_t p = 0; p < planes_.size(); ++p)
    make_writable(p, layout_.full_chunks(p, tokens));
}

void MappedPlanes::make_writable(std::uint64_t p, std::uint64_t begin) {
  Plane& plane = planes_[p];
  if (plane.read_only <= begin) return;
  if (set_access(p, begin, plane.read_only, device_memory::Access::kReadWrite)) {
    plane.read_only = begin;
    return;
  }
  is_damaged_ = true;  // what access there is now is not known
  plane.accessible = std::min(plane.accessible, begin);
}

}  // namespace cachalot::vtensor
