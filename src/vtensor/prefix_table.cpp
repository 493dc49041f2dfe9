#include "vtensor/prefix_table.h"

#include <algorithm>
#include <utility>

namespace cachalot::vtensor {

std::uint64_t PrefixTable::owned_before(std::uint64_t p, const Block& block) const {
  return layout_.full_chunks(p, block.number * block_tokens_);
}
std::uint64_t PrefixTable::owned_until(std::uint64_t p, const Block& block) const {
  return layout_.full_chunks(p, (block.number + 1) * block_tokens_);
}

// A hash below another parent is another block, whatever made them equal.
PrefixTable::Block* PrefixTable::find_block(const Block* parent, const BlockHash& hash,
                                            std::uint64_t number) {
  const auto found = blocks_.find(hash);
  if (found == blocks_.end()) return nullptr;
  Block* const block = found->second.get();
  return block->parent == parent && block->number == number ? block : nullptr;
}

std::vector<PrefixTable::Block*> PrefixTable::path(std::span<const BlockHash> hashes) {
  std::vector<Block*> path;
  const Block* parent = nullptr;
  for (const BlockHash& hash : hashes) {
    Block* const block = find_block(parent, hash, path.size());
    if (block == nullptr) break;
    path.push_back(block);
    parent = block;
  }
  return path;
}

// Only blocks of one path have the same last_use, and only the last of them can be a leaf.
void PrefixTable::use(std::span<Block* const> path) {
  if (path.empty()) return;
  ++uses_;
  if (path.back()->children == 0) {
    leaves_.erase(path.back()->last_use);
    leaves_.emplace(uses_, path.back());
  }
  for (Block* const block : path) block->last_use = uses_;
}

PrefixTable::Found PrefixTable::find(std::span<const BlockHash> hashes, std::uint64_t most_tokens) {
  Found found;
  if (block_tokens_ == 0) return found;
  std::vector<Block*> blocks = path(hashes);
  found.tokens = std::min(blocks.size() * block_tokens_, most_tokens);
  if (!with_tails_) found.tokens = layout_.without_tail(found.tokens);
  blocks.resize((found.tokens + block_tokens_ - 1) / block_tokens_);
  if (blocks.empty()) return found;
  use(blocks);
  collect_full(blocks, found);
  if (with_tails_) collect_tails(*blocks.back(), found);
  found.last = blocks.back();
  return found;
}

void PrefixTable::collect_full(std::span<Block* const> path, Found& found) const {
  std::vector<std::uint64_t> next(path.size());  // of each block: its first chunk of plane p
  for (std::uint64_t p = 0; p < layout_.planes(); ++p) {
    const std::uint64_t full = layout_.full_chunks(p, found.tokens);
    found.full.counts.push_back(full);
    for (std::size_t i = 0; i < path.size(); ++i) {
      const std::uint64_t begin = owned_before(p, *path[i]), end = owned_until(p, *path[i]);
      for (std::uint64_t chunk = begin; chunk < std::min(end, full); ++chunk) {
        found.full.chunks.push_back(path[i]->owned[next[i] + chunk - begin]);
      }
      next[i] += end - begin;
    }
  }
}

// The tail begins in the first chunk that is not full: one that the last block owns, or its tail.
void PrefixTable::collect_tails(const Block& last, Found& found) const {
  std::uint64_t owned = 0, tails = 0;
  for (std::uint64_t p = 0; p < layout_.planes(); ++p) {
    const std::uint64_t full = layout_.full_chunks(p, found.tokens);
    const std::uint64_t bytes = layout_.tail_bytes(p, found.tokens);
    const std::uint64_t begin = owned_before(p, last), end = owned_until(p, last);
    if (bytes != 0) {
      const Chunk& chunk = full < end ? last.owned[owned + full - begin] : last.tails[tails];
      found.tails.push_back({.plane = p, .bytes = bytes, .chunk = chunk});
    }
    owned += end - begin;
    if (layout_.tail_bytes(p, (last.number + 1) * block_tokens_) != 0) ++tails;
  }
}

void PrefixTable::add(Block& block, const MappedPlanes& planes, std::vector<Chunk>& references) {
  for (std::uint64_t p = 0; p < layout_.planes(); ++p) {
    const std::span<const Chunk> chunks = planes.plane(p);
    const std::uint64_t begin = owned_before(p, block), end = owned_until(p, block);
    for (std::uint64_t chunk = begin; chunk < end; ++chunk) block.owned.push_back(chunks[chunk]);
    const bool has_tail = layout_.tail_bytes(p, (block.number + 1) * block_tokens_) != 0;
    if (with_tails_ && has_tail) block.tails.push_back(chunks[end]);
  }
  references.insert(references.end(), block.owned.begin(), block.owned.end());
  references.insert(references.end(), block.tails.begin(), block.tails.end());
}

PrefixTable::Recorded PrefixTable::record(std::span<const BlockHash> hashes,
                                          const MappedPlanes& planes) {
  Recorded recorded;
  std::vector<Block*> blocks = path(hashes);
  for (std::size_t number = blocks.size(); number < hashes.size(); ++number) {
    auto [place, is_new] = blocks_.try_emplace(hashes[number]);
    if (!is_new) break;  // the same hash below another parent: what follows has no way to be found
    Block* const parent = blocks.empty() ? nullptr : blocks.back();
    place->second = std::make_unique<Block>(hashes[number], number, parent);
    add(*place->second, planes, recorded.references);
    if (parent != nullptr && parent->children++ == 0) leaves_.erase(parent->last_use);
    blocks.push_back(place->second.get());
  }
  use(blocks);
  if (!blocks.empty()) recorded.last = blocks.back();
  return recorded;
}

void PrefixTable::pin(Block* block) {
  if (block != nullptr) block->pins += 1;
}

void PrefixTable::unpin(Block* block) {
  if (block != nullptr) block->pins -= 1;
}

// Pinned leaves are passed over: there are no more of them than running requests.
std::optional<std::vector<Chunk>> PrefixTable::evict() {
  const auto leaf = std::find_if(leaves_.begin(), leaves_.end(),
                                 [](const auto& each) { return each.second->pins == 0; });
  if (leaf == leaves_.end()) return std::nullopt;
  Block& block = *leaf->second;
  leaves_.erase(leaf);
  if (block.parent != nullptr && --block.parent->children == 0) {
    leaves_.emplace(block.parent->last_use, block.parent);
  }
  std::vector<Chunk> references = std::move(block.owned);
  references.insert(references.end(), block.tails.begin(), block.tails.end());
  const BlockHash hash = block.hash;
  blocks_.erase(hash);
  return references;
}

}  // namespace cachalot::vtensor
