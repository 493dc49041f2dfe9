#include "stitch/stitch_allocator.h"

#include <algorithm>
#include <bit>
#include <cinttypes>

#include "base/check.h"
#include "stitch/corners.h"

namespace cachalot::stitch {
namespace {

constexpr std::uint64_t kEverything = ~std::uint64_t{0};

}  // namespace

Status StitchOptions::check(std::uint64_t granularity_bytes) const {
  if (!std::has_single_bit(chunk_bytes) || chunk_bytes % granularity_bytes != 0) {
    return Error::make(Code::kInvalidArgument,
                       "chunk_bytes: %" PRIu64
                       ", expected a power of two and a multiple of %" PRIu64,
                       chunk_bytes, granularity_bytes);
  }
  if (small_request_bytes > chunk_bytes) {
    return Error::make(Code::kInvalidArgument,
                       "small_request_bytes: %" PRIu64 ", expected at most chunk_bytes, %" PRIu64,
                       small_request_bytes, chunk_bytes);
  }
  if (free_stitch_requests == 0) {
    return Error::make(Code::kInvalidArgument, "free_stitch_requests: 0, expected at least 1");
  }
  if (growth_divisor == 0) {
    return Error::make(Code::kInvalidArgument, "growth_divisor: 0, expected at least 1");
  }
  if (growth_piece_divisor == 0) {
    return Error::make(Code::kInvalidArgument, "growth_piece_divisor: 0, expected at least 1");
  }
  return {};
}

Result<std::unique_ptr<StitchAllocator>> StitchAllocator::create(device_memory::Backend& backend,
                                                                 gpu::StreamEvents& events,
                                                                 const StitchOptions& options) {
  CACHALOT_TRY(options.check(backend.granularity_bytes()));
  return std::unique_ptr<StitchAllocator>(new StitchAllocator(backend, events, options));
}

StitchAllocator::StitchAllocator(device_memory::Backend& backend, gpu::StreamEvents& events,
                                 const StitchOptions& options)
    : device_memory::TrackedAllocator(backend, events),
      options_(options),
      memory_(backend, options.chunk_bytes),
      stitched_(backend, events, memory_),
      small_(options.chunk_bytes),
      drains_(events),
      budget_(options) {}

device_memory::TrackedAllocator::Placed StitchAllocator::placed(device_memory::Block* block,
                                                                std::uint64_t& state) {
  ++state;
  return {block->address, block, kPrimitive};
}

device_memory::TrackedAllocator::Placed StitchAllocator::use(StitchedCache::Window window,
                                                             std::uint64_t bytes,
                                                             gpu::StreamId stream,
                                                             std::uint64_t& state) {
  ++state;
  return {stitched_.use(window, bytes, stream), window.block, kStitched};
}

Result<device_memory::TrackedAllocator::Placed> StitchAllocator::do_allocate(std::uint64_t bytes,
                                                                             gpu::StreamId stream) {
  used_driver_ = false;
  if (stitched_.has_dropped()) {
    used_driver_ = true;
    CACHALOT_TRY(stitched_.unmap_dropped(false));
  }
  const std::uint64_t stitches = stats_.stitches;
  Result<Placed> done = bytes <= options_.small_request_bytes ? allocate_small(bytes, stream)
                                                              : allocate_large(bytes, stream);
  stats_.driver_allocations += used_driver_;
  if (done) budget_.served(stats_.stitches != stitches);
  return done;
}

void StitchAllocator::do_free(const Placed& placed) {
  if (placed.kind == kStitched) {
    stitched_.put_back(static_cast<StitchedBlock*>(placed.owner));
  } else if (placed.kind == kPrimitive) {
    memory_.heap().free(static_cast<device_memory::Block*>(placed.owner));
  } else if (device_memory::Block* const chunk =
                 small_.free(static_cast<device_memory::Block*>(placed.owner));
             chunk != nullptr) {
    memory_.heap().free(chunk);
  }
}

Result<device_memory::TrackedAllocator::Placed> StitchAllocator::allocate_large(
    std::uint64_t bytes, gpu::StreamId stream) {
  const Place* const expected = history_.expect(bytes, stream);
  std::optional<Placed> again;
  if (expected != nullptr) again = place_again(*expected, bytes, stream);
  Result<Placed> done = again ? Result<Placed>(*again) : allocate_anew(bytes, stream);
  if (done) history_.record(place_of(*done));
  return done;
}

bool StitchAllocator::may_use(const device_memory::Block& block, gpu::StreamId stream) {
  if (block.state != device_memory::BlockState::kFree) return false;
  if (block.stream == stream) return true;
  const Result<std::uint64_t> safe =
      drains_.safe_up_to(block.stream, memory_.heap().frees(), false);
  return safe && block.freed_at <= *safe;
}

bool StitchAllocator::may_use(device_memory::Segment* segment, device_memory::Address address,
                              std::uint64_t bytes, gpu::StreamId stream) {
  const device_memory::Block* block = memory_.heap().find(segment, address);
  while (may_use(*block, stream)) {
    if (block->end() >= address + bytes) return true;
    block = block->next;
    if (block == nullptr) return false;
  }
  return false;
}

// Where streams take turns, the place lies in what several of them freed.
device_memory::Block* StitchAllocator::claim(device_memory::Segment* segment,
                                             device_memory::Address address, std::uint64_t bytes,
                                             gpu::StreamId stream) {
  device_memory::BlockHeap& heap = memory_.heap();
  const device_memory::Address end = address + bytes;
  device_memory::Block* block = heap.find(segment, address);
  while (block->stream != stream || block->end() < end) {
    if (block->stream == stream) block = block->next;
    const device_memory::Address from = std::max(address, block->address);
    block = heap.give(block, from, std::min(end, block->end()) - from, stream);
  }
  return block;
}

std::optional<device_memory::TrackedAllocator::Placed> StitchAllocator::place_again(
    const Place& place, std::uint64_t bytes, gpu::StreamId stream) {
  if (place.is_stitched) {
    auto* const block = static_cast<StitchedBlock*>(place.where);
    if (block->id != place.id || block->is_in_use) return {};
    const auto is_usable = [&](const StitchedBlock::Piece& piece, std::uint64_t skip,
                               std::uint64_t needed) {
      return may_use(piece.segment, piece.address + skip, needed, stream);
    };
    if (!StitchedCache::all_of(*block, place.offset, bytes, is_usable)) return {};
    const auto claim_it = [&](const StitchedBlock::Piece& piece, std::uint64_t skip,
                              std::uint64_t needed) {
      return claim(piece.segment, piece.address + skip, needed, stream) != nullptr;
    };
    if (streams().size() > 1) StitchedCache::all_of(*block, place.offset, bytes, claim_it);
    return use({block, place.offset}, bytes, stream, states_.repeated);
  }
  auto* const segment = static_cast<device_memory::Segment*>(place.where);
  if (segment->id != place.id) return {};
  const device_memory::Address address = segment->base + place.offset;
  if (!may_use(segment, address, bytes, stream)) return {};
  device_memory::Block* const block = claim(segment, address, bytes, stream);
  return placed(memory_.heap().take(block, address, bytes, nullptr), states_.repeated);
}

Place StitchAllocator::place_of(const Placed& placed) const {
  if (placed.kind == kStitched) {
    auto* const block = static_cast<StitchedBlock*>(placed.owner);
    return {block, block->id, placed.address - block->address, true};
  }
  device_memory::Segment* const segment = static_cast<device_memory::Block*>(placed.owner)->segment;
  return {segment, segment->id, placed.address - segment->base, false};
}

Result<device_memory::TrackedAllocator::Placed> StitchAllocator::allocate_anew(
    std::uint64_t bytes, gpu::StreamId stream) {
  CACHALOT_TRY_ASSIGN(std::optional<Placed> found, find(bytes, stream, Limits::kObeyed));
  if (found) return *found;
  if (streams().size() > 1) {
    CACHALOT_TRY(adopt(bytes, stream, false));
    CACHALOT_TRY_ASSIGN(found, find(bytes, stream, Limits::kObeyed));
    if (found) return *found;
  }
  Result<Placed> created = create(bytes, stream, Limits::kObeyed);
  if (created || created.error().code != Code::kNoSpace) return created;
  // S5. What is free but not this stream's, or was held back by a limit.
  free_empty_slabs();
  CACHALOT_TRY(adopt(kEverything, stream, true));
  CACHALOT_TRY_ASSIGN(found, find(bytes, stream, Limits::kIgnored));
  if (found) return *found;
  return create(bytes, stream, Limits::kIgnored);
}

Result<std::optional<device_memory::TrackedAllocator::Placed>> StitchAllocator::find(
    std::uint64_t bytes, gpu::StreamId stream, Limits limits) {
  device_memory::BlockHeap& heap = memory_.heap();
  device_memory::Block* const block = heap.best_fit(stream, bytes);
  if (block != nullptr && block->bytes == bytes) {
    return std::optional(placed(heap.take(block, bytes, nullptr), states_.exact_primitive));
  }
  if (StitchedBlock* const exact = stitched_.find_exact(bytes, stream); exact != nullptr) {
    return std::optional(use({exact, 0}, bytes, stream, states_.exact_stitched));
  }
  const bool may_stitch = bytes >= options_.frag_limit_bytes || limits == Limits::kIgnored;
  const bool is_last_choice = block != nullptr && may_stitch && saves_chunks(bytes, block, stream);
  if (block != nullptr && !is_last_choice) {
    return std::optional(placed(heap.take(block, bytes, nullptr), states_.split));
  }
  if (const auto window = stitched_.find_window(bytes, stream); window.block != nullptr) {
    return std::optional(use(window, bytes, stream, states_.window));
  }
  if (may_stitch && missing_bytes(bytes, stream) == 0 && !may_buy(bytes, limits)) {
    CACHALOT_TRY_ASSIGN(const std::optional<Placed> stitched, stitch(bytes, stream));
    if (stitched) return stitched;
  }
  if (block == nullptr) return std::optional<Placed>();
  return std::optional(placed(heap.take(block, bytes, nullptr), states_.split));
}

// Where borders lie in many chunks, what is free beside them is what later requests will lack. A split
// costs nothing and a stitch driver calls, so it has to be three times the share that is left alone.
bool StitchAllocator::saves_chunks(std::uint64_t bytes, const device_memory::Block* block,
                                   gpu::StreamId stream) {
  const std::uint64_t chunk_bytes = options_.chunk_bytes;
  const device_memory::FreePool& pool = memory_.heap().pool(stream);
  const std::uint64_t in_parts = pool.free_bytes - pool.whole_bytes;
  if (bytes % chunk_bytes == 0 ||
      in_parts / 3 <= memory_.reserved_bytes() / StitchOptions::kWasteDivisor) {
    return false;
  }
  const std::uint64_t whole_bytes = memory_.heap().whole_bytes(block);
  const std::uint64_t rest_bytes = (block->bytes - bytes) / chunk_bytes * chunk_bytes;
  const std::uint64_t taken_bytes = whole_bytes - std::min(whole_bytes, rest_bytes);
  const std::uint64_t needed_bytes = bytes - find_corners(pool, chunk_bytes, bytes).bytes();
  return needed_bytes % chunk_bytes == 0 && needed_bytes < taken_bytes &&
         needed_bytes <= pool.whole_bytes;
}

std::uint64_t StitchAllocator::missing_bytes(std::uint64_t bytes, gpu::StreamId stream) {
  const device_memory::FreePool& pool = memory_.heap().pool(stream);
  if (pool.whole_bytes >= bytes) return 0;
  const std::uint64_t needed = bytes - find_corners(pool, options_.chunk_bytes, bytes).bytes();
  return needed - std::min(needed, pool.whole_bytes);
}

// Corners, and whole chunks from the largest block down, so that the pieces are few.
std::vector<StitchedBlock::Piece> StitchAllocator::gather(std::uint64_t bytes,
                                                          gpu::StreamId stream) {
  device_memory::BlockHeap& heap = memory_.heap();
  std::vector<StitchedBlock::Piece> pieces;
  const Corners corners = find_corners(heap.pool(stream), options_.chunk_bytes, bytes);
  bytes -= corners.bytes();
  if (const device_memory::Block* const head = corners.head; head != nullptr) {
    const device_memory::Address end = heap.first_whole(head);
    pieces.push_back({head->segment, end - corners.head_bytes, corners.head_bytes});
  }
  const device_memory::FreeBlocks& blocks = heap.pool(stream).blocks;
  for (auto each = blocks.rbegin(); bytes != 0 && each != blocks.rend(); ++each) {
    const device_memory::Block* const block = *each;
    const std::uint64_t piece_bytes = std::min(bytes, heap.whole_bytes(block));
    if (piece_bytes == 0) continue;
    pieces.push_back({block->segment, heap.first_whole(block), piece_bytes});
    bytes -= piece_bytes;
  }
  CACHALOT_CHECK(bytes == 0);
  if (const device_memory::Block* const tail = corners.tail; tail != nullptr) {
    pieces.push_back({tail->segment, heap.end_whole(tail), corners.tail_bytes});
  }
  return pieces;
}

Result<std::optional<device_memory::TrackedAllocator::Placed>> StitchAllocator::stitch(
    std::uint64_t bytes, gpu::StreamId stream) {
  used_driver_ = true;
  std::vector<StitchedBlock::Piece> pieces = gather(bytes, stream);
  Result<StitchedBlock*> built = stitched_.build(pieces, stream);
  if (!built && built.error().code == Code::kNoSpace) {
    // Addresses or mappings are used up, by unused blocks, too.
    CACHALOT_TRY(stitched_.drop_to(stitched_.range_bytes() / 2));
    CACHALOT_TRY(stitched_.unmap_dropped(true));
    built = stitched_.build(std::move(pieces), stream);
    if (!built && built.error().code == Code::kNoSpace) return std::optional<Placed>();
  }
  if (!built) return built.error();
  if (const Status dropped = stitched_.drop_to(stitched_limit_bytes()); !dropped) {
    stitched_.put_back(*built);
    return dropped.error();
  }
  ++stats_.stitches;
  ++states_.stitched;
  return std::optional(Placed{(*built)->address, *built, kStitched});
}

std::uint64_t StitchAllocator::stitched_limit_bytes() const {
  constexpr std::uint64_t kLeastBytes = std::uint64_t{256} << 30;
  if (options_.stitched_limit_bytes != StitchOptions::kFollowsHeap)
    return options_.stitched_limit_bytes;
  return std::max(kLeastBytes, 8 * memory_.reserved_bytes());
}

// Whether what is free is worth being stitched to new memory. Where it is little, the request gets
// new memory in one piece, behind what is free at the end of the growing segment: stitching a chunk here
// and there scatters blocks until borders lie in every chunk.
bool StitchAllocator::is_worth_stitching(std::uint64_t bytes, std::uint64_t missing,
                                         gpu::StreamId stream, Limits limits) {
  if (missing == 0 || missing == bytes) return false;
  if (limits == Limits::kIgnored) return true;
  const std::uint64_t tail = grows(bytes) ? std::min(bytes, memory_.free_tail_bytes(stream)) : 0;
  const std::uint64_t saved = bytes - missing;
  const std::uint64_t wasted = memory_.heap().pool(stream).free_bytes - tail;
  return bytes >= options_.frag_limit_bytes && saved > tail &&
         wasted > memory_.reserved_bytes() / StitchOptions::kWasteDivisor;
}

// S4. Only what is missing is created; what is free already is stitched to it.
Result<device_memory::TrackedAllocator::Placed> StitchAllocator::create(std::uint64_t bytes,
                                                                        gpu::StreamId stream,
                                                                        Limits limits) {
  used_driver_ = true;
  if (may_buy(bytes, limits)) {
    Result<Placed> bought = buy(bytes, stream);
    if (bought || bought.error().code != Code::kNoSpace) return bought;
    // What could be stitched is there still.
    budget_.device_is_full();
    CACHALOT_TRY_ASSIGN(const std::optional<Placed> found, find(bytes, stream, limits));
    if (found) return *found;
  }
  const std::uint64_t missing = missing_bytes(bytes, stream);
  if (!is_worth_stitching(bytes, missing, stream, limits)) return create_alone(bytes, stream);
  if (grows(bytes)) {
    CACHALOT_TRY(memory_.append(missing, stream));
  } else {
    CACHALOT_TRY(memory_.create(missing, stream));
  }
  const StitchStates before = states_;
  CACHALOT_TRY_ASSIGN(const std::optional<Placed> found, find(bytes, stream, Limits::kIgnored));
  if (!found) return create_alone(bytes, stream);
  const bool is_stitched = states_.stitched != before.stitched;
  states_ = before;
  ++(is_stitched ? states_.created_and_stitched : states_.created);
  return *found;
}

bool StitchAllocator::may_buy(std::uint64_t bytes, Limits limits) const {
  const std::uint64_t chunk_bytes = options_.chunk_bytes;
  const std::uint64_t new_bytes = (bytes + chunk_bytes - 1) / chunk_bytes * chunk_bytes;
  return limits == Limits::kObeyed && budget_.may_buy(new_bytes, memory_.reserved_bytes());
}

// At the end of the growing segment, whatever the size: it is not to be stitched.
Result<device_memory::TrackedAllocator::Placed> StitchAllocator::buy(std::uint64_t bytes,
                                                                     gpu::StreamId stream) {
  const std::uint64_t before = memory_.reserved_bytes();
  CACHALOT_TRY_ASSIGN(device_memory::Block* const block, memory_.end_with(bytes, stream));
  budget_.bought(memory_.reserved_bytes() - before);
  return placed(memory_.heap().take(block, bytes, nullptr), states_.created);
}

Result<device_memory::TrackedAllocator::Placed> StitchAllocator::create_alone(
    std::uint64_t bytes, gpu::StreamId stream) {
  CACHALOT_TRY_ASSIGN(device_memory::Block* const block, grows(bytes)
                                                             ? memory_.end_with(bytes, stream)
                                                             : memory_.create(bytes, stream));
  return placed(memory_.heap().take(block, bytes, nullptr), states_.created);
}

Result<device_memory::TrackedAllocator::Placed> StitchAllocator::allocate_small(
    std::uint64_t bytes, gpu::StreamId stream) {
  device_memory::Block* block = small_.allocate(bytes, stream);
  if (block == nullptr) {
    Result<device_memory::Block*> chunk = slab(stream);
    if (!chunk) {
      // A corner that is too small for a slab may still do.
      device_memory::Block* const corner = memory_.heap().best_fit(stream, bytes);
      if (corner == nullptr || chunk.error().code != Code::kNoSpace) return chunk.error();
      return placed(memory_.heap().take(corner, bytes, nullptr), states_.split);
    }
    small_.add_slab(*chunk, stream);
    block = small_.allocate(bytes, stream);
  }
  return Placed{block->address, block, kSmall};
}

Result<device_memory::Block*> StitchAllocator::slab(gpu::StreamId stream) {
  if (device_memory::Block* const chunk = chunk_for_slab(stream); chunk != nullptr) return chunk;
  if (streams().size() > 1) {
    CACHALOT_TRY(adopt(options_.chunk_bytes, stream, false));
    if (device_memory::Block* const chunk = chunk_for_slab(stream); chunk != nullptr) return chunk;
  }
  used_driver_ = true;
  const Result<device_memory::Block*> tail = memory_.append(options_.chunk_bytes, stream);
  if (tail) {
    ++states_.slabs;
    return memory_.heap().take(*tail, (*tail)->end() - options_.chunk_bytes, options_.chunk_bytes,
                               nullptr);
  }
  if (tail.error().code != Code::kNoSpace) return tail.error();
  free_empty_slabs();
  CACHALOT_TRY(adopt(kEverything, stream, true));
  device_memory::Block* const chunk = chunk_for_slab(stream);
  return chunk == nullptr ? Result<device_memory::Block*>(tail.error())
                          : Result<device_memory::Block*>(chunk);
}

// Out of the smallest free block that has a whole chunk, as far as a few looks can tell.
device_memory::Block* StitchAllocator::chunk_for_slab(gpu::StreamId stream) {
  constexpr int kLooks = 8;
  device_memory::BlockHeap& heap = memory_.heap();
  device_memory::FreePool& pool = heap.pool(stream);
  if (pool.whole_bytes < options_.chunk_bytes) return nullptr;
  device_memory::Block* block = nullptr;
  auto each = pool.blocks.lower_bound(device_memory::AtLeast{options_.chunk_bytes});
  for (int i = 0; i < kLooks && each != pool.blocks.end() && block == nullptr; ++i, ++each) {
    if (heap.whole_bytes(*each) != 0) block = *each;
  }
  if (block == nullptr) block = heap.best_fit(stream, 2 * options_.chunk_bytes);
  if (block == nullptr) return nullptr;
  return heap.take(block, heap.first_whole(block), options_.chunk_bytes, nullptr);
}

Status StitchAllocator::adopt(std::uint64_t bytes, gpu::StreamId stream, bool wait) {
  device_memory::BlockHeap& heap = memory_.heap();
  std::vector<device_memory::Block*> adopted;
  std::uint64_t adopted_bytes = 0;
  for (const gpu::StreamId other : streams()) {
    if (other == stream || heap.pool(other).free_bytes == 0) continue;
    if (adopted_bytes >= bytes) break;
    CACHALOT_TRY_ASSIGN(const std::uint64_t safe, drains_.safe_up_to(other, heap.frees(), wait));
    const device_memory::FreeBlocks& blocks = heap.pool(other).blocks;
    for (auto each = blocks.rbegin(); each != blocks.rend() && adopted_bytes < bytes; ++each) {
      if ((*each)->freed_at > safe) continue;
      adopted.push_back(*each);
      adopted_bytes += (*each)->bytes;
    }
  }
  for (device_memory::Block* block : adopted) heap.give(block, stream);
  return {};
}

void StitchAllocator::free_empty_slabs() {
  while (device_memory::Block* const chunk = small_.take_empty_slab()) memory_.heap().free(chunk);
}

Status StitchAllocator::do_release_cached() {
  CACHALOT_TRY(synchronize());
  free_empty_slabs();
  CACHALOT_TRY(stitched_.drop_to(0));
  CACHALOT_TRY(stitched_.unmap_dropped(true));
  const StitchedCache::HeldParts held(stitched_);
  memory_.release_free();
  budget_.released();
  return {};
}

StitchStates StitchAllocator::states() const {
  const std::scoped_lock lock(mutex_);
  return states_;
}

std::uint64_t StitchAllocator::stitched_range_bytes() const {
  const std::scoped_lock lock(mutex_);
  return stitched_.range_bytes();
}

std::uint64_t StitchAllocator::do_used_bytes() const {
  return memory_.heap().used_bytes();
}

Status StitchAllocator::do_check() const {
  CACHALOT_TRY(memory_.heap().check());
  CACHALOT_TRY(small_.heap().check());
  return stitched_.check();
}

}  // namespace cachalot::stitch
