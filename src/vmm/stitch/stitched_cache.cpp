#include "vmm/stitch/stitched_cache.h"

#include <algorithm>
#include <cinttypes>
#include <memory>

#include "base/check.h"

namespace cachalot::vmm {

StitchedCache::~StitchedCache() {
  for (const Dropped& dropped : dropped_) {
    events_.drop(dropped.event);
    unmap(dropped.block);
  }
  for (StitchedBlock* block : idle_) unmap(block);
  for (StitchedBlock* block : in_use_) unmap(block);
}

bool StitchedCache::is_free(const StitchedBlock::Piece& piece, std::uint64_t bytes,
                            Stream stream) const {
  const Block* const block = memory_.heap().find(piece.segment, piece.address);
  return block->state == BlockState::kFree && block->stream == stream &&
         block->end() >= piece.address + bytes;
}

bool StitchedCache::is_available(StitchedBlock* block, std::uint64_t bytes, Stream stream) const {
  const std::vector<StitchedBlock::Piece>& pieces = block->pieces;
  // What was in the way last time most likely still is. Of a piece that may be needed in part only,
  // the first byte is looked at.
  if (bytes == block->bytes && !is_free(pieces[block->blocker], 1, stream)) return false;
  for (std::size_t i = 0; i < pieces.size() && bytes != 0; ++i) {
    const std::uint64_t needed = std::min(bytes, pieces[i].bytes);
    if (!is_free(pieces[i], needed, stream)) {
      block->blocker = i;
      return false;
    }
    bytes -= needed;
  }
  return true;
}

StitchedBlock* StitchedCache::find(std::uint64_t bytes, Stream stream, bool or_larger) {
  int looks = 0;
  for (auto each = by_size_.lower_bound(AtLeast{bytes}); each != by_size_.end(); ++each) {
    if (!or_larger && (*each)->bytes != bytes) break;
    if (is_available(*each, bytes, stream)) return *each;
    if (++looks == kMaxLooks) break;
  }
  return nullptr;
}

Status StitchedCache::map_pieces(const StitchedBlock& block, std::uint64_t& mapped_bytes) {
  const std::uint64_t chunk_bytes = memory_.chunk_bytes();
  for (const StitchedBlock::Piece& piece : block.pieces) {
    const std::uint64_t skip = (piece.address - piece.segment->base) % chunk_bytes;
    const std::uint64_t chunks = (skip + piece.bytes + chunk_bytes - 1) / chunk_bytes;
    for (std::uint64_t i = 0; i < chunks; ++i) {
      const Handle chunk = memory_.chunk(piece.segment, piece.address + i * chunk_bytes - (i == 0 ? 0 : skip));
      CACHALOT_TRY(backend_.map(block.range + mapped_bytes, chunk));
      mapped_bytes += chunk_bytes;
    }
  }
  return backend_.set_access(block.range, mapped_bytes, Access::kReadWrite);
}

Result<StitchedBlock*> StitchedCache::build(std::vector<StitchedBlock::Piece> pieces, Stream stream) {
  auto block = std::make_unique<StitchedBlock>();
  block->pieces = std::move(pieces);
  for (const StitchedBlock::Piece& piece : block->pieces) block->bytes += piece.bytes;
  const StitchedBlock::Piece& first = block->pieces.front();
  const std::uint64_t chunk_bytes = memory_.chunk_bytes();
  const std::uint64_t skip = (first.address - first.segment->base) % chunk_bytes;
  block->range_bytes = (skip + block->bytes + chunk_bytes - 1) / chunk_bytes * chunk_bytes;
  CACHALOT_TRY_ASSIGN(block->range, backend_.reserve(block->range_bytes));
  block->address = block->range + skip;
  std::uint64_t mapped_bytes = 0;
  if (const Status mapped = map_pieces(*block, mapped_bytes); !mapped) {
    if (mapped_bytes != 0) CACHALOT_CHECK(backend_.unmap(block->range, mapped_bytes));
    CACHALOT_CHECK(backend_.free_range(block->range));
    return mapped.error();
  }
  range_bytes_ += block->range_bytes;
  block->place = in_use_.insert(in_use_.end(), block.get());
  take_pieces(block.get(), block->bytes, stream);
  return block.release();
}

void StitchedCache::take_pieces(StitchedBlock* block, std::uint64_t bytes, Stream stream) {
  block->is_in_use = true;
  block->stream = stream;
  block->last_use = ++uses_;
  for (std::size_t i = 0; bytes != 0; ++i) {
    const StitchedBlock::Piece& piece = block->pieces[i];
    const std::uint64_t needed = std::min(bytes, piece.bytes);
    Block* const free_block = memory_.heap().find(piece.segment, piece.address);
    block->used.push_back(memory_.heap().take(free_block, piece.address, needed, block));
    bytes -= needed;
  }
}

void StitchedCache::use(StitchedBlock* block, std::uint64_t bytes, Stream stream) {
  block->node = by_size_.extract(block->by_size);
  in_use_.splice(in_use_.end(), idle_, block->place);
  take_pieces(block, bytes, stream);
}

void StitchedCache::put_back(StitchedBlock* block) {
  for (Block* used : block->used) memory_.heap().free(used);
  block->used.clear();
  block->is_in_use = false;
  idle_.splice(idle_.end(), in_use_, block->place);
  if (block->node.empty()) {
    block->by_size = by_size_.insert(block).first;
  } else {
    block->by_size = by_size_.insert(std::move(block->node)).position;
  }
}

void StitchedCache::unmap(StitchedBlock* block) {
  CACHALOT_CHECK(backend_.unmap(block->range, block->range_bytes));
  CACHALOT_CHECK(backend_.free_range(block->range));
  delete block;
}

Status StitchedCache::drop(StitchedBlock* block) {
  CACHALOT_TRY_ASSIGN(const StreamEvents::Event event, events_.record(block->stream));
  by_size_.erase(block->by_size);
  idle_.erase(block->place);
  range_bytes_ -= block->range_bytes;
  dropped_.push_back({block, event});
  return {};
}

Status StitchedCache::drop_to(std::uint64_t range_bytes) {
  while (range_bytes_ > range_bytes && !idle_.empty()) CACHALOT_TRY(drop(idle_.front()));
  return {};
}

Status StitchedCache::unmap_dropped(bool wait) {
  while (!dropped_.empty()) {
    const Dropped oldest = dropped_.front();
    if (!events_.is_done(oldest.event)) {
      if (!wait) return {};
      CACHALOT_TRY(events_.wait(oldest.event));
    }
    events_.drop(oldest.event);
    unmap(oldest.block);
    dropped_.pop_front();
  }
  return {};
}

StitchedCache::HeldTails::HeldTails(StitchedCache& cache) : heap_(cache.memory_.heap()) {
  for (const StitchedBlock* block : cache.in_use_) {
    std::uint64_t used_bytes = 0;
    for (const Block* used : block->used) used_bytes += used->bytes;
    for (const StitchedBlock::Piece& piece : block->pieces) {
      const std::uint64_t skip = std::min(used_bytes, piece.bytes);
      used_bytes -= skip;
      // Whatever of the rest is free.
      for (Address at = piece.address + skip; at < piece.address + piece.bytes;) {
        Block* const part = heap_.find(piece.segment, at);
        const Address end = std::min(part->end(), piece.address + piece.bytes);
        if (part->state == BlockState::kFree) held_.push_back(heap_.take(part, at, end - at, nullptr));
        at = end;
      }
    }
  }
}

StitchedCache::HeldTails::~HeldTails() {
  for (Block* block : held_) heap_.free(block);
}

Status StitchedCache::check() const {
  const auto broken = [](const StitchedBlock* block, const char* what) {
    return Error::make(Code::kCorrupt, "stitched block 0x%" PRIx64 ": %s", block->address, what);
  };
  std::uint64_t range_bytes = 0;
  for (const StitchedBlock* block : idle_) {
    range_bytes += block->range_bytes;
    if (block->is_in_use || !block->used.empty()) return broken(block, "idle and in use");
    if (*block->by_size != block) return broken(block, "not in the index of sizes");
  }
  if (by_size_.size() != idle_.size()) return Error::make(Code::kCorrupt, "index: not the idle ones");
  for (const StitchedBlock* block : in_use_) {
    range_bytes += block->range_bytes;
    if (!block->is_in_use || block->used.empty()) return broken(block, "in use and idle");
    for (std::size_t i = 0; i < block->used.size(); ++i) {
      const Block* const used = block->used[i];
      const bool is_last = i + 1 == block->used.size();
      if (used->state != BlockState::kUsed || used->owner != block) {
        return broken(block, "a piece of it serves another");
      }
      if (used->address != block->pieces[i].address ||
          (is_last ? used->bytes > block->pieces[i].bytes : used->bytes != block->pieces[i].bytes)) {
        return broken(block, "a block that is not its piece");
      }
    }
  }
  if (range_bytes != range_bytes_) return Error::make(Code::kCorrupt, "range_bytes is not the sum");
  return {};
}

}  // namespace cachalot::vmm
