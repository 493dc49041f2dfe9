#include "pool/keeper/keeper.h"

#include <algorithm>

#include "base/fail_point.h"
#include "base/log.h"
#include "pool/keeper/keeper_line.h"

namespace cachalot::pool {

using base::FailPoint;
using memory::Rule;
using rpc::Message;
using rpc::RequestHead;

namespace {

std::uint16_t status_of(Code code) {
  return static_cast<std::uint16_t>(code);
}

Op op_of(const Message& message) {
  return static_cast<Op>(rpc::op_of(message.lines[0]));
}

// Namespace and first block use of a kTouch message, by words (UsesPayload).
std::uint32_t touched_namespace(const Message& message) {
  return static_cast<std::uint32_t>(message.lines[0].words[rpc::kRequestPayloadWord]);
}
BlockUse first_use(const Message& message) {
  const std::uint64_t* words = message.lines[0].words + rpc::kRequestPayloadWord;
  return {static_cast<std::uint32_t>(words[0] >> 32), static_cast<std::uint32_t>(words[1])};
}

// The i-th block use of a kTouch or kGiveBack message.
BlockUse use_at(const Message& message, std::uint32_t i) {
  if (i < kUsesInHead) return rpc::load_payload<UsesPayload>(message.head().payload).uses[i];
  const std::uint32_t j = i - kUsesInHead;
  return rpc::load_payload<UsesFollowing>(message.following(j / kUsesInFollowing).payload)
      .uses[j % kUsesInFollowing];
}

// How many uses a message of so many lines has room for.
std::uint32_t most_uses(std::uint32_t lines) {
  return kUsesInHead + (lines - 1) * kUsesInFollowing;
}

}  // namespace

Keeper::Keeper(const Access& access, const KeeperOptions& options, base::Clock& clock,
               Evidence* evidence, eviction::PolicyKind policy)
    : access_(access),
      options_(options),
      clock_(&clock),
      evidence_(evidence),
      inherited_(access.geometry.blocks),
      blocks_(access.geometry.blocks),
      directory_(access_, blocks_),
      ledger_(access_, blocks_),
      server_(access_.region, access.geometry.clients),
      sessions_(access.geometry.clients),
      limbo_(access_) {
  make_policy(policy);
}

Keeper::~Keeper() {
  stop();
}

std::uint32_t Keeper::poll() {
  if (deposed_ || epoch_ == 0) return 0;
  const std::uint32_t served = server_.poll(*this);
  if (++polls_ % options_.polls_between_clock_reads == 0) {
    const std::uint64_t now = clock_->now_ns();
    if (now >= next_tend_ns_) {
      next_tend_ns_ = now + options_.tend_interval_ns;
      tend();
    }
  }
  return served;
}

void Keeper::tend() {
  if (deposed_ || notice_successor()) return;
  if (serving_) counters_[KeeperCounter::kRepairedLines] += mend_keeper_line(access_, slot_, line_);
  look_after_clients();
  const std::uint64_t now_ns = clock_->now_ns();
  if (now_ns >= next_watch_ns_) {
    next_watch_ns_ = now_ns + options_.watch_interval_ns;
    watch_clients(now_ns);
  }
  settle_limbo();
  if (serving_) expire();
  if (serving_ && options_.scrub_lines != 0) {
    counters_[KeeperCounter::kRepairedLines] += directory_.scrub(scrub_at_, options_.scrub_lines);
    scrub_at_ += options_.scrub_lines;
    if (scrub_at_ >= access_.geometry.directory_slots) scrub_at_ = 0;
  }
  counters().publish(access_.region, access_.layout.keeper_counters(slot_), ++counters_sequence_);
}

const KeeperCounters& Keeper::counters() {
  counters_[KeeperCounter::kFree] = blocks_.count(BlockState::kFree);
  counters_[KeeperCounter::kGranted] = blocks_.count(BlockState::kGranted);
  counters_[KeeperCounter::kLive] = blocks_.count(BlockState::kLive);
  counters_[KeeperCounter::kLimbo] = blocks_.count(BlockState::kLimbo);
  counters_[KeeperCounter::kQuarantined] = blocks_.count(BlockState::kQuarantined);
  counters_[KeeperCounter::kBad] = blocks_.count(BlockState::kBad);
  counters_[KeeperCounter::kClients] = static_cast<std::uint64_t>(std::count_if(
      sessions_.begin(), sessions_.end(), [](const Session& s) { return s.incarnation != 0; }));
  counters_[KeeperCounter::kNamespaces] = namespaces_.size();
  counters_[KeeperCounter::kMalformed] = server_.malformed();
  return counters_;
}

std::uint64_t Keeper::memory_bytes() const {
  return blocks_.memory_bytes() + directory_.memory_bytes() + blocks_.size() * std::uint64_t{16};
}

bool Keeper::is_valid() const {
  if (!blocks_.is_valid() || !directory_.is_valid() || !policy_->is_valid()) return false;
  if (blocks_.count(BlockState::kLive) > access_.geometry.capacity_blocks) return false;
  const eviction::Residency& tree = policy_->residency();
  if (tree.size() != blocks_.count(BlockState::kLive)) return false;
  for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
    const bool is_live = blocks_.use(block).state == BlockState::kLive;
    if (tree.contains(block) != is_live) return false;
    if (is_live && tree.parent(block) != blocks_.record(block).parent) return false;
  }
  return true;
}

