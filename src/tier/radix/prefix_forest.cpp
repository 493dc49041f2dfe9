#include "tier/radix/prefix_forest.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/rng.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace cachalot::tier {

NodeId PrefixForest::find_root(const RadixKey& key) const {
  const auto root = roots_.find(std::string(key.extra));
  return root == roots_.end() ? kNoNode : root->second;
}

NodeId PrefixForest::find_or_add_root(const RadixKey& key) {
  const auto [root, is_new] = roots_.try_emplace(std::string(key.extra), kNoNode);
  if (!is_new) return root->second;
  root->second = new_node();
  (*this)[root->second].parent = kNoNode;
  names_[root->second] = &root->first;
  return root->second;
}

std::string_view PrefixForest::extra_of(NodeId node) const {
  while (!(*this)[node].is_root()) node = (*this)[node].parent;
  return *names_.at(node);
}

bool PrefixForest::has_first_page(NodeId node, const Token* tokens) const {
  return std::memcmp((*this)[node].tokens.data(), tokens, page_tokens_ * sizeof(Token)) == 0;
}

std::uint64_t PrefixForest::name_of(NodeId parent, const Token* first_page) const {
  const std::uint64_t page = XXH3_64bits(first_page, page_tokens_ * sizeof(Token));
  return base::mix64(page ^ base::mix64(parent + 1));
}

NodeId PrefixForest::find_child(NodeId parent, const Token* tokens) const {
  const RadixNode& record = (*this)[parent];
  // Most nodes of a conversation have one child: then the table has nothing to add.
  if (record.children < 2) {
    const NodeId child = record.first_child;
    return child != kNoNode && has_first_page(child, tokens) ? child : kNoNode;
  }
  return table_.find(name_of(parent, tokens), [&](NodeId child) {
    return (*this)[child].parent == parent && has_first_page(child, tokens);
  });
}

NodeId PrefixForest::add_child(NodeId parent, std::span<const Token> tokens) {
  const NodeId id = new_node();
  RadixNode& node = (*this)[id];
  const RadixNode& above = (*this)[parent];
  node.tokens = PageItems<Token>(tokens);
  node.pages = static_cast<std::uint32_t>(tokens.size() / page_tokens_);
  node.history.depth = above.history.depth + above.pages;
  link(id, parent);
  table_.add(name_of(parent, node.tokens.data()), id);
  ++size_;
  return id;
}

NodeId PrefixForest::split(NodeId lower, std::uint32_t pages) {
  const NodeId upper = new_node();
  RadixNode& above = (*this)[upper];
  RadixNode& below = (*this)[lower];
  CACHALOT_CHECK(pages > 0 && pages < below.pages);
  const NodeId parent = below.parent;
  const std::uint64_t name = name_of(parent, below.tokens.data());
  table_.remove(name, lower);
  table_.add(name, upper);
  unlink(lower);

  above.pages = pages;
  above.history = below.history;
  above.backup = below.backup;
  above.tokens = below.tokens.split_front(pages * page_tokens_);
  for (std::size_t t = 0; t < kTiers; ++t) {
    if (!below.slots[t].empty()) above.slots[t] = below.slots[t].split_front(pages);
  }
  if (!below.hashes.empty()) above.hashes = below.hashes.split_front(pages);
  below.pages -= pages;
  below.history.depth += pages;

  link(upper, parent);
  link(lower, upper);
  table_.add(name_of(upper, below.tokens.data()), lower);
  ++size_;
  return upper;
}

void PrefixForest::remove(NodeId node) {
  RadixNode& record = (*this)[node];
  CACHALOT_CHECK(record.exists() && record.children == 0 && !record.is_root());
  const NodeId parent = record.parent;
  table_.remove(name_of(parent, record.tokens.data()), node);
  unlink(node);
  drop_id(node);
  --size_;
  if ((*this)[parent].is_root() && (*this)[parent].children == 0) remove_root(parent);
}

void PrefixForest::remove_root(NodeId root) {
  const auto name = names_.find(root);
  roots_.erase(roots_.find(*name->second));
  names_.erase(name);
  drop_id(root);
}

