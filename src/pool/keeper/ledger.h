// The ledger: the holder and generation of each granted block, so that a keeper's successor
// knows which blocks a client may still be storing into.
//
// Written by the ruling keeper into its own area (R1), a line for five neighbouring blocks.
//
// What a successor reads out of a record and the directory together:
//   granted, no entry of this generation  -> the holder may store into it
//   granted, an entry of this generation  -> published (the keeper died between the two lines)
//   live, no entry of this generation     -> evicted: free
//   live, an entry of this generation     -> published
// Therefore a commit writes its entry first and the ledger next, and an eviction needs no line here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "pool/format/access.h"
#include "pool/keeper/block_table.h"

namespace cachalot::pool {

inline constexpr std::uint16_t kUnknownHolder = 0xffff;

class Ledger {
 public:
  Ledger(const Access& access, const BlockTable& blocks) : access_(&access), blocks_(&blocks) {}
  // Once, before anything is written: the keeper area to write into.
  void rule(std::uint32_t area) { keeper_ = area; }

  // Notes that a block's record has changed; flush() writes it.
  void touch(std::uint32_t block);
  // Writes the lines of all touched blocks. Neither ordered nor complete on return.
  void flush();
  // Writes the lines of blocks [first, end); `first` begins a line. @threads any, for other blocks
  void write(std::uint32_t first, std::uint32_t end);

  // What another keeper's area says of a block. A keeper that finished its takeover has written all
  // lines, so one that does not check was damaged or half written: a client may hold its blocks, and
  // they read as quarantined, held by kUnknownHolder.
  static LedgerRecord read(const Access& access, std::uint32_t keeper, std::uint32_t block);
  // The same of blocks from `first`, which begins a line, on: as many as `records`.
  // @cost their lines, read once in order
  static void read(const Access& access, std::uint32_t keeper, std::uint32_t first,
                   std::span<LedgerRecord> records);

 private:
  void write_line_of(std::uint32_t block);

  const Access* access_;
  const BlockTable* blocks_;
  std::uint32_t keeper_ = 0;
  std::vector<std::uint32_t> dirty_;  // first blocks of lines
};

}  // namespace cachalot::pool
