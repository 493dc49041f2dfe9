// Trees of token sequences, one for each namespace: nodes, their links, and finding a child by its first page.
//
// 1. A node but a root has pages; a root has children.
// 2. No two children of a node have the same first page.
// 3. A node's tokens are its pages'.
// 4. The table finds each node but the roots by its parent and its first page.
//
// Children are found through one table of all nodes, so that a node of many children costs as one of few.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "eviction/structure/name_table.h"
#include "tier/radix/radix_key.h"
#include "tier/radix/radix_node.h"

namespace cachalot::tier {

// @threads one at a time
// @cost    O(1) each, but for the tokens of a split
class PrefixForest {
 public:
  explicit PrefixForest(std::uint32_t page_tokens) : page_tokens_(page_tokens) {}

  std::uint32_t page_tokens() const { return page_tokens_; }
  // Nodes without the roots.
  std::uint32_t size() const { return size_; }
  // Ids of nodes are below it.
  std::uint32_t capacity_nodes() const {
    return static_cast<std::uint32_t>(chunks_.size()) * kChunkNodes;
  }

  RadixNode& operator[](NodeId node) { return chunks_[node / kChunkNodes][node % kChunkNodes]; }
  const RadixNode& operator[](NodeId node) const {
    return chunks_[node / kChunkNodes][node % kChunkNodes];
  }

  // The root of the key's namespace, or kNoNode.
  NodeId find_root(const RadixKey& key) const;
  NodeId find_or_add_root(const RadixKey& key);
  // The `extra` of a node's namespace.
  std::string_view extra_of(NodeId node) const;

  // The child whose first page is the one that `tokens` start with, or kNoNode.
  // @shape tokens: at least a page
  NodeId find_child(NodeId parent, const Token* tokens) const;
  // @shape tokens: of whole pages
  NodeId add_child(NodeId parent, std::span<const Token> tokens);
  // Puts a new node with the first `pages` pages of `lower` between it and its parent; `lower` keeps the rest.
  // The new node has the history of `lower`, and the front of all that `lower` has for each page.
  NodeId split(NodeId lower, std::uint32_t pages);
  // `node` has no children. Removes its root if that has no other children.
  void remove(NodeId node);

  // Appends `node` and all below it, a parent before its children.
  void append_subtree(NodeId node, std::vector<NodeId>& nodes) const;
  // Appends the path to `node`, root's child first.
  void append_path(NodeId node, std::vector<NodeId>& path) const;
  std::vector<NodeId> roots() const;

  // Checks the invariants. O(nodes).
  bool is_valid() const;

 private:
  static constexpr std::uint32_t kChunkNodes = 1024;

  bool has_first_page(NodeId node, const Token* tokens) const;
  std::uint64_t name_of(NodeId parent, const Token* first_page) const;
  NodeId new_node();
  void drop_id(NodeId node);
  void link(NodeId node, NodeId parent);
  void unlink(NodeId node);
  void remove_root(NodeId root);

  std::uint32_t page_tokens_;
  std::vector<std::unique_ptr<RadixNode[]>> chunks_;  // a record never moves
  std::vector<NodeId> free_ids_;
  std::uint32_t used_ids_ = 0;
  std::uint32_t size_ = 0;
  eviction::NameTable table_;
  std::unordered_map<std::string, NodeId> roots_;         // by namespace
  std::unordered_map<NodeId, const std::string*> names_;  // of roots
};

}  // namespace cachalot::tier
