#include "pool/keeper/requests/commits.h"

#include "base/fail_point.h"
#include "pool/keeper/requests/message.h"

namespace cachalot::pool {

using base::FailPoint;
using memory::Rule;
using rpc::RequestHead;

void Commits::serve(std::uint32_t client, const rpc::Message& message) {
  const RequestHead head = message.head();
  const auto wanted = rpc::load_payload<CommitPayload>(head.payload);
  if (head.count == 0 || head.count > kMaxCommitItems || head.lines != head.count + 1 ||
      (wanted.flags & ~kCommitGoesOn) != 0 || !namespaces_.is_known(wanted.namespace_id)) {
    return refuse(server_, client, Code::kInvalidArgument);
  }
  OpenChains& open_chains = evictor_.open_chains();
  Chain chain{wanted.namespace_id, wanted.has_parent != 0, kNoBlock};
  if (chain.has_parent) {
    chain.parent = directory_.find({wanted.parent_low, wanted.parent_high}, wanted.namespace_id);
  }
  open_chains.close(client, chain.parent);
  CommitAnswer answer{};
  for (std::uint32_t i = 0; i < head.count; ++i) {
    const auto item = rpc::load_payload<CommitItem>(message.following(i).payload);
    answer.verdicts[i] = commit(client, item, chain);
  }
  if ((wanted.flags & kCommitGoesOn) != 0 && chain.parent != kNoBlock) {
    open_chains.open(client, chain.parent);
  }
  // An entry before its ledger record (ledger.h), both before the answer.
  access_.domain().order();
  blocks_.flush_ledger();
  base::reach(FailPoint::kCommitInLedger);
  access_.domain().order();
  answer_with(server_, client, answer, head.count);
  base::reach(FailPoint::kCommitAnswered);
}

// Afterwards the chain ends in the block that now holds the item's hash, or kNoBlock.
Verdict Commits::commit(std::uint32_t client, const CommitItem& item, Chain& chain) {
  const Chain above = chain;
  chain.has_parent = true;
  chain.parent = kNoBlock;
  const BlockHash hash{item.hash_low, item.hash_high};
  const std::uint32_t existing = directory_.find(hash, above.namespace_id);
  if (!sessions_.holds(client, item.use)) {
    // W2: a commit that was done before, and whose answer was lost, is done.
    if (existing != kNoBlock && existing == item.use.block &&
        blocks_.table().use(existing).generation == item.use.generation &&
        !access_.domain().broken(Rule::kCommitNotIdempotent)) {
      chain.parent = existing;
      return Verdict::kCommitted;
    }
    ++counters_[KeeperCounter::kNotHeldCommits];
    return Verdict::kNotHeld;
  }
  const std::uint32_t block = item.use.block;
  if (item.length == 0 || item.length > access_.geometry.block_bytes ||
      (item.flags & ~(kEntryHasChecksum | kItemIsCopy)) != 0) {
    ++counters_[KeeperCounter::kInvalidCommits];
    return reject(client, block, Verdict::kBadItem);
  }
  if (existing != kNoBlock) {
    // The first one wins. A client has just computed it again, so it is wanted.
    evictor_.touch(existing);
    ++counters_[KeeperCounter::kDuplicates];
    return_to_grant(client, block);
    chain.parent = existing;
    return Verdict::kDuplicate;
  }
  if (above.has_parent && above.parent == kNoBlock) {
    ++counters_[KeeperCounter::kNoParentCommits];
    return reject(client, block, Verdict::kNoParent);
  }
  const std::uint32_t slot = make_room(hash, above.namespace_id, above.parent);
  if (slot == DirectoryWriter::kNoSlot) {
    evictor_.open_chains().give_way(client);
    ++counters_[KeeperCounter::kNoSpaceCommits];
    return reject(client, block, Verdict::kNoRoom);
  }
  publish(client, item, above, slot);
  chain.parent = block;
  return Verdict::kCommitted;
}

Verdict Commits::reject(std::uint32_t client, std::uint32_t block, Verdict verdict) {
  ++counters_[KeeperCounter::kRefused];
  return_to_grant(client, block);
  return verdict;
}

void Commits::publish(std::uint32_t client, const CommitItem& item, const Chain& chain,
                      std::uint32_t slot) {
  const std::uint32_t block = item.use.block;
  BlockTable::Record& record = blocks_.table().record(block);
  record.hash = {item.hash_low, item.hash_high};
  record.checksum = item.checksum;
  record.length = item.length;
  record.slot = slot;
  record.parent = chain.parent;
  record.flags = static_cast<std::uint16_t>(item.flags & ~kItemIsCopy);
  base::reach(FailPoint::kCommitChecked);
  blocks_.publish(block, chain.namespace_id);
  sessions_.drop_granted(client);
  evictor_.enter(block, chain.parent, (item.flags & kItemIsCopy) != 0);
  directory_.publish(block);
  ++counters_[KeeperCounter::kCommits];
  namespaces_.add_commit(chain.namespace_id);
}

// A directory slot for one more entry, with the capacity kept; kNoSlot if nothing can be evicted for it.
std::uint32_t Commits::make_room(const BlockHash& hash, std::uint32_t namespace_id,
                                 std::uint32_t parent) {
  if (blocks_.count(BlockState::kLive) >= blocks_.capacity() && !evictor_.evict_one(parent)) {
    return DirectoryWriter::kNoSlot;
  }
  const std::uint32_t slot = directory_.choose_slot(hash, namespace_id);
  if (slot != DirectoryWriter::kNoSlot) return slot;
  // The bucket is full: one of its leaves must be evicted, if it has one.
  if (!evictor_.evict_from_bucket(hash, namespace_id, parent)) return DirectoryWriter::kNoSlot;
  return directory_.choose_slot(hash, namespace_id);
}

// Without a next identity, the client will hear that it holds nothing here.
void Commits::return_to_grant(std::uint32_t client, std::uint32_t block) {
  if (!blocks_.renew(block)) sessions_.drop_granted(client);
}

}  // namespace cachalot::pool