void Keeper::on_requests(std::uint32_t client, std::span<const Message> messages) {
  counters_[KeeperCounter::kRequests] += messages.size();
  while (!messages.empty() && server_.is_open(client)) {
    std::size_t done = 0;
    if (op_of(messages[0]) == Op::kTouch) {
      done = serve_touches(client, messages);
    } else {
      on_other(client, messages[0]);
      done = 1;
    }
    messages = messages.subspan(done);
  }
}

void Keeper::refuse(std::uint32_t client, Code code) {
  server_.answer(client, status_of(code));
}

void Keeper::on_other(std::uint32_t client, const Message& message) {
  const RequestHead head = message.head();
  if (head.epoch != epoch_) return refuse(client, Code::kStale);  // W5
  switch (static_cast<Op>(head.op)) {
    case Op::kNamespace:
      return serve_namespace(client, head);
    case Op::kGrant:
      return serve_grant(client, head);
    case Op::kGiveBack:
      return serve_give_back(client, message);
    case Op::kCommit:
      return serve_commit(client, message);
    case Op::kEvict:
      return serve_evict(client, head);
    case Op::kDetach:
      server_.answer(client, 0);
      close_session(client, true, "detached");
      limbo_.forget(client);
      return base::reach(FailPoint::kDetachFreed);
    case Op::kStop:
      stop_requested_ = true;
      return server_.answer(client, 0);
    case Op::kPing:
      return server_.answer(client, 0);
    case Op::kFence:
      return serve_fence(client, head);
    case Op::kTouch:
      break;
  }
  refuse(client, Code::kInvalidArgument);
}

// Touches come in long runs; their cache misses are overlapped: first each one's own records,
// then the neighbours in the list of use, then the work.
std::size_t Keeper::serve_touches(std::uint32_t client, std::span<const Message> messages) {
  std::size_t run = 0;
  while (run < messages.size() && op_of(messages[run]) == Op::kTouch) ++run;
  if (run > 1 && lru_ != nullptr) prefetch_touched(messages.first(run));

  std::uint16_t status = 0;
  std::uint32_t alike = 0;  // answers of that status not yet given
  for (std::size_t i = 0; i < run; ++i) {
    const std::uint16_t answer = serve_touch(messages[i]);
    if (answer != status && alike != 0) {
      server_.answer(client, status, alike);
      alike = 0;
    }
    status = answer;
    ++alike;
  }
  server_.answer(client, status, alike);
  return run;
}

void Keeper::prefetch_touched(std::span<const Message> messages) {
  for (const Message& message : messages) {
    const std::uint32_t block = first_use(message).block;
    if (block >= blocks_.size()) continue;
    blocks_.prefetch_use(block);
    lru_->prefetch(block);
  }
  for (const Message& message : messages) {
    const std::uint32_t block = first_use(message).block;
    if (block < blocks_.size()) lru_->prefetch_neighbours(block);
  }
}

// @return the status to answer with
std::uint16_t Keeper::serve_touch(const Message& message) {
  const memory::Line& head = message.lines[0];
  const std::uint32_t count = rpc::count_of(head);
  if (rpc::epoch_of(head) != epoch_) return status_of(Code::kStale);  // W5
  if (count == 0 || count > most_uses(rpc::lines_of(head)))
    return status_of(Code::kInvalidArgument);
  const std::uint32_t namespace_id = touched_namespace(message);
  std::uint32_t stale = apply_touch(namespace_id, first_use(message));
  for (std::uint32_t u = 1; u < count; ++u) stale += apply_touch(namespace_id, use_at(message, u));
  counters_[KeeperCounter::kTouches] += count;
  if (stale == 0) return 0;
  counters_[KeeperCounter::kStaleTouches] += stale;
  return status_of(Code::kStale);
}

// @return 1 if the use is not that of a live block any more
std::uint32_t Keeper::apply_touch(std::uint32_t namespace_id, const BlockUse& use) {
  if (use.block >= blocks_.size()) return 1;
  const BlockTable::Use& known = blocks_.use(use.block);
  if (known.state != BlockState::kLive || known.generation != use.generation ||
      known.namespace_id != namespace_id) {
    return 1;
  }
  if (lru_ != nullptr) {
    lru_->touch(use.block);
  } else {
    policy_->touch(use.block);
  }
  return 0;
}

