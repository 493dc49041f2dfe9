#include "tier/radix/radix_tree.h"

#include <algorithm>

#include "base/check.h"

namespace cachalot::tier {

RadixTree::RadixTree(const RadixOptions& options)
    : options_(options),
      nodes_(options.page_tokens, options.device_order, options.host_order),
      backups_(nodes_) {
  CACHALOT_CHECK(options.page_tokens > 0);
}

// Calls visit(node, pages) for each node that agrees with the key, `pages` of it, the last perhaps in part.
template <class Visit>
RadixTree::Walk RadixTree::walk(const RadixKey& key, Visit&& visit) const {
  const std::size_t page_tokens = options_.page_tokens, pages = whole_pages(key);
  Walk walk{.node = nodes_.forest().find_root(key)};
  if (walk.node == kNoNode) return walk;
  while (walk.pages < pages) {
    const std::span<const Token> rest = key.tokens.subspan(walk.pages * page_tokens);
    const NodeId child = nodes_.forest().find_child(walk.node, rest.data());
    if (child == kNoNode) return walk;
    const RadixNode& record = nodes_[child];
    const std::size_t tokens = common_tokens(record.tokens.view(), rest);
    const std::size_t same = std::min(tokens / page_tokens, pages - walk.pages);
    visit(child, static_cast<std::uint32_t>(same));
    if (same < record.pages) {
      walk.partial = child;
      walk.partial_pages = static_cast<std::uint32_t>(same);
      return walk;
    }
    walk.node = child;
    walk.pages += record.pages;
  }
  return walk;
}

// Takes the next node of a path into a match, `pages` of it.
void RadixTree::extend(RadixMatch& match, NodeId node, std::uint32_t pages) const {
  const RadixNode& record = nodes_[node];
  const bool is_on_device = record.is_in(Tier::kDevice);
  (is_on_device ? match.device_pages : match.host_pages) += pages;
  if (pages < record.pages) return;
  match.node = node;
  if (is_on_device) match.device_node = node;
}

RadixMatch RadixTree::match(const RadixKey& key, MatchSlots* slots) {
  path_.clear();
  const Walk end = walk(key, [&](NodeId node, std::uint32_t) { path_.push_back(node); });
  if (end.partial != kNoNode) path_.back() = nodes_.split(end.partial, end.partial_pages);
  ++now_;
  RadixMatch match;
  for (const NodeId node : path_) {
    const RadixNode& record = nodes_[node];
    nodes_.touch(node, now_, false);
    extend(match, node, record.pages);
    if (slots == nullptr) continue;
    const Tier tier = record.is_in(Tier::kDevice) ? Tier::kDevice : Tier::kHost;
    const std::span<const Slot> own = record.slots[index(tier)].view();
    std::vector<Slot>& to = tier == Tier::kDevice ? slots->device : slots->host;
    to.insert(to.end(), own.begin(), own.end());
  }
  return match;
}

RadixMatch RadixTree::peek(const RadixKey& key) const {
  RadixMatch match;
  walk(key, [&](NodeId node, std::uint32_t pages) { extend(match, node, pages); });
  return match;
}

Status RadixTree::check_insert(const RadixKey& key, std::size_t slots,
                               const InsertOptions& options) const {
  const std::size_t pages = whole_pages(key);
  if (options.owned_pages > pages) {
    return Error::make(Code::kInvalidArgument,
                       "radix insert: %u owned pages; expected at most the key's %zu",
                       options.owned_pages, pages);
  }
  if (slots < pages - options.owned_pages) {
    return Error::make(Code::kInvalidArgument, "radix insert: %zu slots; expected %zu, one a page",
                       slots, pages - options.owned_pages);
  }
  if (!options.hashes.empty() && options.hashes.size() < pages) {
    return Error::make(Code::kInvalidArgument, "radix insert: %zu hashes; expected %zu, one a page",
                       options.hashes.size(), pages);
  }
  if (options.tier == Tier::kDevice && options.owned_pages > 0) {
    std::uint32_t owned = 0;
    walk(key.first(options.owned_pages * std::size_t{options_.page_tokens}),
         [&](NodeId node, std::uint32_t pages_of_it) {
           if (nodes_[node].is_in(Tier::kDevice)) owned += pages_of_it;
         });
    if (owned < options.owned_pages) {
      return Error::make(Code::kStale,
                         "radix insert: %u of %u owned pages are in device memory; expected all",
                         owned, options.owned_pages);
    }
  }
  return {};
}

Result<Inserted> RadixTree::insert(const RadixKey& key, std::span<const Slot> slots,
                                   const InsertOptions& options, std::vector<Slot>& surplus) {
  CACHALOT_TRY(check_insert(key, slots.size(), options));
  const auto pages = static_cast<std::uint32_t>(whole_pages(key));
  const std::uint32_t given_pages = pages - options.owned_pages;
  Inserted result;
  path_.clear();
  const Walk end = walk(key, [&](NodeId node, std::uint32_t) { path_.push_back(node); });
  if (end.partial != kNoNode) path_.back() = nodes_.split(end.partial, end.partial_pages);
  ++now_;
  for (const NodeId node : path_) insert_node(node, slots, options, result, surplus);

  const std::uint32_t known = end.pages + end.partial_pages;
  if (known < pages) {
    const NodeId parent = path_.empty() ? nodes_.find_or_add_root(key) : path_.back();
    const std::uint32_t skipped = options.owned_pages > known ? options.owned_pages - known : 0;
    if (skipped == 0 && nodes_.may_be_below(parent, options.tier)) {
      eviction::LeafHistory history;
      history.stored_at = history.used_at = now_;
      history.uses = options.counts_use ? 1 : 0;
      history.priority = options.priority;
      result.node = nodes_.add_leaf(
          parent,
          key.tokens.subspan(known * std::size_t{options_.page_tokens},
                             (pages - known) * std::size_t{options_.page_tokens}),
          options.tier, slots.subspan(known - options.owned_pages, pages - known),
          options.hashes.empty() ? options.hashes : options.hashes.subspan(known, pages - known),
          history);
      result.new_pages = pages - known;
    } else {
      const auto refused =
          slots.subspan(known + skipped - options.owned_pages, pages - known - skipped);
      surplus.insert(surplus.end(), refused.begin(), refused.end());
      result.refused_pages += pages - known - skipped;
    }
  }
  const std::span<const Slot> tail = slots.subspan(given_pages);
  surplus.insert(surplus.end(), tail.begin(), tail.end());
  return result;
}

// `slots` are those of the key from options.owned_pages on.
void RadixTree::insert_node(NodeId node, std::span<const Slot> slots, const InsertOptions& options,
                            Inserted& result, std::vector<Slot>& surplus) {
  const RadixNode& record = nodes_[node];
  const std::uint32_t begin = record.history.depth, end = begin + record.pages;
  result.node = node;
  nodes_.touch(node, now_, options.counts_use);
  nodes_.raise_priority(node, options.priority);
  if (record.hashes.empty() && !options.hashes.empty())
    nodes_.set_hashes(node, options.hashes.subspan(begin, record.pages));

  const std::uint32_t first = std::max(begin, options.owned_pages);
  if (first >= end) return;
  const std::span<const Slot> given = slots.subspan(first - options.owned_pages, end - first);
  if (record.is_in(options.tier)) {
    const std::span<const Slot> own =
        record.slots[index(options.tier)].view().subspan(first - begin);
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (given[i] != own[i]) surplus.push_back(given[i]);
    }
    result.present_pages += end - first;
  } else if (first == begin && nodes_.may_be_below(record.parent, options.tier)) {
    nodes_.put(options.tier, node, given);
    result.adopted_pages += end - first;
  } else {
    surplus.insert(surplus.end(), given.begin(), given.end());
    result.refused_pages += end - first;
  }
}

