#include "pool/format/notes.h"

#include <algorithm>
#include <cstring>

#include "memory/fused_hash.h"

namespace cachalot::pool {
namespace {

using memory::kLineBytes;
using memory::Line;

constexpr std::uint32_t kTokensInFirstLine = (kLineBytes - sizeof(NoteHead)) / 4;
constexpr std::uint32_t kTokensInLine = kLineBytes / 4;

std::size_t lines_of(std::uint32_t tokens) {
  return 1 + (std::size_t{tokens} - std::min(tokens, kTokensInFirstLine) + kTokensInLine - 1) /
                 kTokensInLine;
}

// Stands in the checksum's place while it is computed: a note of another pool, or of another block, does not
// check.
std::uint64_t word_of_place(const Access& access, std::uint32_t block) {
  return access.id.low ^ (access.id.high << 1) ^ ~note_offset(access, block);
}

NoteHead head_of(const std::vector<Line>& lines) {
  NoteHead head;
  std::memcpy(&head, lines.data(), sizeof head);
  return head;
}

std::uint64_t checksum_of(std::vector<Line>& lines, std::uint64_t word) {
  lines[0].words[0] = word;
  return memory::hash_lines(lines.data(), lines.size() * kLineBytes);
}

}  // namespace

void write_note(const Access& access, const BlockUse& use, const BlockHash& hash,
                std::span<const std::uint32_t> tokens) {
  const auto count = static_cast<std::uint32_t>(tokens.size());
  std::vector<Line> lines(lines_of(count));
  const NoteHead head{0, hash.low, hash.high, use.generation, count};
  std::memcpy(lines.data(), &head, sizeof head);
  if (count != 0) {
    std::memcpy(reinterpret_cast<std::byte*>(lines.data()) + sizeof head, tokens.data(),
                tokens.size_bytes());
  }
  lines[0].words[0] = checksum_of(lines, word_of_place(access, use.block));
  access.domain().write_bulk(access.region.at(note_offset(access, use.block)), lines.data(),
                             lines.size() * kLineBytes);
}

bool read_note(const Access& access, const BlockUse& use, const BlockHash& hash,
               std::vector<std::uint32_t>& tokens) {
  tokens.clear();
  const std::uint32_t most = most_note_tokens(access.geometry);
  if (most == 0) return false;
  const std::byte* const from = access.region.at(note_offset(access, use.block));
  std::vector<Line> lines(1);
  access.domain().read_bulk(lines.data(), from, kLineBytes);
  NoteHead head = head_of(lines);
  const bool is_of_use = head.hash_low == hash.low && head.hash_high == hash.high &&
                         head.generation == use.generation && head.tokens <= most;
  if (!is_of_use) return false;
  lines.resize(lines_of(head.tokens));
  access.domain().read_bulk(lines.data(), from, lines.size() * kLineBytes);
  if (const NoteHead again = head_of(lines); std::memcmp(&again, &head, sizeof head) != 0) {
    return false;
  }
  if (checksum_of(lines, word_of_place(access, use.block)) != head.checksum) return false;
  tokens.resize(head.tokens);
  if (head.tokens != 0) {
    std::memcpy(tokens.data(), reinterpret_cast<const std::byte*>(lines.data()) + sizeof head,
                head.tokens * sizeof(std::uint32_t));
  }
  return true;
}

bool note_names(const Access& access, const BlockUse& use, const BlockHash& hash) {
  if (access.geometry.note_bytes == 0) return false;
  std::vector<Line> lines(1);
  access.domain().read_bulk(lines.data(), access.region.at(note_offset(access, use.block)),
                            kLineBytes);
  const NoteHead head = head_of(lines);
  return head.hash_low == hash.low && head.hash_high == hash.high &&
         head.generation == use.generation;
}

void clear_note(const Access& access, std::uint32_t block) {
  access.domain().write_line(access.region.at(note_offset(access, block)), Line{});
}

}  // namespace cachalot::pool