void Keeper::serve_namespace(std::uint32_t client, const RequestHead& head) {
  const auto wanted = rpc::load_payload<NamespacePayload>(head.payload);
  const BlockHash digest{wanted.digest_low, wanted.digest_high};
  if (digest == kNoDigest || (wanted.flags & ~kNamespaceIfThere) != 0) {
    return refuse(client, Code::kInvalidArgument);
  }
  const auto answer_with = [&](std::uint32_t id) {
    const NamespaceAnswer answer{id};
    unsigned char payload[sizeof answer];
    std::memcpy(payload, &answer, sizeof answer);
    server_.answer(client, 0, 1, payload, {});
  };
  auto at = std::find(namespaces_.begin(), namespaces_.end(), digest);
  if (at == namespaces_.end()) {
    if ((wanted.flags & kNamespaceIfThere) != 0) return answer_with(0);
    if (namespaces_.size() == kMaxNamespaces) return refuse(client, Code::kNoSpace);
    NamespaceLine line{};
    line.digest_low = digest.low;
    line.digest_high = digest.high;
    line.id = static_cast<std::uint32_t>(namespaces_.size()) + 1;
    line.epoch = epoch_;
    access_.region.publish(access_.layout.namespace_line(slot_, line.id - 1), line);
    access_.domain().order();
    namespaces_.push_back(digest);
    at = namespaces_.end() - 1;
  }
  answer_with(static_cast<std::uint32_t>(at - namespaces_.begin()) + 1);
}

void Keeper::serve_grant(std::uint32_t client, const RequestHead& head) {
  constexpr std::uint32_t kMostUses =
      kUsesInResponse + (rpc::kMaxMessageLines - 1) * kUsesInFollowing;
  Session& session = sessions_[client];
  const std::uint32_t allowed =
      options_.max_grants - std::min(session.granted, options_.max_grants);
  const std::uint32_t wanted = std::min({std::uint32_t{head.count}, allowed, kMostUses});
  BlockUse uses[kMostUses];
  std::uint32_t count = 0;
  while (count < wanted) {
    std::uint32_t block = blocks_.pop_free();
    if (block == kNoBlock && !limbo_.is_empty()) {
      settle_limbo();
      block = blocks_.pop_free();
    }
    // What is evicted under a pin rests: a few such blocks are in store for when the pins end, and to
    // evict ever more for every grant that is asked for would empty the pool.
    const bool may_evict = blocks_.count(BlockState::kLimbo) < options_.max_grants;
    if (block == kNoBlock && may_evict && evict_one(kNoBlock)) {
      if (!limbo_.is_empty()) settle_limbo();
      block = blocks_.pop_free();
    }
    if (block == kNoBlock) break;
    const std::uint32_t generation = blocks_.use(block).generation + 1;
    blocks_.set_generation(block, generation);
    blocks_.set_state(block, BlockState::kGranted);
    blocks_.record(block).holder = static_cast<std::uint16_t>(client);
    blocks_.record(block).incarnation = session.incarnation;
    ledger_.touch(block);
    uses[count++] = {block, generation};
  }
  if (count == 0 && allowed == 0) return refuse(client, Code::kBusy);
  if (count == 0) {
    open_chains_.give_way(client);
    return refuse(client, Code::kNoSpace);
  }
  session.granted += count;
  counters_[KeeperCounter::kGrants] += count;
  base::reach(FailPoint::kGrantPopped);
  ledger_.flush();
  // Also makes the tombstones of these blocks complete (W4).
  if (!access_.domain().broken(Rule::kGrantBeforeTombstoneComplete)) access_.domain().complete();
  base::reach(FailPoint::kGrantInLedger);

  GrantAnswer answer{};
  std::copy_n(uses, std::min(count, kUsesInResponse), answer.uses);
  rpc::FollowingLine following[rpc::kMaxMessageLines];
  std::uint32_t lines = 0;
  for (std::uint32_t i = kUsesInResponse; i < count; i += kUsesInFollowing) {
    UsesFollowing more{};
    std::copy_n(uses + i, std::min(count - i, kUsesInFollowing), more.uses);
    following[lines] = {};
    rpc::store_payload(following[lines++].payload, more);
  }
  unsigned char payload[sizeof answer];
  std::memcpy(payload, &answer, sizeof answer);
  server_.answer(client, 0, static_cast<std::uint16_t>(count), payload, {following, lines});
  base::reach(FailPoint::kGrantAnswered);
}

