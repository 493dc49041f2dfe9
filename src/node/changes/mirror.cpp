#include "node/changes/mirror.h"

#include <algorithm>

#include "pool/reader/published_blocks.h"

namespace cachalot::node {

using pool::kNoBlock;

bool Mirror::publish(const pool::PublishedBlock& block) {
  Block& known = blocks_[block.use.block];
  const bool is_known = known.namespace_id == block.namespace_id && known.hash == block.hash &&
                        known.generation == block.use.generation;
  if (is_known) return false;
  size_ += known.namespace_id == 0;
  known = {block.hash, block.use.generation, block.parent, block.namespace_id};
  return true;
}

bool Mirror::remove(std::uint32_t block, const BlockHash& hash) {
  Block& known = blocks_[block];
  if (known.namespace_id == 0 || known.hash != hash) return false;
  known = {};
  --size_;
  return true;
}

bool Mirror::read_anew(ChangeQueue& changes, std::uint64_t loss) {
  Change change;
  while (changes.take(loss, change)) {
  }
  read_directory();
  // Each block's last change decides, whether the scan saw it before or after.
  for (const std::uint64_t end = changes.end(); changes.take(end, change);) {
    if (change.kind == Change::Kind::kRemoved) remove(change.block.use.block, change.block.hash);
    if (change.kind == Change::Kind::kPublished) publish(change.block);
  }
  return !changes.has_lost();
}

void Mirror::read_directory() {
  std::fill(blocks_.begin(), blocks_.end(), Block{});
  size_ = 0;
  pool::for_each_published(access_, [this](const pool::Entry& entry) {
    publish({{entry.hash_low, entry.hash_high},
             {entry.block, entry.generation},
             entry.parent,
             entry.namespace_id});
  });
}

std::vector<Run> Mirror::runs(std::size_t most) const {
  std::vector<Run> runs;
  std::vector<bool> is_done(blocks_.size());
  std::vector<std::uint32_t> path;
  for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
    path.clear();
    std::uint32_t at = block;
    while (at != kNoBlock && blocks_[at].namespace_id != 0 && !is_done[at]) {
      is_done[at] = true;
      path.push_back(at);
      at = blocks_[at].parent;
    }
    std::reverse(path.begin(), path.end());
    for (std::size_t done = 0; done < path.size(); done += most) {
      const std::size_t end = std::min(path.size(), done + most);
      runs.push_back({blocks_[path[done]].namespace_id,
                      blocks_[path[done]].parent,
                      {path.begin() + static_cast<std::ptrdiff_t>(done),
                       path.begin() + static_cast<std::ptrdiff_t>(end)}});
    }
  }
  std::stable_sort(runs.begin(), runs.end(),
                   [](const Run& a, const Run& b) { return a.namespace_id < b.namespace_id; });
  return runs;
}

}  // namespace cachalot::node
