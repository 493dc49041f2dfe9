#include "node/archive/pool_payloads.h"

#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "memory/fused_hash.h"

namespace cachalot::node {

using memory::kLineBytes;
using pool::padded_bytes;

void PoolPayloads::Free::operator()(std::byte* data) const {
  std::free(data);
}

void PoolPayloads::reserve_staging(std::size_t blocks) {
  constexpr std::uint64_t kPage = 4096;  // storage takes aligned pieces without a copy
  staging_stride_ = (access_.geometry.block_bytes + kPage - 1) / kPage * kPage;
  if (blocks <= staging_blocks_) return;
  staging_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, blocks * staging_stride_)));
  CACHALOT_CHECK(staging_ != nullptr);
  staging_blocks_ = blocks;
}

void PoolPayloads::read(pool::ValidatedRead& read) {
  pieces_.assign(read.found().size(), {});
  if (!is_direct_) reserve_staging(read.found().size());
  for (std::size_t i = 0; i < read.found().size(); ++i) {
    const pool::Entry& entry = read.found()[i].entry;
    memory::FusedHash hash(padded_bytes(entry.length));
    memory::FusedHash* const hashed = read.has_checksum(i) ? &hash : nullptr;
    std::uint64_t left = entry.length, at = 0;
    access_.for_each_extent(entry.block, padded_bytes(entry.length),
                            [&](std::byte* from, std::uint64_t bytes) {
                              if (is_direct_) {
                                if (hashed != nullptr) hash.update(from, bytes);
                                pieces_[i].push_back({from, std::min(bytes, left)});
                              } else {
                                access_.domain().read_bulk(staged(i) + at, from, bytes, hashed);
                              }
                              at += bytes;
                              left -= std::min(bytes, left);
                            });
    if (!is_direct_) pieces_[i].push_back({staged(i), entry.length});
    if (hashed != nullptr && !read.check_bytes(i, hash.finish())) return;
  }
}

void PoolPayloads::begin_write(std::span<const Target> targets) {
  targets_.assign(targets.begin(), targets.end());
  rooms_.assign(targets.size(), {});
  if (!is_direct_) reserve_staging(targets.size());
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (!is_direct_) {
      rooms_[i].push_back({staged(i), targets[i].length});
      continue;
    }
    std::uint64_t left = targets[i].length;
    access_.for_each_extent(targets[i].block, padded_bytes(left),
                            [&](std::byte* to, std::uint64_t bytes) {
                              rooms_[i].push_back({to, std::min(bytes, left)});
                              left -= std::min(bytes, left);
                            });
  }
}

std::uint64_t PoolPayloads::finish_write(std::size_t i) {
  const auto block = targets_[i].block;
  const auto length = targets_[i].length;
  const std::uint64_t padded = padded_bytes(length);
  memory::FusedHash hash(padded);
  if (!is_direct_) std::memset(staged(i) + length, 0, padded - length);
  std::uint64_t at = 0;
  access_.for_each_extent(block, padded, [&](std::byte* to, std::uint64_t bytes) {
    if (is_direct_) {
      if (at + bytes > length) std::memset(to + (length - at), 0, at + bytes - length);
      hash.update(to, bytes);
    } else {
      access_.domain().write_bulk(to, staged(i) + at, bytes, &hash);
    }
    at += bytes;
  });
  return hash.finish();
}

}  // namespace cachalot::node
