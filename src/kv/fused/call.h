// What one launch of a fused copy is told, and how its work is numbered: the same on a GPU and in its
// emulation. A call's blocks are taken apart into items, pieces of fragments that one worker copies:
//
//   item  ->  block              ->  fragment (kv/fragment.h)  ->  at most item_bytes of it
//
// 1. The items of a call cover what it copies, each byte once; some have no bytes.
// 2. Items are cut where the pool's 16-byte units are: a unit is copied by one thread, and lies in
//    one line of the pool, so in one piece of a block.
#pragma once

#include <cstdint>

#include "kv/fragment.h"

namespace cachalot::kv {

inline constexpr std::uint32_t kUnitBytes = 16;  // the widest access of a thread

// Where the bytes of a block from `offset` on are, up to the next piece's. Behind the last piece of a
// block stands one that only ends it.
struct PoolPiece {
  std::uint64_t at;  // as the device addresses it
  std::uint64_t offset;
};

// A block of a call; behind the last one stands one that only ends it.
struct CallBlock {
  std::uint64_t first_item;  // a block has fewer than 2^32
  std::uint32_t first_piece, first_page;
  std::uint32_t first_token, tokens;  // 0 tokens: all of the block's
};

// What a launch is told by value. Its tables (kv/fused/tables.h) are in the device's memory, or come with it.
struct FusedCall {
  Plan plan;
  std::uint64_t tables;  // the device's address, 16-byte aligned; 0: they come with the launch
  std::uint64_t pieces_at, tensors_at, pages_at, tokens_at;  // in the tables; the blocks are first
  std::uint64_t items;
  std::uint64_t block_bytes, padded_bytes;
  std::uint32_t block_count;
  std::uint32_t items_per_fragment;
  std::uint32_t item_bytes;  // a multiple of kUnitBytes
  std::uint32_t lanes;       // threads that copy an item together
  std::uint32_t
      block_items;  // of each block; 0: not all have as many, or `items` is no number of 32 bits
};

// A kernel's only parameter. Tables that fit need no copy of their own, which would be a second engine's work
// that the kernel has to wait for.
inline constexpr std::uint32_t kLaunchBytes = 4096;  // what a kernel may have at most
inline constexpr std::uint32_t kInlineTableBytes =
    kLaunchBytes - (sizeof(FusedCall) + 15) / 16 * 16;
struct FusedLaunch {
  FusedCall call;
  alignas(16) unsigned char tables[kInlineTableBytes];
};
static_assert(sizeof(FusedLaunch) == kLaunchBytes && kInlineTableBytes > 3500);

// A call, and its tables where the device has them.
struct CallView {
  const FusedCall& call;
  const CallBlock* blocks;
  const PoolPiece* pieces;
  const std::uint64_t* tensors;  // base addresses
  const std::uint32_t* pages;
  const std::uint32_t* tokens;

  CACHALOT_HOST_DEVICE explicit CallView(const FusedLaunch& launch)
      : CallView(launch.call, launch.call.tables != 0
                                  ? launch.call.tables
                                  : reinterpret_cast<std::uint64_t>(launch.tables)) {}
  CACHALOT_HOST_DEVICE CallView(const FusedCall& of, std::uint64_t tables)
      : call(of),
        blocks(reinterpret_cast<const CallBlock*>(tables)),
        pieces(reinterpret_cast<const PoolPiece*>(tables + of.pieces_at)),
        tensors(reinterpret_cast<const std::uint64_t*>(tables + of.tensors_at)),
        pages(reinterpret_cast<const std::uint32_t*>(tables + of.pages_at)),
        tokens(reinterpret_cast<const std::uint32_t*>(tables + of.tokens_at)) {}

  CACHALOT_HOST_DEVICE const FusedCall* operator->() const { return &call; }
};

// What one worker copies: `bytes` in one piece on the engine's side. Empty ones have 0 bytes.
struct Item {
  std::uint64_t engine;       // address
  std::uint64_t pool_offset;  // in the block
  std::uint64_t bytes;
  const PoolPiece* piece;  // that pool_offset is in
};

// The block that an item belongs to.
// @cost  a division; of blocks that differ log2(blocks) reads of the table, each of which waits for the one before
CACHALOT_HOST_DEVICE inline std::uint32_t block_of_item(const CallView& call, std::uint64_t item) {
  if (call->block_items != 0) return static_cast<std::uint32_t>(item) / call->block_items;
  std::uint32_t first = 0, last = call->block_count;
  while (last - first > 1) {
    const std::uint32_t middle = first + (last - first) / 2;
    if (call.blocks[middle].first_item <= item) {
      first = middle;
    } else {
      last = middle;
    }
  }
  return first;
}

// The piece that holds an offset, at `piece` or behind it.
CACHALOT_HOST_DEVICE inline const PoolPiece* piece_at(const PoolPiece* piece,
                                                      std::uint64_t offset) {
  while (piece[1].offset <= offset) ++piece;
  return piece;
}

CACHALOT_HOST_DEVICE inline std::uint64_t address_in(const PoolPiece& piece, std::uint64_t offset) {
  return piece.at + (offset - piece.offset);
}

CACHALOT_HOST_DEVICE inline Item item_of(const CallView& call, std::uint64_t index) {
  const CallBlock& block = call.blocks[block_of_item(call, index)];
  const auto in_block = static_cast<std::uint32_t>(index - block.first_item);
  const std::uint32_t* const chosen = block.tokens == 0 ? nullptr : call.tokens + block.first_token;
  const std::uint32_t number = in_block / call->items_per_fragment;
  const Fragment found = fragment(call->plan, number, chosen, block.tokens);
  // Cut where the pool's units are: the first item is shorter where the fragment begins inside one.
  const std::uint64_t head = found.pool_offset % kUnitBytes;
  const std::uint64_t begin =
      std::uint64_t{in_block - number * call->items_per_fragment} * call->item_bytes;
  const std::uint64_t end = begin + call->item_bytes;
  const std::uint64_t first = begin < head ? 0 : begin - head;
  const std::uint64_t last = end - head < found.bytes ? end - head : found.bytes;
  Item item{};
  if (first >= last) return item;
  item.engine = call.tensors[found.tensor] + found.engine_offset +
                call.pages[block.first_page + found.page] * found.page_stride + first;
  item.pool_offset = found.pool_offset + first;
  item.bytes = last - first;
  item.piece = piece_at(call.pieces + block.first_piece, item.pool_offset);
  return item;
}

// How many bytes behind an item become zero: what is behind the block's last byte in its last line.
CACHALOT_HOST_DEVICE inline std::uint64_t padding_behind(const CallView& call, const Item& item) {
  return item.pool_offset + item.bytes == call->block_bytes ? call->padded_bytes - call->block_bytes
                                                            : 0;
}

}  // namespace cachalot::kv
