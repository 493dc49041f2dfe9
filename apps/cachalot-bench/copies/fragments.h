// What copies between an engine's pages and the pool are measured on: a paged cache of a model's
// geometry in memory of its own, pool memory beside it, and blocks at random places in both.
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kv/cpu/cpu_engine.h"
#include "measure.h"
#include "memory/devices.h"
#include "plain_copies.h"

namespace cachalot::apps::bench {

struct Model {
  std::string name;  // "Qwen3-32B/16"
  geometry::KvGeometry geometry;
  const char* layout;
};

// A preset's geometry, named after it, its ranks and its block; of layers as many as fit 8 MiB.
// bf16.
Model model_of(const char* preset, std::uint32_t block_tokens, std::uint32_t tp_size = 1);
// 128 fragments of 20 KB.
Model synthetic_model();

class PagedBench {
 public:
  // @errors kNoSpace; as EngineCache
  static Result<PagedBench> make(const Model& model, std::uint64_t own_bytes,
                                 std::uint64_t pool_bytes);

  const kv::EngineCache& cache() const { return cache_; }
  std::uint64_t block_bytes() const { return cache_.geometry().block_bytes(); }

  // How many blocks have room in the pool, and where each is.
  std::uint64_t places() const { return pool_.bytes_each() / padded_block_bytes(); }
  memory::Extent place(std::uint64_t number) const {
    return {pool_.base(0) + number * padded_block_bytes(), padded_block_bytes()};
  }

  // Another random block: where it is in the pool, and in which pages. Valid until the next call.
  kv::BlockCopy next();

  // The fragments of the block that next() gave, found once and moved to its places.
  struct Piece {
    std::byte *own, *pool;
    std::uint64_t bytes;
  };
  const std::vector<Piece>& pieces();

 private:
  struct Found {
    std::uint64_t own_offset, pool_offset, bytes;  // for page 0
    std::byte* base;
    std::uint64_t page_stride;
  };
  PagedBench(memory::DeviceSet pool, PrivateMemory own, kv::EngineCache cache)
      : pool_(std::move(pool)), own_(std::move(own)), cache_(std::move(cache)) {}

  std::uint64_t padded_block_bytes() const { return (block_bytes() + 63) / 64 * 64; }

  memory::DeviceSet pool_;
  PrivateMemory own_;
  kv::EngineCache cache_;
  std::vector<Found> found_;
  std::vector<Piece> pieces_;
  std::vector<std::uint32_t> pages_;
  memory::Extent extent_{};
  base::Rng rng_{1};
};

// The best that plain copies can do with the same fragments: each fragment copied by itself, with
// one fence for the block and, without coherence, the flushes that make it right, once for the
// block.
void copy_pieces_in(Copy copy, memory::DomainKind domain,
                    const std::vector<PagedBench::Piece>& pieces);
void copy_pieces_out(Copy copy, memory::DomainKind domain,
                     const std::vector<PagedBench::Piece>& pieces);

}  // namespace cachalot::apps::bench
