#include "testing/memory/lossy_host.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "testing/memory/lossy_memory.h"

namespace cachalot::memory {
namespace {

constexpr std::uint64_t kDeviceAlignmentBytes = std::uint64_t{2} << 20;
constexpr std::size_t kPieceLines = 64;  // bulk copies go through a buffer of this size

// Calls f(i) for every i below count, from a random start on and round: caches see the accesses of
// one operation in any order.
template <class F>
void for_each_rotated(std::size_t count, base::Rng& rng, F&& f) {
  const std::size_t start = count > 1 ? rng.below(count) : 0;
  for (std::size_t i = start; i < count; ++i) f(i);
  for (std::size_t i = 0; i < start; ++i) f(i);
}

}  // namespace

LossyHost::LossyHost(LossyMemory& memory)
    : memory_(memory),
      cache_(memory.device()),
      buffer_(memory.device().lines()),
      // Twice the size, so that what runs off the end of a device meets nothing.
      device_shift_(static_cast<unsigned>(
          std::bit_width(std::max(memory.options().bytes_each, kDeviceAlignmentBytes)))),
      addresses_((std::uint64_t{memory.options().devices} << device_shift_) + kDeviceAlignmentBytes,
                 PROT_NONE) {
  const auto reserved = reinterpret_cast<std::uintptr_t>(addresses_.data());
  base_ = addresses_.data() + (-reserved & (kDeviceAlignmentBytes - 1));
}

PoolView LossyHost::view() const {
  PoolView view;
  view.bytes_each = memory_.options().bytes_each;
  for (std::uint64_t device = 0; device < memory_.options().devices; ++device) {
    view.bases.push_back(reinterpret_cast<std::byte*>(base_ + (device << device_shift_)));
  }
  return view;
}

// The device line behind an address of this host; `count` lines must lie inside one device.
std::uint64_t LossyHost::line_number(const void* at, std::size_t count) const {
  const LossyMemory::Options& options = memory_.options();
  const std::uint64_t address =
      reinterpret_cast<std::uintptr_t>(at) - reinterpret_cast<std::uintptr_t>(base_);
  const std::uint64_t device = address >> device_shift_;
  const std::uint64_t offset = address - (device << device_shift_);
  CACHALOT_CHECK(device < options.devices && offset % kLineBytes == 0);
  CACHALOT_CHECK(offset <= options.bytes_each);
  CACHALOT_CHECK(count <= (options.bytes_each - offset) / kLineBytes);
  return (device * options.bytes_each + offset) / kLineBytes;
}

// One spontaneous event.
void LossyHost::act_up() {
  const Adversary& adversary = memory_.options().adversary;
  base::Rng& rng = memory_.rng();
  const std::uint64_t kind =
      rng.below(adversary.drain_weight + adversary.prefetch_weight + adversary.evict_weight);
  if (kind < adversary.drain_weight) {
    WriteBuffer::Drained drained;
    for (std::uint64_t words = 1 + rng.below(16); words > 0; --words) {
      if (!buffer_.drain_any(rng, adversary.whole_line_drain, drained)) break;
      reach_device(drained);
    }
    return;
  }
  // Near what was used lately, seldom anywhere.
  const std::uint64_t lines = memory_.device().lines();
  const bool near = !rng.chance(1.0 / 16);
  std::uint64_t line = near ? cache_.recent(rng) : rng.below(lines);
  if (kind - adversary.drain_weight < adversary.prefetch_weight) {
    if (near) line = std::min(line + rng.below(16), lines - 1);
    cache_.fetch(line);
    ++memory_.counts().prefetched;
  } else if (cache_.has(line)) {
    cache_.drop(line);
    ++memory_.counts().evicted;
  }
}

// --- writes

void LossyHost::write(std::uint64_t line, const Line& value) {
  const Adversary& adversary = memory_.options().adversary;
  memory_.tick();
  ++memory_.counts().lines_written;
  cache_.used(line);
  if (broken(Rule::kR2NothingDirty)) return write_cached(line, value);
  buffer_.put(memory_.scheduler().current(), line, value);
  WriteBuffer::Drained drained;
  while (buffer_.lines() > adversary.buffer_lines &&
         buffer_.drain_any(memory_.rng(), adversary.whole_line_drain, drained)) {
    reach_device(drained);
  }
}

// Plain stores: they make the line dirty, and it stays so until it is dropped.
void LossyHost::write_cached(std::uint64_t line, const Line& value) {
  for (unsigned word = 0; word < 8; ++word) {
    if (word > 0 && memory_.rng().chance(memory_.options().adversary.split_load)) {
      memory_.scheduler().yield();
    }
    cache_.store_word(line, word, value.words[word]);
  }
}

void LossyHost::write_lines(void* to, const Line* lines, std::size_t count) {
  const std::uint64_t first = line_number(to, count);
  for (std::size_t i = 0; i < count; ++i) write(first + i, lines[i]);
}

void LossyHost::write_bulk(void* to, const void* from, std::size_t bytes, FusedHash* hash) {
  CACHALOT_CHECK(bytes % kLineBytes == 0);
  const std::uint64_t first = line_number(to, bytes / kLineBytes);
  Line piece[kPieceLines];
  for (std::size_t done = 0; done < bytes; done += sizeof piece) {
    const std::size_t length = std::min(bytes - done, sizeof piece);
    const unsigned char* source = static_cast<const unsigned char*>(from) + done;
    std::memcpy(piece, source, length);
    if (hash != nullptr) hash->update(piece, length);
    for (std::size_t i = 0; i < length / kLineBytes; ++i) {
      write(first + done / kLineBytes + i, piece[i]);
    }
  }
}

// Within a host caches are coherent: its own old copy goes when the store is performed.
void LossyHost::reach_device(const WriteBuffer::Drained& drained) {
  cache_.drop(drained.line);
  memory_.device().store(drained.line, drained.mask, drained.value);
}

void LossyHost::order() {
  memory_.tick();
  if (broken(Rule::kR4OrderBeforePublish)) return;
  const std::uint64_t stamp = buffer_.order(memory_.scheduler().current());
  if (memory_.rng().chance(memory_.options().adversary.order_drains)) drain_through(stamp);
}

void LossyHost::complete() {
  complete_for(memory_.scheduler().current());
}

void LossyHost::complete_for(std::size_t fiber) {
  memory_.tick();
  const std::uint64_t stamp = buffer_.order(fiber);
  if (!broken(Rule::kR4CompleteBeforeTelling)) drain_through(stamp);
  // Loads before it are performed: no later read can overtake them.
  if (fiber < read_times_.size()) read_times_[fiber].current = memory_.device().moment();
}

void LossyHost::drain_through(std::uint64_t stamp) {
  const Adversary& adversary = memory_.options().adversary;
  WriteBuffer::Drained drained;
  while (buffer_.drain_through(stamp, memory_.rng(), adversary.whole_line_drain, drained)) {
    reach_device(drained);
    memory_.tick();
    if (memory_.rng().chance(adversary.drain_yield)) memory_.scheduler().yield();
  }
}

// --- reads

void LossyHost::begin_read() {
  const std::size_t fiber = memory_.scheduler().current();
  const std::uint64_t now = memory_.device().moment();
  if (fiber >= read_times_.size()) read_times_.resize(fiber + 1, {now, now});
  read_times_[fiber] = {read_times_[fiber].current, now};
  if (broken(Rule::kR3FenceBeforeFlush) && loaded_at_.empty()) {
    memory_.device().keep_history();
    loaded_at_.resize(memory_.device().lines());
  }
  // The fence. Readers may not count on it for their own writes: other domains read without one.
  if (buffer_.lines() > 0 && memory_.rng().chance(memory_.options().adversary.read_fence_drains)) {
    drain_through(buffer_.order(fiber));
  }
}

void LossyHost::invalidate(std::uint64_t line) {
  memory_.tick();
  if (!broken(Rule::kR3FlushBeforeRead) && !flushes_late(line)) cache_.drop(line);
}

// True if the flush of this line takes effect after the loads behind it.
bool LossyHost::flushes_late(std::uint64_t line) const {
  if (!broken(Rule::kR3FenceAfterFlush)) return false;
  const ReadTimes& times = read_times_[memory_.scheduler().current()];
  return (base::mix64(line ^ times.current << 20) & 1) != 0;
}
void LossyHost::flush_late(std::uint64_t line) {
  if (flushes_late(line)) cache_.drop(line);
}

void LossyHost::load(std::uint64_t line, Line& out) {
  const Adversary& adversary = memory_.options().adversary;
  base::Rng& rng = memory_.rng();
  LossyCounts& counts = memory_.counts();
  memory_.tick();
  ++counts.lines_loaded;
  if (cache_.has(line)) ++counts.loaded_from_cache;
  cache_.used(line);
  if (rng.chance(adversary.stream_prefetch)) {
    const std::uint64_t end = std::min(line + 2 + rng.below(15), memory_.device().lines());
    for (std::uint64_t next = line + 1; next < end; ++next) cache_.fetch(next);
    counts.prefetched += end - line - 1;
  }
  if (rng.chance(adversary.split_load)) {
    load_split(line, out);
  } else {
    out = cache_.line(line);
    if (buffer_.holds(line)) buffer_.overlay(memory_.scheduler().current(), line, out);
  }
  if (!loaded_at_.empty()) loaded_at_[line] = memory_.device().moment();
  memory_.device().note(line ^ out.words[0] ^ out.words[7]);
}

// Others run between two words, and the line may leave the cache meanwhile.
void LossyHost::load_split(std::uint64_t line, Line& out) {
  ++memory_.counts().split_loads;
  const std::uint64_t split = 1 + memory_.rng().below(7);
  for (unsigned word = 0; word < 8; ++word) {
    if (word == split) {
      memory_.scheduler().yield();
      if (memory_.rng().chance(0.5)) cache_.drop(line);
    }
    Line now = cache_.line(line);
    if (buffer_.holds(line)) buffer_.overlay(memory_.scheduler().current(), line, now);
    out.words[word] = now.words[word];
  }
}

// Rule R3 without its first fence: loads of the read before this one may be performed after this
// one's. Seen from here, this read returns what was there while they were in flight.
void LossyHost::load_early(std::uint64_t line, Line& out) {
  const std::uint64_t last_seen = loaded_at_[line];
  load(line, out);
  base::Rng& rng = memory_.rng();
  if (buffer_.holds(line) || rng.chance(0.5)) return;
  const LossyDevice& device = memory_.device();
  const ReadTimes& times = read_times_[memory_.scheduler().current()];
  const std::uint64_t earliest = std::max(times.previous, last_seen);
  std::uint64_t moment = earliest;
  if (rng.chance(0.5)) moment += rng.below(device.moment() - earliest + 1);
  out = device.line_at(line, moment);
  loaded_at_[line] = moment;
}

template <class LineAt>
void LossyHost::read_each(std::size_t count, LineAt line_at, Line* lines) {
  base::Rng& rng = memory_.rng();
  begin_read();
  for_each_rotated(count, rng, [&](std::size_t i) { invalidate(line_at(i)); });
  for_each_rotated(count, rng, [&](std::size_t i) {
    if (broken(Rule::kR3FenceBeforeFlush)) {
      load_early(line_at(i), lines[i]);
    } else {
      load(line_at(i), lines[i]);
    }
  });
  for (std::size_t i = 0; i < count; ++i) flush_late(line_at(i));
}

void LossyHost::read_lines(const void* from, std::size_t count, Line* lines) {
  const std::uint64_t first = line_number(from, count);
  read_each(
      count, [first](std::size_t i) { return first + i; }, lines);
}

void LossyHost::gather_lines(const void* const* from, std::size_t count, Line* lines) {
  read_each(
      count, [this, from](std::size_t i) { return line_number(from[i], 1); }, lines);
}

void LossyHost::read_bulk(void* to, const void* from, std::size_t bytes, FusedHash* hash) {
  CACHALOT_CHECK(bytes % kLineBytes == 0);
  base::Rng& rng = memory_.rng();
  const std::size_t count = bytes / kLineBytes;
  const std::uint64_t first = line_number(from, count);
  begin_read();
  for_each_rotated(count, rng, [&](std::size_t i) { invalidate(first + i); });
  Line piece[kPieceLines];
  for (std::size_t done = 0; done < count; done += kPieceLines) {
    const std::size_t length = std::min(count - done, kPieceLines);
    for_each_rotated(length, rng, [&](std::size_t i) { load(first + done + i, piece[i]); });
    unsigned char* destination = static_cast<unsigned char*>(to) + done * kLineBytes;
    std::memcpy(destination, piece, length * kLineBytes);
    if (hash != nullptr) hash->update(piece, length * kLineBytes);
  }
  for (std::size_t i = 0; i < count; ++i) flush_late(first + i);
}

}  // namespace cachalot::memory
