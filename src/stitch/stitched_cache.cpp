#include "stitch/stitched_cache.h"

#include <algorithm>
#include <cinttypes>
#include <memory>

#include "base/check.h"

namespace cachalot::stitch {

StitchedCache::~StitchedCache() {
  for (const Dropped& dropped : dropped_) {
    for (const gpu::StreamEvents::Event event : dropped.events) events_.drop(event);
    unmap(dropped.block);
  }
  for (StitchedBlock* block : idle_) unmap(block);
  for (StitchedBlock* block : in_use_) unmap(block);
}

bool StitchedCache::is_free(const StitchedBlock::Piece& piece, std::uint64_t skip,
                            std::uint64_t bytes, gpu::StreamId stream) const {
  const device_memory::Block* const block =
      memory_.heap().find(piece.segment, piece.address + skip);
  return block->state == device_memory::BlockState::kFree && block->stream == stream &&
         block->end() >= piece.address + skip + bytes;
}

bool StitchedCache::is_available(StitchedBlock* block, gpu::StreamId stream) const {
  const std::vector<StitchedBlock::Piece>& pieces = block->pieces;
  // What was in the way last time most likely still is.
  const StitchedBlock::Piece& blocker = pieces[block->blocker];
  if (!is_free(blocker, 0, blocker.bytes, stream)) return false;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (is_free(pieces[i], 0, pieces[i].bytes, stream)) continue;
    block->blocker = i;
    return false;
  }
  return true;
}

StitchedBlock* StitchedCache::find_exact(std::uint64_t bytes, gpu::StreamId stream) {
  auto each = by_size_.lower_bound(device_memory::AtLeast{bytes});
  for (int i = 0; i < kExactLooks && each != by_size_.end() && (*each)->bytes == bytes;
       ++i, ++each) {
    if (is_available(*each, stream)) return *each;
  }
  return nullptr;
}

bool StitchedCache::find_free_run(const StitchedBlock& block, std::uint64_t bytes,
                                  gpu::StreamId stream, std::uint64_t& offset) const {
  std::uint64_t at = 0, run = 0;  // of free bytes, up to `at`
  for (const StitchedBlock::Piece& piece : block.pieces) {
    for (device_memory::Address address = piece.address; address < piece.address + piece.bytes;) {
      if (at - run + bytes > block.bytes) return false;
      const device_memory::Block* const part = memory_.heap().find(piece.segment, address);
      const device_memory::Address end = std::min(part->end(), piece.address + piece.bytes);
      const bool is_free =
          part->state == device_memory::BlockState::kFree && part->stream == stream;
      at += end - address;
      run = is_free ? run + (end - address) : 0;
      if (run >= bytes) {
        offset = at - run;
        return true;
      }
      address = end;
    }
  }
  return false;
}

StitchedCache::Window StitchedCache::find_window(std::uint64_t bytes, gpu::StreamId stream) const {
  auto each = by_size_.lower_bound(device_memory::AtLeast{bytes});
  for (int i = 0; i < kWindowLooks && each != by_size_.end(); ++i, ++each) {
    Window window{*each, 0};
    if (find_free_run(**each, bytes, stream, window.offset)) return window;
  }
  return {};
}

Status StitchedCache::map_pieces(const StitchedBlock& block, std::uint64_t& mapped_bytes) {
  const std::uint64_t chunk_bytes = memory_.chunk_bytes();
  for (const StitchedBlock::Piece& piece : block.pieces) {
    const std::uint64_t skip = (piece.address - piece.segment->base) % chunk_bytes;
    const std::uint64_t chunks = (skip + piece.bytes + chunk_bytes - 1) / chunk_bytes;
    for (std::uint64_t i = 0; i < chunks; ++i) {
      const device_memory::Handle chunk =
          memory_.chunk(piece.segment, piece.address + i * chunk_bytes - (i == 0 ? 0 : skip));
      CACHALOT_TRY(backend_.map(block.range + mapped_bytes, chunk));
      mapped_bytes += chunk_bytes;
    }
  }
  return backend_.set_access(block.range, mapped_bytes, device_memory::Access::kReadWrite);
}

Result<StitchedBlock*> StitchedCache::build(std::vector<StitchedBlock::Piece> pieces,
                                            gpu::StreamId stream) {
  if (spare_.empty()) spare_.push_back(&storage_.emplace_back());
  StitchedBlock* const block = spare_.back();
  block->pieces = std::move(pieces);
  block->bytes = 0;
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
  spare_.pop_back();
  block->id = ++ids_;
  block->blocker = 0;
  range_bytes_ += block->range_bytes;
  block->place = in_use_.insert(in_use_.end(), block);
  take_pieces(block, 0, block->bytes, stream);
  return block;
}

