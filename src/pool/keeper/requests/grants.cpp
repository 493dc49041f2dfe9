#include "pool/keeper/requests/grants.h"

#include <algorithm>
#include <span>

#include "base/fail_point.h"
#include "pool/keeper/requests/message.h"

namespace cachalot::pool {

using base::FailPoint;
using memory::Rule;

namespace {

constexpr std::uint32_t kMostUses =
    kUsesInResponse + (rpc::kMaxMessageLines - 1) * kUsesInFollowing;

void answer_with_uses(rpc::Server& server, std::uint32_t client, std::span<const BlockUse> uses) {
  GrantAnswer answer{};
  const auto count = static_cast<std::uint32_t>(uses.size());
  std::copy_n(uses.data(), std::min(count, kUsesInResponse), answer.uses);
  rpc::FollowingLine following[rpc::kMaxMessageLines];
  std::uint32_t lines = 0;
  for (std::uint32_t i = kUsesInResponse; i < count; i += kUsesInFollowing) {
    UsesFollowing more{};
    std::copy_n(uses.data() + i, std::min(count - i, kUsesInFollowing), more.uses);
    following[lines] = {};
    rpc::store_payload(following[lines++].payload, more);
  }
  answer_with(server, client, answer, static_cast<std::uint16_t>(count), {following, lines});
}

}  // namespace

void Grants::serve_grant(std::uint32_t client, const rpc::RequestHead& head) {
  const Session& session = sessions_[client];
  const std::uint32_t allowed = max_grants_ - std::min(session.granted, max_grants_);
  const std::uint32_t wanted = std::min({std::uint32_t{head.count}, allowed, kMostUses});
  BlockUse uses[kMostUses];
  std::uint32_t count = 0;
  while (count < wanted) {
    const std::uint32_t block = take_free_block();
    if (block == kNoBlock) break;
    uses[count++] = blocks_.grant(block, client, session.incarnation);
  }
  if (count == 0 && allowed == 0) {
    ++counters_[KeeperCounter::kOverLimitGrants];
    return refuse(server_, client, Code::kBusy);
  }
  if (count == 0) {
    ++counters_[KeeperCounter::kNoSpaceGrants];
    evictor_.open_chains().give_way(client);
    return refuse(server_, client, Code::kNoSpace);
  }
  sessions_.add_granted(client, count);
  counters_[KeeperCounter::kGrants] += count;
  base::reach(FailPoint::kGrantPopped);
  blocks_.flush_ledger();
  // Also makes the tombstones of these blocks complete (W4).
  if (!access_.domain().broken(Rule::kGrantBeforeTombstoneComplete)) access_.domain().complete();
  base::reach(FailPoint::kGrantInLedger);
  answer_with_uses(server_, client, {uses, count});
  base::reach(FailPoint::kGrantAnswered);
}

// From the queue, from the limbo, or by evicting one; kNoBlock if all that fails.
std::uint32_t Grants::take_free_block() {
  std::uint32_t block = blocks_.table().pop_free();
  if (block != kNoBlock) return block;
  if (!blocks_.limbo().is_empty()) {
    blocks_.settle_limbo();
    block = blocks_.table().pop_free();
    if (block != kNoBlock) return block;
  }
  // What is evicted under a pin rests: a few such blocks are in store for when the pins end, and to
  // evict ever more for every grant that is asked for would empty the pool.
  if (blocks_.count(BlockState::kLimbo) >= max_grants_) return kNoBlock;
  if (!evictor_.evict_one(kNoBlock)) return kNoBlock;
  blocks_.settle_limbo();
  return blocks_.table().pop_free();
}

void Grants::serve_give_back(std::uint32_t client, const rpc::Message& message) {
  const rpc::RequestHead head = message.head();
  if (head.count == 0 || head.count > most_uses(head.lines))
    return refuse(server_, client, Code::kInvalidArgument);
  bool all_held = true;
  for (std::uint32_t i = 0; i < head.count; ++i) {
    const BlockUse use = use_at(message, i);
    if (!sessions_.holds(client, use)) {
      all_held = false;
      continue;
    }
    sessions_.drop_granted(client);
    blocks_.free(use.block);
  }
  blocks_.flush_ledger();
  access_.domain().order();
  server_.answer(client, all_held ? 0 : status_of(Code::kRefused));
}

}  // namespace cachalot::pool
