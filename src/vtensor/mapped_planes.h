// The chunks that are mapped in one range: in each plane, side by side from its beginning.
//
// 1. append() maps all it is given, or leaves the planes as they were.
// 2. What the device did not unmap stays in the planes, so that it is not reused, and is_damaged()
//    says so: nothing is appended any more, and truncate() tries again.
// 3. tokens() are only in chunks whose access is known: what stayed mapped by rule 2 is not among them.
// 4. Of each plane the first read_only() chunks can only be read, all others read and written.
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>
#include <vector>

#include "device_memory/backend.h"
#include "vtensor/chunk_store.h"
#include "vtensor/range_layout.h"

namespace cachalot::vtensor {

// Chunks for the planes of a range, those of plane 0 first.
struct PlaneChunks {
  std::vector<std::uint64_t> counts;  // of each plane
  std::vector<Chunk> chunks;
};

class MappedPlanes {
 public:
  // Both outlive it. @param base  of a reserved range of layout.range_bytes()
  MappedPlanes(device_memory::Backend& backend, const RangeLayout& layout,
               device_memory::Address base)
      : backend_(backend), layout_(layout), base_(base), planes_(layout.planes()) {}

  device_memory::Address base() const { return base_; }
  // Whole tokens that all planes have accessible chunks for.
  std::uint64_t tokens() const;
  std::uint64_t chunks() const;
  std::span<const Chunk> plane(std::uint64_t p) const { return planes_[p].chunks; }
  std::uint64_t read_only(std::uint64_t p) const { return planes_[p].read_only; }
  bool has_read_only() const;
  bool is_damaged() const { return is_damaged_; }

  // How many chunks each plane lacks for so many tokens.
  std::vector<std::uint64_t> missing(std::uint64_t tokens) const;

  // Maps `more` behind what is there; kRead only where all before it is read-only.
  // @param  unused  takes those that are not mapped when it fails
  // @cost   a call of the driver a chunk, and one a plane for the access
  Status append(const PlaneChunks& more, device_memory::Access access, std::vector<Chunk>& unused);
  // Unmaps what is behind the chunks of so many tokens. @param freed  takes what was unmapped
  // @cost  a call of the driver a plane
  Status truncate(std::uint64_t tokens, std::vector<Chunk>& freed);
  // The chunks full of the first `tokens` cannot be written here any more; all planes, or none.
  // @cost  a call of the driver a plane
  Status protect(std::uint64_t tokens);
  // Takes it back, but for those full of the first `tokens`. The chunks were not shared.
  void unprotect(std::uint64_t tokens);

 private:
  struct Plane {
    std::vector<Chunk> chunks;
    std::uint64_t accessible = 0;  // the first ones
    std::uint64_t read_only = 0;
  };

  device_memory::Address place(std::uint64_t p, std::uint64_t chunk) const {
    return base_ + layout_.plane(p).at + chunk * layout_.chunk_bytes();
  }
  Status append_to(std::uint64_t p, std::span<const Chunk> more, device_memory::Access access);
  Status cut(std::uint64_t p, std::uint64_t chunks, std::vector<Chunk>& freed);
  Status set_access(std::uint64_t p, std::uint64_t begin, std::uint64_t end,
                    device_memory::Access access);
  void make_writable(std::uint64_t p, std::uint64_t begin);

  device_memory::Backend& backend_;
  const RangeLayout& layout_;
  const device_memory::Address base_;
  std::vector<Plane> planes_;
  bool is_damaged_ = false;
};

}  // namespace cachalot::vtensor
