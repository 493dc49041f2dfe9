// Notes: what the client that stores a block says of it besides its payload, which is its tokens.
//
// The note of block b lies beside the directory, has Geometry::note_bytes, and is written under the rules of
// the payload: by the holder of the grant, before the commit (R4). So the tokens of a block outlive the
// keeper. A note counts for one use of its block only: its checksum covers the pool, the place, the hash and
// the generation. A block whose note does not check has no tokens: notes are for reports, and nothing that a
// client loads depends on one.
//
// @threads any
#pragma once

#include <cachalot/hash.h>

#include <cstdint>
#include <span>
#include <vector>

#include "pool/format/access.h"
#include "pool/format/requests.h"

namespace cachalot::pool {

// First bytes of a note; `tokens` 4-byte token ids follow.
struct NoteHead {
  std::uint64_t checksum;  // XXH3-64 of the note's whole lines, with the pool's word in this place
  std::uint64_t hash_low, hash_high;
  std::uint32_t generation;
  std::uint32_t tokens;
};
static_assert(sizeof(NoteHead) == 32);

// How many tokens a note has room for.
constexpr std::uint32_t most_note_tokens(const Geometry& geometry) {
  if (geometry.note_bytes == 0) return 0;
  return (geometry.note_bytes - std::uint32_t{sizeof(NoteHead)}) / 4;
}

// Writes the note of a use that the caller holds; the order() before the commit covers it.
// @param tokens  at most most_note_tokens()
void write_note(const Access& access, const BlockUse& use, const BlockHash& hash,
                std::span<const std::uint32_t> tokens);

// Reads the tokens of this use of a block.
// @return false: it has no note, or the note is of another use or damaged; then `tokens` is empty
bool read_note(const Access& access, const BlockUse& use, const BlockHash& hash,
               std::vector<std::uint32_t>& tokens);

// Where the note of a block lies on device 0.
inline std::uint64_t note_offset(const Access& access, std::uint32_t block) {
  return access.layout.notes + std::uint64_t{block} * access.geometry.note_bytes;
}
// Whether the block's note says that it is of this use, be it damaged or not.
bool note_names(const Access& access, const BlockUse& use, const BlockHash& hash);
// Clears the note of a block into which no client stores. The caller orders it.
void clear_note(const Access& access, std::uint32_t block);

}  // namespace cachalot::pool