void Keeper::serve_give_back(std::uint32_t client, const Message& message) {
  const RequestHead head = message.head();
  if (head.count == 0 || head.count > most_uses(head.lines))
    return refuse(client, Code::kInvalidArgument);
  bool all_held = true;
  for (std::uint32_t i = 0; i < head.count; ++i) {
    const BlockUse use = use_at(message, i);
    if (!holds(client, use)) {
      all_held = false;
      continue;
    }
    --sessions_[client].granted;
    free_block(use.block);
  }
  ledger_.flush();
  access_.domain().order();
  server_.answer(client, all_held ? 0 : status_of(Code::kRefused));
}

void Keeper::serve_evict(std::uint32_t client, const RequestHead& head) {
  const auto wanted = rpc::load_payload<EvictPayload>(head.payload);
  EvictAnswer answer{};
  if (wanted.everything != 0) {
    for (eviction::NodeId leaf; (leaf = policy_->victim(eviction::kNoNode)) != eviction::kNoNode;
         ++answer.evicted)
      evict(leaf);
  } else {
    const std::uint32_t block =
        directory_.find({wanted.hash_low, wanted.hash_high}, wanted.namespace_id);
    if (block == kNoBlock) return refuse(client, Code::kNotFound);
    answer.evicted = evict_subtree(block);
  }
  access_.domain().order();
  unsigned char payload[sizeof answer];
  std::memcpy(payload, &answer, sizeof answer);
  server_.answer(client, 0, 1, payload, {});
}

bool Keeper::holds(std::uint32_t client, const BlockUse& use) const {
  if (use.block >= blocks_.size()) return false;
  const BlockTable::Use& known = blocks_.use(use.block);
  const BlockTable::Record& record = blocks_.record(use.block);
  return known.state == BlockState::kGranted && known.generation == use.generation &&
         record.holder == client && record.incarnation == sessions_[client].incarnation;
}

void Keeper::evict(std::uint32_t block) {
  open_chains_.forget_block(block);
  policy_->erase(block);
  directory_.retract(block);
  ++counters_[KeeperCounter::kEvictions];
  base::reach(FailPoint::kEvictionDone);
  free_unpinned(block);
}

// A block that readers may have seen: free when no pinned read can be at it any more. That is one
// that was evicted, and also one that a client held under the last keeper: its commit may have
// reached the directory after the successor's scan, and counted until that one raised min_epoch.
void Keeper::free_unpinned(std::uint32_t block) {
  if (pinning_clients_ == 0) return free_block(block);
  blocks_.set_state(block, BlockState::kLimbo);
  ledger_.touch(block);
  limbo_.add(block);
}

// Blocks that no pinned read can see any more become free.
void Keeper::settle_limbo() {
  if (limbo_.is_empty()) return;
  access_.domain().complete();  // the tombstones, before the pins are read
  std::vector<Limbo::Reader> readers;
  for (std::uint32_t client = 0; client < sessions_.size(); ++client) {
    if (sessions_[client].pins) readers.push_back({client, sessions_[client].last_incarnation});
  }
  for (const std::uint32_t block : limbo_.settle(readers)) free_block(block);
  ledger_.flush();
}

void Keeper::free_block(std::uint32_t block) {
  // A generation that can grow no more would repeat an identity: the block has served its time.
  const bool is_worn_out = blocks_.use(block).generation == kLastGeneration;
  blocks_.set_state(block, is_worn_out ? BlockState::kBad : BlockState::kFree);
  ledger_.touch(block);
  if (!is_worn_out) blocks_.push_free(block);
}

// Drops a block and all below it, leaves first. Rare, so a scan over all blocks will do.
std::uint32_t Keeper::evict_subtree(std::uint32_t root) {
  enum : std::uint8_t { kUnknown, kInside, kOutside };
  std::vector<std::uint8_t> where(blocks_.size(), kUnknown);
  std::vector<std::uint32_t> path, inside;
  where[root] = kInside;
  for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
    if (blocks_.use(block).state != BlockState::kLive) continue;
    std::uint32_t at = block;
    path.clear();
    while (at != kNoBlock && where[at] == kUnknown) {
      path.push_back(at);
      at = blocks_.record(at).parent;
    }
    const std::uint8_t answer = at == kNoBlock ? std::uint8_t{kOutside} : where[at];
    for (const std::uint32_t node : path) where[node] = answer;
  }
  for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
    if (where[block] == kInside) inside.push_back(block);
  }
  // Each pass takes the leaves that are left; a chain needs as many passes as it is deep, so start
  // again from a parent as soon as it has become a leaf.
  for (std::uint32_t block : inside) {
    while (block != kNoBlock && where[block] == kInside && policy_->residency().is_leaf(block)) {
      const std::uint32_t parent = blocks_.record(block).parent;
      evict(block);
      where[block] = kOutside;
      block = parent;
    }
  }
  return static_cast<std::uint32_t>(inside.size());
}

}  // namespace cachalot::pool
