// Publishing: how a granted block becomes an entry that every client sees.

#include <algorithm>

#include "base/fail_point.h"
#include "pool/keeper/keeper.h"

namespace cachalot::pool {

using base::FailPoint;
using memory::Rule;
using rpc::RequestHead;

void Keeper::serve_commit(std::uint32_t client, const rpc::Message& message) {
  const RequestHead head = message.head();
  const auto chain = rpc::load_payload<CommitPayload>(head.payload);
  if (head.count == 0 || head.count > kMaxCommitItems || head.lines != head.count + 1 ||
      (chain.flags & ~kCommitGoesOn) != 0 || !is_namespace(chain.namespace_id)) {
    return refuse(client, Code::kInvalidArgument);
  }
  CommitAnswer answer{};
  bool has_parent = chain.has_parent != 0;
  std::uint32_t parent = kNoBlock;
  if (has_parent)
    parent = directory_.find({chain.parent_low, chain.parent_high}, chain.namespace_id);
  open_chains_.close(client, parent);
  for (std::uint32_t i = 0; i < head.count; ++i) {
    const auto item = rpc::load_payload<CommitItem>(message.following(i).payload);
    std::uint32_t published_in = kNoBlock;
    answer.verdicts[i] = commit(client, chain.namespace_id, item, has_parent, parent, published_in);
    has_parent = true;
    parent = published_in;
  }
  if ((chain.flags & kCommitGoesOn) != 0 && parent != kNoBlock) open_chains_.open(client, parent);
  // An entry before its ledger record (ledger.h), both before the answer.
  access_.domain().order();
  ledger_.flush();
  base::reach(FailPoint::kCommitInLedger);
  access_.domain().order();
  unsigned char payload[sizeof answer];
  std::memcpy(payload, &answer, sizeof answer);
  server_.answer(client, 0, head.count, payload, {});
  base::reach(FailPoint::kCommitAnswered);
}

// @param published_in  the block that now holds the hash, or kNoBlock
Verdict Keeper::commit(std::uint32_t client, std::uint32_t namespace_id, const CommitItem& item,
                       bool has_parent, std::uint32_t parent, std::uint32_t& published_in) {
  const BlockHash hash{item.hash_low, item.hash_high};
  const std::uint32_t existing = directory_.find(hash, namespace_id);
  if (!holds(client, item.use)) {
    // W2: a commit that was done before, and whose answer was lost, is done.
    if (existing != kNoBlock && existing == item.use.block &&
        blocks_.use(existing).generation == item.use.generation &&
        !access_.domain().broken(Rule::kCommitNotIdempotent)) {
      published_in = existing;
      return Verdict::kCommitted;
    }
    return Verdict::kNotHeld;
  }
  const std::uint32_t block = item.use.block;
  if (item.length == 0 || item.length > access_.geometry.block_bytes ||
      (item.flags & ~std::uint32_t{kEntryHasChecksum}) != 0) {
    ++counters_[KeeperCounter::kRefused];
    return_to_grant(block);
    return Verdict::kBadItem;
  }
  if (existing != kNoBlock) {
    // The first one wins. A client has just computed it again, so it is wanted.
    policy_->touch(existing);
    ++counters_[KeeperCounter::kDuplicates];
    return_to_grant(block);
    published_in = existing;
    return Verdict::kDuplicate;
  }
  if (has_parent && parent == kNoBlock) {
    ++counters_[KeeperCounter::kRefused];
    return_to_grant(block);
    return Verdict::kNoParent;
  }
  const std::uint32_t slot = make_room(hash, namespace_id, parent);
  if (slot == DirectoryWriter::kNoSlot) {
    ++counters_[KeeperCounter::kRefused];
    open_chains_.give_way(client);
    return_to_grant(block);
    return Verdict::kNoRoom;
  }

  BlockTable::Record& record = blocks_.record(block);
  record.hash = hash;
  record.checksum = item.checksum;
  record.length = item.length;
  record.slot = slot;
  record.parent = parent;
  record.flags = static_cast<std::uint16_t>(item.flags);
  base::reach(FailPoint::kCommitChecked);
  blocks_.set_namespace(block, namespace_id);
  blocks_.set_state(block, BlockState::kLive);
  --sessions_[client].granted;
  enter_tree(block, parent);
  directory_.publish(block);
  ledger_.touch(block);
  ++counters_[KeeperCounter::kCommits];
  published_in = block;
  return Verdict::kCommitted;
}

// A directory slot for one more entry, with the capacity kept; kNoSlot if nothing may go for it.
std::uint32_t Keeper::make_room(const BlockHash& hash, std::uint32_t namespace_id,
                                std::uint32_t parent) {
  if (blocks_.count(BlockState::kLive) >= access_.geometry.capacity_blocks && !evict_one(parent)) {
    return DirectoryWriter::kNoSlot;
  }
  std::uint32_t slot = directory_.choose_slot(hash, namespace_id);
  if (slot != DirectoryWriter::kNoSlot) return slot;
  // The bucket is full: a leaf of the bucket must go, if it has one.
  std::uint32_t leaf = kNoBlock;
  directory_.for_each_in_bucket(hash, namespace_id, [&](std::uint32_t block) {
    const bool may_go = block != parent && policy_->residency().is_leaf(block) &&
                        !open_chains_.has_tail(block) && !is_pinned(block);
    if (may_go) leaf = block;
  });
  if (leaf == kNoBlock) return DirectoryWriter::kNoSlot;
  ++counters_[KeeperCounter::kBucketEvictions];
  evict(leaf);
  return directory_.choose_slot(hash, namespace_id);
}

// The block stays the client's, for another use: a new generation, recorded before the answer (W3).
void Keeper::return_to_grant(std::uint32_t block) {
  const std::uint32_t generation = blocks_.use(block).generation;
  ledger_.touch(block);
  if (generation == kLastGeneration) {
    // There is no next identity; the client will hear that it holds nothing here.
    --sessions_[blocks_.record(block).holder].granted;
    return blocks_.set_state(block, BlockState::kBad);
  }
  if (access_.domain().broken(Rule::kReturnedBlockKeepsGeneration)) return;
  blocks_.set_generation(block, generation + 1);
}

}  // namespace cachalot::pool
