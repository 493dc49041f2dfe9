#include "kv/cpu/run_batch.h"

#include <algorithm>
#include <cstring>

namespace cachalot::kv {
namespace {

using memory::kLineBytes;

std::byte* line_bytes(memory::Line& line) {
  return reinterpret_cast<std::byte*>(&line);
}

// Puts a run behind `used` others, or makes the last one longer. @return whether it did the latter
bool extend(memory::CopyRun* runs, std::size_t used, const memory::CopyRun& run) {
  if (used != 0) {
    memory::CopyRun& last = runs[used - 1];
    if (static_cast<std::byte*>(last.to) + last.bytes == run.to &&
        static_cast<const std::byte*>(last.from) + last.bytes == run.from) {
      last.bytes += run.bytes;
      return true;
    }
  }
  runs[used] = run;
  return false;
}

}  // namespace

// --- gather

// Lines of two hashes do not go into one call.
void GatherBatch::begin_block(std::span<const memory::Extent> pool, memory::FusedHash* hash) {
  if (hash_ != hash) flush();
  hash_ = hash;
  cursor_ = ExtentCursor(pool);
}

void GatherBatch::add(std::uint64_t pool_offset, const std::byte* from, std::uint64_t bytes) {
  if (filled_ != 0) {
    const std::uint64_t taken = fill_line(from, bytes);
    pool_offset += taken;
    from += taken;
    bytes -= taken;
  }
  const std::uint64_t whole = bytes / kLineBytes * kLineBytes;
  if (whole != 0) add_lines(pool_offset, from, whole);
  if (whole == bytes) return;
  line_offset_ = pool_offset + whole;
  fill_line(from + whole, bytes - whole);
}

// @return how many bytes went into the open line
std::uint64_t GatherBatch::fill_line(const std::byte* from, std::uint64_t bytes) {
  const std::uint64_t taken = std::min<std::uint64_t>(bytes, kLineBytes - filled_);
  memory::Line& line = lines_[lines_used_];
  std::memcpy(line_bytes(line) + filled_, from, taken);
  filled_ += taken;
  if (filled_ == kLineBytes) {
    filled_ = 0;
    ++lines_used_;
    add_lines(line_offset_, line_bytes(line), kLineBytes);
    if (lines_used_ == kLines) flush();
  }
  return taken;
}

void GatherBatch::add_lines(std::uint64_t pool_offset, const std::byte* from, std::uint64_t bytes) {
  while (bytes != 0) {
    const memory::Extent room = cursor_.find(pool_offset);
    const std::uint64_t piece = std::min(bytes, room.bytes);
    if (!extend(runs_, runs_used_, {room.at, from, piece}) && ++runs_used_ == kRuns) flush();
    pool_offset += piece;
    from += piece;
    bytes -= piece;
  }
}

void GatherBatch::flush() {
  domain_.write_runs(runs_, runs_used_, hash_);
  // The open line moves to the front.
  if (lines_used_ != 0) lines_[0] = lines_[lines_used_];
  runs_used_ = lines_used_ = 0;
}

void GatherBatch::end_block() {
  if (filled_ == 0) return;
  constexpr std::byte kZeros[kLineBytes] = {};
  fill_line(kZeros, kLineBytes - filled_);
}

// --- scatter

void ScatterBatch::begin_block(std::span<const memory::Extent> pool, memory::FusedHash* hash) {
  if (hash_ != hash) flush();
  hash_ = hash;
  cursor_ = ExtentCursor(pool);
  line_offset_ = ~std::uint64_t{0};
}

void ScatterBatch::add(std::uint64_t pool_offset, std::byte* to, std::uint64_t bytes) {
  if (hash_ == nullptr) return add_run(pool_offset, to, bytes);
  // The hash wants lines, each once: those that several fragments share are read into one of ours.
  if (pool_offset % kLineBytes != 0) {
    const std::uint64_t taken = take_from_line(pool_offset, to, bytes);
    pool_offset += taken;
    to += taken;
    bytes -= taken;
  }
  const std::uint64_t whole = bytes / kLineBytes * kLineBytes;
  if (whole != 0) add_run(pool_offset, to, whole);
  if (whole != bytes) take_from_line(pool_offset + whole, to + whole, bytes - whole);
}

// @return how many bytes of the fragment are in the line
std::uint64_t ScatterBatch::take_from_line(std::uint64_t pool_offset, std::byte* to,
                                           std::uint64_t bytes) {
  const std::uint64_t within = pool_offset % kLineBytes;
  const std::uint64_t taken = std::min<std::uint64_t>(bytes, kLineBytes - within);
  if (pieces_used_ == kPieces) flush();
  if (line_offset_ != pool_offset - within) {
    if (lines_used_ == kLines) flush();
    line_offset_ = pool_offset - within;
    ++lines_used_;
    add_run(line_offset_, line(lines_used_ - 1), kLineBytes);
  }
  pieces_[pieces_used_++] = {to, line(lines_used_ - 1) + within, taken};
  return taken;
}

void ScatterBatch::add_run(std::uint64_t pool_offset, std::byte* to, std::uint64_t bytes) {
  while (bytes != 0) {
    const memory::Extent room = cursor_.find(pool_offset);
    const std::uint64_t piece = std::min(bytes, room.bytes);
    const bool full = !extend(runs_, runs_used_, {to, room.at, piece}) && ++runs_used_ == kRuns;
    pool_offset += piece;
    to += piece;
    bytes -= piece;
    if (full) flush();
  }
}

void ScatterBatch::prepare() {
  if (domain_.kind() == memory::DomainKind::kCoherent) return;
  memory::Extent extents[kRuns];
  for (std::size_t i = 0; i < runs_used_; ++i) {
    // The domain only reads through these.
    auto* const at = static_cast<std::byte*>(const_cast<void*>(runs_[i].from));
    extents[i] = {at, runs_[i].bytes};
  }
  domain_.prepare_read(extents, runs_used_);
}

void ScatterBatch::flush() {
  if (preparation_ == Preparation::kByBatch) prepare();
  domain_.read_prepared(runs_, runs_used_, hash_);
  for (std::size_t i = 0; i < pieces_used_; ++i) {
    std::memcpy(pieces_[i].to, pieces_[i].from, pieces_[i].bytes);
  }
  // More of the last line may be asked for.
  if (lines_used_ > 1) std::memcpy(line(0), line(lines_used_ - 1), kLineBytes);
  lines_used_ = std::min<std::size_t>(lines_used_, 1);
  runs_used_ = pieces_used_ = 0;
}

}  // namespace cachalot::kv
