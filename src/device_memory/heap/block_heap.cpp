#include "device_memory/heap/block_heap.h"

#include <algorithm>
#include <cinttypes>

#include "base/check.h"

namespace cachalot::device_memory {

FreePool& BlockHeap::pool(gpu::StreamId stream) {
  if (recent_pool_ != nullptr && recent_stream_ == stream) return *recent_pool_;
  std::unique_ptr<FreePool>& pool = pools_[stream];
  if (!pool) {
    pool = std::make_unique<FreePool>();
    if (has_parts_) {
      pool->heads.open(unit_bytes_);
      pool->tails.open(unit_bytes_);
    }
  }
  recent_pool_ = pool.get();
  recent_stream_ = stream;
  return *pool;
}

std::uint64_t BlockHeap::whole_bytes(const Block* block) const {
  const Address first = first_whole(block);
  const Address end = end_whole(block);
  return first < end ? end - first : 0;
}

Block* BlockHeap::make_block(Segment* segment, Address address, std::uint64_t bytes) {
  if (spare_blocks_.empty()) spare_blocks_.push_back(&block_storage_.emplace_back());
  Block* const block = spare_blocks_.back();
  spare_blocks_.pop_back();
  block->segment = segment;
  block->address = address;
  block->bytes = bytes;
  block->prev = block->next = nullptr;
  block->state = BlockState::kUsed;
  block->owner = nullptr;
  block->freed_at = 0;
  return block;
}

void BlockHeap::drop_block(Block* block) {
  block->segment = nullptr;
  spare_blocks_.push_back(block);
}

void BlockHeap::note_start(Block* block) {
  const std::uint64_t unit = unit_of(block->segment, block->address);
  StartMap& starts = block->segment->starts;
  const Block* const last = starts.last_in(unit);
  if (last == nullptr || last->address < block->address) starts.set(unit, block);
}

void BlockHeap::forget_start(Block* block) {
  const std::uint64_t unit = unit_of(block->segment, block->address);
  StartMap& starts = block->segment->starts;
  if (starts.last_in(unit) != block) return;
  Block* const prev = block->prev;
  const bool prev_is_in_unit = prev != nullptr && unit_of(block->segment, prev->address) == unit;
  starts.set(unit, prev_is_in_unit ? prev : nullptr);
}

Block* BlockHeap::find(Segment* segment, Address address) const {
  Block* block = segment->starts.last_up_to(unit_of(segment, address));
  while (block->address > address) block = block->prev;  // others that start in the same unit
  return block;
}

std::uint64_t BlockHeap::head_of(const Block* block) const {
  const Address first = first_whole(block);
  return first <= block->end() ? first - block->address : 0;
}

std::uint64_t BlockHeap::tail_of(const Block* block) const {
  const Address last = end_whole(block);
  return last >= block->address ? block->end() - last : 0;
}

void BlockHeap::enter(Block* block) {
  block->state = BlockState::kFree;
  FreePool& pool = this->pool(block->stream);
  if (block->node.empty()) {
    block->place = pool.blocks.insert(block).first;
  } else {
    block->node.value() = block;
    block->place = pool.blocks.insert(std::move(block->node)).position;
  }
  if (has_parts_) {
    pool.heads.enter(block, head_of(block));
    pool.tails.enter(block, tail_of(block));
  }
  pool.free_bytes += block->bytes;
  pool.whole_bytes += whole_bytes(block);
}

void BlockHeap::leave(Block* block) {
  FreePool& pool = this->pool(block->stream);
  block->node = pool.blocks.extract(block->place);
  if (has_parts_) {
    pool.heads.leave(block);
    pool.tails.leave(block);
  }
  pool.free_bytes -= block->bytes;
  pool.whole_bytes -= whole_bytes(block);
  block->state = BlockState::kUsed;
}

Block* BlockHeap::split(Block* block, Address at) {
  Block* const rest = make_block(block->segment, at, block->end() - at);
  rest->stream = block->stream;
  rest->freed_at = block->freed_at;
  block->bytes = at - block->address;
  rest->prev = block;
  rest->next = block->next;
  (rest->next == nullptr ? block->segment->last : rest->next->prev) = rest;
  block->next = rest;
  note_start(rest);
  return rest;
}

void BlockHeap::merge_next(Block* block) {
  Block* const next = block->next;
  forget_start(next);
  block->bytes += next->bytes;
  block->freed_at = std::max(block->freed_at, next->freed_at);
  block->next = next->next;
  (next->next == nullptr ? block->segment->last : next->next->prev) = block;
  drop_block(next);
}

// `block` is in no set; what is free around it and of its stream leaves its set and joins it.
Block* BlockHeap::merge_around(Block* block) {
  const auto joins = [&](const Block* other) {
    return other != nullptr && other->state == BlockState::kFree && other->stream == block->stream;
  };
  if (joins(block->next)) {
    leave(block->next);
    merge_next(block);
  }
  if (joins(block->prev)) {
    block = block->prev;
    leave(block);
    merge_next(block);
  }
  enter(block);
  return block;
}

Segment* BlockHeap::add_segment(Address base, std::uint64_t bytes, gpu::StreamId stream,
                                void* owner) {
  if (spare_segments_.empty()) spare_segments_.push_back(&segment_storage_.emplace_back());
  Segment* const segment = spare_segments_.back();
  spare_segments_.pop_back();
  *segment = Segment{};
  segment->base = base;
  segment->owner = owner;
  segment->id = ++segment_ids_;
  segment->index = segments_.size();
  segments_.push_back(segment);
  if (bytes != 0) extend(segment, bytes, stream);
  return segment;
}

Block* BlockHeap::extend(Segment* segment, std::uint64_t bytes, gpu::StreamId stream) {
  Block* const block = make_block(segment, segment->base + segment->bytes, bytes);
  block->stream = stream;
  block->prev = segment->last;
  (segment->last == nullptr ? segment->first : segment->last->next) = block;
  segment->last = block;
  segment->bytes += bytes;
  segment->starts.grow((segment->bytes + unit_bytes_ - 1) / unit_bytes_);
  note_start(block);
  return merge_around(block);
}

void BlockHeap::remove_segment(Segment* segment) {
  CACHALOT_CHECK(segment->used_bytes == 0);
  for (Block* block = segment->first; block != nullptr;) {
    Block* const next = block->next;
    if (block->state == BlockState::kFree) leave(block);
    drop_block(block);
    block = next;
  }
  segments_[segment->index] = segments_.back();
  segments_[segment->index]->index = segment->index;
  segments_.pop_back();
  segment->id = 0;
  spare_segments_.push_back(segment);
}

Block* BlockHeap::best_fit(gpu::StreamId stream, std::uint64_t bytes) {
  const FreeBlocks& blocks = pool(stream).blocks;
  const auto found = blocks.lower_bound(AtLeast{bytes});
  return found == blocks.end() ? nullptr : *found;
}

// That part of a free block is in no set afterwards; the rest is.
Block* BlockHeap::cut(Block* block, Address address, std::uint64_t bytes) {
  leave(block);
  if (block->address != address) {
    Block* const front = block;
    block = split(block, address);
    enter(front);
  }
  if (block->bytes != bytes) enter(split(block, address + bytes));
  return block;
}

Block* BlockHeap::take(Block* block, Address address, std::uint64_t bytes, void* owner) {
  block = cut(block, address, bytes);
  block->owner = owner;
  block->segment->used_bytes += bytes;
  used_bytes_ += bytes;
  return block;
}

Block* BlockHeap::free(Block* used) {
  used->segment->used_bytes -= used->bytes;
  used_bytes_ -= used->bytes;
  used->owner = nullptr;
  used->freed_at = ++frees_;
  return merge_around(used);
}

Block* BlockHeap::give(Block* free_block, Address address, std::uint64_t bytes,
                       gpu::StreamId stream) {
  Block* const block = cut(free_block, address, bytes);
  block->stream = stream;
  return merge_around(block);
}

Block* BlockHeap::remove_memory(Block* free_block, Address address, std::uint64_t bytes) {
  Block* const block = take(free_block, address, bytes, nullptr);
  block->segment->used_bytes -= bytes;
  used_bytes_ -= bytes;
  block->segment->absent_bytes += bytes;
  block->state = BlockState::kAbsent;
  return block;
}

bool BlockHeap::is_entered(const Block* block) const {
  if (block->place == FreeBlocks::iterator{} || *block->place != block) return false;
  return !has_parts_ ||
         (block->head.bytes == head_of(block) && block->tail.bytes == tail_of(block));
}

Status BlockHeap::check_segment(const Segment& segment) const {
  const auto broken = [&](const char* what, Address at) {
    return Error::make(Code::kCorrupt, "segment 0x%" PRIx64 ", at 0x%" PRIx64 ": %s", segment.base,
                       at, what);
  };
  Address at = segment.base;
  std::uint64_t used = 0, absent = 0;
  const Block* prev = nullptr;
  for (const Block* block = segment.first; block != nullptr; block = block->next) {
    if (block->segment != &segment) return broken("a block of another segment", at);
    if (block->prev != prev) return broken("the list is broken", at);
    if (block->address != at || block->bytes == 0) return broken("a gap or an overlap", at);
    if (block->state == BlockState::kUsed) used += block->bytes;
    if (block->state == BlockState::kAbsent) absent += block->bytes;
    const bool is_free = block->state == BlockState::kFree;
    if (is_free && !is_entered(block)) return broken("a free block that is not in its sets", at);
    if (is_free && prev != nullptr && prev->state == BlockState::kFree &&
        prev->stream == block->stream) {
      return broken("two free neighbours that were not merged", at);
    }
    const auto covers = [&](Address address) {
      return find(const_cast<Segment*>(&segment), address) == block;
    };
    if (!covers(at) || !covers(block->end() - 1)) return broken("find() misses the block", at);
    at = block->end();
    prev = block;
  }
  if (segment.last != prev || at != segment.base + segment.bytes)
    return broken("it ends elsewhere", at);
  if (used != segment.used_bytes) return broken("used_bytes is not the sum", at);
  if (absent != segment.absent_bytes) return broken("absent_bytes is not the sum", at);
  return {};
}

Status BlockHeap::check() const {
  std::uint64_t used = 0, free_blocks = 0, heads = 0, tails = 0;
  std::uint64_t in_blocks = 0, in_heads = 0, in_tails = 0;
  for (const Segment* segment : segments_) {
    CACHALOT_TRY(check_segment(*segment));
    used += segment->used_bytes;
    for (const Block* block = segment->first; block != nullptr; block = block->next) {
      if (block->state != BlockState::kFree) continue;
      ++free_blocks;
      heads += block->head.bytes != 0;
      tails += block->tail.bytes != 0;
    }
  }
  if (used != used_bytes_) return Error::make(Code::kCorrupt, "heap: used_bytes is not the sum");
  for (const auto& [stream, pool] : pools_) {
    std::uint64_t bytes = 0, whole = 0;
    for (const Block* block : pool->blocks) {
      if (block->state != BlockState::kFree || block->stream != stream) {
        return Error::make(Code::kCorrupt, "stream %" PRIu64 ": a block in its set is not its own",
                           stream);
      }
      bytes += block->bytes;
      whole += whole_bytes(block);
    }
    if (bytes != pool->free_bytes || whole != pool->whole_bytes) {
      return Error::make(Code::kCorrupt, "stream %" PRIu64 ": the sums are not those of its set",
                         stream);
    }
    in_blocks += pool->blocks.size();
    if (!has_parts_) continue;
    CACHALOT_TRY_ASSIGN(const std::uint64_t pool_heads, pool->heads.check());
    CACHALOT_TRY_ASSIGN(const std::uint64_t pool_tails, pool->tails.check());
    in_heads += pool_heads;
    in_tails += pool_tails;
  }
  if (in_blocks != free_blocks || in_heads != heads || in_tails != tails)
    return Error::make(Code::kCorrupt, "heap: a set has blocks of no segment");
  return {};
}

}  // namespace cachalot::device_memory