NodeId PrefixForest::new_node() {
  if (!free_ids_.empty()) {
    const NodeId node = free_ids_.back();
    free_ids_.pop_back();
    return node;
  }
  CACHALOT_CHECK(used_ids_ < eviction::kMaxNodes);
  if (used_ids_ % kChunkNodes == 0) chunks_.push_back(std::make_unique<RadixNode[]>(kChunkNodes));
  return used_ids_++;
}

void PrefixForest::drop_id(NodeId node) {
  (*this)[node] = RadixNode();
  free_ids_.push_back(node);
}

void PrefixForest::link(NodeId node, NodeId parent) {
  RadixNode& record = (*this)[node];
  RadixNode& above = (*this)[parent];
  record.parent = parent;
  record.previous_sibling = kNoNode;
  record.next_sibling = above.first_child;
  if (above.first_child != kNoNode) (*this)[above.first_child].previous_sibling = node;
  above.first_child = node;
  ++above.children;
  for (std::size_t t = 0; t < kTiers; ++t)
    above.tier_children[t] += record.slots[t].empty() ? 0 : 1;
}

void PrefixForest::unlink(NodeId node) {
  RadixNode& record = (*this)[node];
  RadixNode& above = (*this)[record.parent];
  if (record.previous_sibling != kNoNode) {
    (*this)[record.previous_sibling].next_sibling = record.next_sibling;
  } else {
    above.first_child = record.next_sibling;
  }
  if (record.next_sibling != kNoNode)
    (*this)[record.next_sibling].previous_sibling = record.previous_sibling;
  --above.children;
  for (std::size_t t = 0; t < kTiers; ++t)
    above.tier_children[t] -= record.slots[t].empty() ? 0 : 1;
}

void PrefixForest::append_subtree(NodeId node, std::vector<NodeId>& nodes) const {
  std::size_t at = nodes.size();
  nodes.push_back(node);
  for (; at < nodes.size(); ++at) {
    for (NodeId child = (*this)[nodes[at]].first_child; child != kNoNode;
         child = (*this)[child].next_sibling) {
      nodes.push_back(child);
    }
  }
}

void PrefixForest::append_path(NodeId node, std::vector<NodeId>& path) const {
  const auto start = static_cast<std::ptrdiff_t>(path.size());
  if (node == kNoNode) return;
  for (; !(*this)[node].is_root(); node = (*this)[node].parent) path.push_back(node);
  std::reverse(path.begin() + start, path.end());
}

std::vector<NodeId> PrefixForest::roots() const {
  std::vector<NodeId> roots;
  for (const auto& [name, root] : roots_) roots.push_back(root);
  return roots;
}

bool PrefixForest::is_valid() const {
  std::vector<NodeId> nodes;
  for (const auto& [name, root] : roots_) {
    const RadixNode& record = (*this)[root];
    if (record.parent != kNoNode || record.pages != 0 || record.children == 0) return false;
    if (names_.count(root) == 0 || *names_.at(root) != name) return false;
    append_subtree(root, nodes);
    if (nodes.size() > used_ids_) return false;
  }
  if (nodes.size() != size_ + roots_.size() || names_.size() != roots_.size()) return false;
  for (const NodeId node : nodes) {
    const RadixNode& record = (*this)[node];
    std::uint32_t children = 0;
    for (NodeId child = record.first_child; child != kNoNode; child = (*this)[child].next_sibling) {
      ++children;
      if ((*this)[child].parent != node) return false;
    }
    if (children != record.children) return false;
    if (record.is_root()) continue;
    const RadixNode& above = (*this)[record.parent];
    if (record.tokens.size() != std::size_t{record.pages} * page_tokens_) return false;
    if (record.history.depth != above.history.depth + above.pages) return false;
    const NodeId found =
        table_.find(name_of(record.parent, record.tokens.data()), [&](NodeId other) {
          return (*this)[other].parent == record.parent &&
                 has_first_page(other, record.tokens.data());
        });
    if (found != node) return false;
  }
  return true;
}

}  // namespace cachalot::tier
