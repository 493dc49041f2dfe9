#include "cache_sim/belady.h"

#include "base/huge_allocator.h"
#include "cache_sim/hit_tokens.h"
#include "cache_sim/stream/block_nodes.h"
#include "eviction/structure/indexed_heap.h"

namespace cachalot::cache_sim {

Result<Belady> Belady::make(const std::string& directory) {
  CACHALOT_TRY_ASSIGN(auto log, SpillVector<std::uint32_t>::make(directory));
  CACHALOT_TRY_ASSIGN(auto next_use, SpillVector<std::uint32_t>::make(directory));
  CACHALOT_TRY_ASSIGN(auto requests, SpillVector<Request>::make(directory));
  return Belady(std::move(log), std::move(next_use), std::move(requests));
}

Status Belady::add(std::span<const std::uint32_t> path, std::uint64_t input_tokens) {
  if (path.size() >= kNever - log_.size()) {
    return Error::make(
        Code::kUnsupported,
        "policy: opt looks ahead over at most %u references, and this trace has more", kNever - 1);
  }
  for (const std::uint32_t block : path) CACHALOT_TRY(log_.push_back(block));
  return requests_.push_back({input_tokens, static_cast<std::uint32_t>(path.size()), 0});
}

Status Belady::look_ahead(std::uint32_t distinct_blocks) {
  CACHALOT_TRY(next_use_.resize(log_.size()));
  base::HugeVector<std::uint32_t> last(distinct_blocks, kNever);
  for (std::uint64_t i = log_.size(); i-- > 0;) {
    next_use_[i] = last[log_[i]];
    last[log_[i]] = static_cast<std::uint32_t>(i);
  }
  return {};
}

Belady::Hits Belady::hits(std::uint64_t capacity_blocks, std::uint64_t block_tokens,
                          std::uint64_t warmup_requests) const {
  BlockNodes nodes;
  eviction::IndexedHeap heap;
  Hits hits;
  std::uint64_t at = 0;
  for (std::uint64_t r = 0; r < requests_.size(); ++r) {
    const Request& request = requests_[r];
    std::uint32_t prefix = 0, blocks = 0;
    for (std::uint32_t place = 0; place < request.blocks; ++place, ++at) {
      // Lowest is what is used last. Of those that are never used again each would do; that the deepest
      // goes keeps what is left a tree.
      const eviction::Rank rank{kNever - next_use_[at], kNever - place};
      const std::uint32_t block = log_[at];
      if (const eviction::NodeId node = nodes.find(block); node != eviction::kNoNode) {
        heap.update(node, rank);
        ++blocks;
        if (prefix == place) ++prefix;
        continue;
      }
      if (nodes.size() >= capacity_blocks) {
        const eviction::NodeId victim = heap.top();
        if (rank.first <= heap.rank(victim).first) continue;  // this one itself is used last
        heap.erase(victim);
        nodes.remove(victim);
      }
      const eviction::NodeId node = nodes.add(block);
      heap.grow(nodes.room());
      heap.push(node, rank);
    }
    if (r < warmup_requests) continue;
    hits.blocks += blocks;
    hits.prefix += prefix;
    hits.tokens += hit_tokens(prefix, block_tokens, request.input_tokens);
  }
  return hits;
}

}  // namespace cachalot::cache_sim