Status RadixTree::attach(Tier tier, NodeId node, std::span<const Slot> slots) {
  CACHALOT_CHECK(exists(node));
  const RadixNode& record = nodes_[node];
  if (slots.size() != record.pages) {
    return Error::make(Code::kInvalidArgument, "radix attach: %zu slots for node %u; expected %u",
                       slots.size(), node, record.pages);
  }
  if (record.is_in(tier))
    return Error::make(Code::kRefused, "radix attach: node %u is in the tier already", node);
  if (!nodes_.may_be_below(record.parent, tier)) {
    return Error::make(Code::kRefused,
                       "radix attach: the parent of node %u is not in the tier; attach it first",
                       node);
  }
  nodes_.put(tier, node, slots);
  return {};
}

Status RadixTree::detach(Tier tier, NodeId node, FreedSlots& freed) {
  CACHALOT_CHECK(exists(node));
  const RadixNode& record = nodes_[node];
  const Tier other = tier == Tier::kDevice ? Tier::kHost : Tier::kDevice;
  if (!record.is_in(tier))
    return Error::make(Code::kNotFound, "radix detach: node %u is not in the tier", node);
  if (record.is_locked(tier))
    return Error::make(Code::kBusy, "radix detach: node %u is locked in the tier", node);
  if (!record.is_in(other)) {
    return Error::make(Code::kRefused,
                       "radix detach: no other tier has node %u; back it up first, or evict it",
                       node);
  }
  if (tier == Tier::kDevice && record.tier_children[index(tier)] != 0) {
    return Error::make(Code::kRefused,
                       "radix detach: %u children of node %u are in the tier; expected none",
                       record.tier_children[index(tier)], node);
  }
  nodes_.drop(tier, node, freed);
  return {};
}

