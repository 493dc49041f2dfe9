#include "tier/radix/radix_hashes.h"

#include <string>
#include <vector>

namespace cachalot::tier {
namespace {

using block_hash::BlockHasher;
using block_hash::Digest;

// The digest of 16 bytes that has this hash.
Digest digest_of(const BlockHash& hash) {
  Digest digest;
  for (std::size_t i = 0; i < 8; ++i) {
    digest.bytes[i] = static_cast<std::uint8_t>(hash.high >> (56 - 8 * i));
    digest.bytes[8 + i] = static_cast<std::uint8_t>(hash.low >> (56 - 8 * i));
  }
  return digest;
}

// Hashes the pages of one node after another, as long as they lie one below the other.
class NodeHasher {
 public:
  NodeHasher(RadixTree& tree, BlockHasher& hasher) : tree_(tree), hasher_(hasher) {}

  // Fills in the hashes of `node`; `parent` is the digest of the page before it. Returns that of its last page.
  Digest hash(NodeId node, const Digest& parent) {
    const RadixNode& record = tree_.node(node);
    const bool is_known = !record.hashes.empty();
    if (is_known && parent.size_bytes == 16) return digest_of(record.hashes.view().back());
    hashes_.clear();
    Digest digest = parent;
    for (std::uint32_t page = 0; page < record.pages; ++page) {
      digest = hash_page(record, node, page, digest);
      hashes_.push_back(digest.block_hash());
    }
    if (!is_known) tree_.set_hashes(node, hashes_);
    return digest;
  }

 private:
  Digest hash_page(const RadixNode& record, NodeId node, std::uint32_t page, const Digest& parent) {
    const std::size_t page_tokens = tree_.options().page_tokens;
    const std::span<const Token> tokens = record.tokens.view().subspan(page * page_tokens);
    std::vector<ExtraKey> extra;
    if (record.history.depth + page == 0) {
      if (const std::string_view text = tree_.forest().extra_of(node); !text.empty()) {
        extra.push_back({"extra", std::vector<std::uint8_t>(text.begin(), text.end())});
      }
    }
    return hasher_.next(parent, tokens.first(page_tokens), extra);
  }

  RadixTree& tree_;
  BlockHasher& hasher_;
  std::vector<BlockHash> hashes_;
};

}  // namespace

void fill_hashes(RadixTree& tree, NodeId node, BlockHasher& hasher) {
  std::vector<NodeId> path;
  tree.forest().append_path(node, path);
  NodeHasher nodes(tree, hasher);
  Digest digest = hasher.root();
  for (const NodeId each : path) digest = nodes.hash(each, digest);
}

}  // namespace cachalot::tier