void StitchedCache::take_pieces(StitchedBlock* block, std::uint64_t offset, std::uint64_t bytes,
                                gpu::StreamId stream) {
  block->is_in_use = true;
  // A stream gets all of it only when the others have done their work on each piece.
  if (bytes == block->bytes) block->streams.clear();
  if (std::find(block->streams.begin(), block->streams.end(), stream) == block->streams.end())
    block->streams.push_back(stream);
  block->last_use = ++uses_;
  for (const StitchedBlock::Piece& piece : block->pieces) {
    if (bytes == 0) break;
    const std::uint64_t skip = std::min(offset, piece.bytes);
    const std::uint64_t needed = std::min(bytes, piece.bytes - skip);
    offset -= skip;
    bytes -= needed;
    if (needed == 0) continue;
    const device_memory::Address address = piece.address + skip;
    device_memory::Block* const free_block = memory_.heap().find(piece.segment, address);
    device_memory::Block* const used = memory_.heap().take(free_block, address, needed, block);
    used->stream = stream;
    block->used.push_back(used);
  }
}

device_memory::Address StitchedCache::use(Window window, std::uint64_t bytes,
                                          gpu::StreamId stream) {
  StitchedBlock* const block = window.block;
  block->node = by_size_.extract(block->by_size);
  in_use_.splice(in_use_.end(), idle_, block->place);
  take_pieces(block, window.offset, bytes, stream);
  return block->address + window.offset;
}

void StitchedCache::put_back(StitchedBlock* block) {
  for (device_memory::Block* used : block->used) memory_.heap().free(used);
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
  spare_.push_back(block);
}

Status StitchedCache::drop(StitchedBlock* block) {
  Dropped dropped{block, {}};
  for (const gpu::StreamId stream : block->streams) {
    const Result<gpu::StreamEvents::Event> event = events_.record(stream);
    if (event) {
      dropped.events.push_back(*event);
      continue;
    }
    for (const gpu::StreamEvents::Event recorded : dropped.events) events_.drop(recorded);
    return event.error();
  }
  by_size_.erase(block->by_size);
  idle_.erase(block->place);
  range_bytes_ -= block->range_bytes;
  block->id = 0;
  dropped_.push_back(std::move(dropped));
  return {};
}

Status StitchedCache::drop_to(std::uint64_t range_bytes) {
  while (range_bytes_ > range_bytes && !idle_.empty()) CACHALOT_TRY(drop(idle_.front()));
  return {};
}

Status StitchedCache::unmap_dropped(bool wait) {
  while (!dropped_.empty()) {
    Dropped& oldest = dropped_.front();
    for (; !oldest.events.empty(); oldest.events.pop_back()) {
      if (!events_.is_done(oldest.events.back())) {
        if (!wait) return {};
        CACHALOT_TRY(events_.wait(oldest.events.back()));
      }
      events_.drop(oldest.events.back());
    }
    unmap(oldest.block);
    dropped_.pop_front();
  }
  return {};
}

StitchedCache::HeldParts::HeldParts(StitchedCache& cache) : heap_(cache.memory_.heap()) {
  for (const StitchedBlock* block : cache.in_use_) {
    for (const StitchedBlock::Piece& piece : block->pieces) {
      const device_memory::Address piece_end = piece.address + piece.bytes;
      for (device_memory::Address at = piece.address; at < piece_end;) {
        device_memory::Block* const part = heap_.find(piece.segment, at);
        const device_memory::Address end = std::min(part->end(), piece_end);
        if (part->state == device_memory::BlockState::kFree)
          held_.push_back(heap_.take(part, at, end - at, nullptr));
        at = end;
      }
    }
  }
}

StitchedCache::HeldParts::~HeldParts() {
  for (device_memory::Block* block : held_) heap_.free(block);
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
  if (by_size_.size() != idle_.size())
    return Error::make(Code::kCorrupt, "index: not the idle ones");
  for (const StitchedBlock* block : in_use_) {
    range_bytes += block->range_bytes;
    if (!block->is_in_use || block->used.empty()) return broken(block, "in use and idle");
    for (const device_memory::Block* used : block->used) {
      if (used->state != device_memory::BlockState::kUsed || used->owner != block) {
        return broken(block, "a piece of it serves another");
      }
    }
  }
  if (range_bytes != range_bytes_) return Error::make(Code::kCorrupt, "range_bytes is not the sum");
  return {};
}

}  // namespace cachalot::stitch