// False: it stays, because a host copy below it is locked.
bool RadixTree::evict_from_device(NodeId node, FreedSlots& freed, const UnbackedHandler& unbacked) {
  const bool is_backed =
      nodes_[node].is_in(Tier::kHost) || (unbacked && unbacked(node) == UnbackedVictim::kBackedUp);
  if (is_backed) {
    CACHALOT_CHECK(nodes_[node].is_in(Tier::kHost));
    nodes_.drop(Tier::kDevice, node, freed);
    return true;
  }
  if (nodes_[node].is_locked(Tier::kHost)) return false;
  remove_all(node, freed);
  return true;
}

std::uint64_t RadixTree::evict(Tier tier, std::uint64_t pages, FreedSlots& freed,
                               const UnbackedHandler& unbacked) {
  const std::uint64_t before = use(tier).pages;
  std::vector<NodeId> skipped;
  while (before - use(tier).pages < pages) {
    const NodeId node = nodes_.first_leaf(tier);
    if (node == kNoNode) break;
    if (tier == Tier::kHost) {
      nodes_.remove(node, freed);
      continue;
    }
    if (evict_from_device(node, freed, unbacked)) continue;
    nodes_.pass_over(tier, node);
    skipped.push_back(node);
  }
  for (const NodeId node : skipped) nodes_.settle(node);
  return before - use(tier).pages;
}

void RadixTree::remove_all(NodeId node, FreedSlots& freed) {
  if (nodes_[node].children == 0) return nodes_.remove(node, freed);
  std::vector<NodeId> nodes;
  nodes_.forest().append_subtree(node, nodes);
  for (std::size_t i = nodes.size(); i > 0; --i) nodes_.remove(nodes[i - 1], freed);
}

Status RadixTree::clear(FreedSlots& freed) {
  if (held_locks() != 0) {
    return Error::make(Code::kBusy, "radix clear: %llu locks are held; expected none",
                       static_cast<unsigned long long>(held_locks()));
  }
  nodes_.clear(freed);
  return {};
}

}  // namespace cachalot::tier
