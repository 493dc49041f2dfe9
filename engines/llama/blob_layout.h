// What a block looks like: llama.cpp's state of one sequence of block_tokens cells, where V is not
// transposed. All of it but the rows and the positions is the same in every block of a context, so it
// is learnt from one block, and others are compared with it before llama.cpp parses them.
//
//   u32 magic | i32 sequence          the sequence it was cut out by; not looked at
//   u32 streams = 1 | u32 cells
//   cells x { i32 position | u32 sequences = 1 | i32 sequence }
//   u32 v_transposed = 0 | u32 layers
//   layers x { i32 type of K | u64 bytes of a row | cells x row }
//   layers x { i32 type of V | u64 bytes of a row | cells x row }      absent where K holds V, too (MLA)
//
// @source  llama.cpp 0.5.0, llama_kv_cache::state_write
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cachalot::llama {

class BlobLayout {
 public:
  // Learns the layout from the state of a sequence of `block_tokens` cells.
  // @errors kUnsupported: with what it is that cannot be cut into blocks, or is not known
  static Result<BlobLayout> learn(std::span<const std::byte> blob, std::uint32_t block_tokens);

  std::uint64_t bytes() const { return bytes_; }
  std::uint32_t layers() const { return layers_; }

  // For the namespace: types and bytes of all rows.
  std::string describe() const;

  // True if these bytes() bytes are a block at positions [position, position + block_tokens), in this
  // order: rows in another order would be added up in another order.
  bool holds(const std::byte* blob, std::int64_t position) const;

 private:
  struct Section {
    std::uint64_t offset;
    std::int32_t type;
    std::uint64_t row_bytes;
  };

  std::uint32_t magic_ = 0, cells_ = 0, layers_ = 0;
  std::uint64_t bytes_ = 0;
  std::vector<Section> sections_;
};

// How many streams the state of a sequence says that its cache has; 0: it is too short to say.
std::uint32_t streams_of(std::span<const std::byte> blob);

}  // namespace cachalot::llama
