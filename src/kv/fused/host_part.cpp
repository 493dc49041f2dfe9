#include "kv/fused/host_part.h"

#include <algorithm>

#include "kv/extent_cursor.h"
#include "kv/walk.h"

namespace cachalot::kv {
namespace {

using memory::kLineBytes;

// Calls f(begin, end) for each stretch of whole lines that the fragments of a block lie in, each line once.
template <class F>
void for_each_stretch(const CopyPlan& plan, const BlockCopy& block, F&& f) {
  if (plan.is_whole() && block.tokens.empty())
    return f(std::uint64_t{0}, plan.padded_block_bytes());
  std::uint64_t begin = 0, end = 0;
  for_each_fragment(plan.arithmetic(), block.tokens, [&](const Fragment& piece) {
    const std::uint64_t first = piece.pool_offset / kLineBytes * kLineBytes;
    const std::uint64_t last =
        (piece.pool_offset + piece.bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
    if (first > end || end == 0) {
      if (end != 0) f(begin, end);
      begin = first;
    }
    end = std::max(end, last);
  });
  if (end != 0) f(begin, end);
}

// The pieces of the pool that a stretch of a block is in.
template <class F>
void for_each_extent(ExtentCursor& cursor, std::uint64_t begin, std::uint64_t end, F&& f) {
  while (begin < end) {
    const memory::Extent room = cursor.find(begin);
    const std::uint64_t bytes = std::min(room.bytes, end - begin);
    f(memory::Extent{room.at, bytes});
    begin += bytes;
  }
}

}  // namespace

HostPart::HostPart(const CopyPlan& plan, std::span<const BlockCopy> blocks) {
  for (const BlockCopy& block : blocks) {
    const std::size_t first = lines_.size();
    ExtentCursor cursor(block.pool);
    for_each_stretch(plan, block, [&](std::uint64_t begin, std::uint64_t end) {
      for_each_extent(cursor, begin, end,
                      [&](const memory::Extent& extent) { lines_.push_back(extent); });
    });
    if (block.hash != nullptr) hashed_.push_back({block.hash, first, lines_.size()});
  }
}

// Pieces in one line follow each other, mostly.
HostPart::HostPart(std::span<const RowPiece> pieces) {
  const std::byte* end = nullptr;  // of the piece before
  for (const RowPiece& piece : pieces) {
    const std::uint64_t within = reinterpret_cast<std::uintptr_t>(piece.pool.at) % kLineBytes;
    memory::Extent lines{piece.pool.at - within,
                         (within + piece.pool.bytes + kLineBytes - 1) / kLineBytes * kLineBytes};
    if (lines.at + kLineBytes == end) lines = {lines.at + kLineBytes, lines.bytes - kLineBytes};
    if (lines.bytes == 0) continue;
    end = lines.at + lines.bytes;
    lines_.push_back(lines);
  }
}

void HostPart::before_scatter(memory::Domain& domain) const {
  if (domain.kind() == memory::DomainKind::kCoherent) return;
  domain.prepare_read(lines_.data(), lines_.size());
}

void HostPart::after_gather(memory::Domain& domain) const {
  if (domain.kind() != memory::DomainKind::kCoherent) {
    domain.prepare_read(lines_.data(), lines_.size());
  }
  domain.order();
}

void HostPart::hash() const {
  for (const Hashed& hashed : hashed_) {
    for (std::size_t i = hashed.first; i < hashed.last; ++i) {
      hashed.hash->update(lines_[i].at, lines_[i].bytes);
    }
  }
}

}  // namespace cachalot::kv
