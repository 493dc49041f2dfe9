#include "pool/keeper/requests/retained.h"

#include <iterator>

#include "base/rng.h"
#include "pool/keeper/requests/message.h"

namespace cachalot::pool {

Retained::Retained(const KeeperOptions& options, const Namespaces& namespaces, Blocks& blocks,
                   DirectoryWriter& directory, Evictor& evictor, rpc::Server& server)
    : options_(options),
      namespaces_(namespaces),
      blocks_(blocks),
      directory_(directory),
      evictor_(evictor),
      server_(server) {
  evictor_.set_last_resort([this] { return give_way(); });
}

void Retained::serve(std::uint32_t client, const ContextPayload& wanted) {
  if (!namespaces_.is_known(wanted.namespace_id) || wanted.ttl_s > kMostContextSeconds)
    return refuse(server_, client, Code::kInvalidArgument);
  const Result<ContextAnswer> answer = retain(wanted);
  if (!answer) return refuse(server_, client, answer.error().code);
  answer_with(server_, client, *answer);
}

Result<ContextAnswer> Retained::retain(const ContextPayload& wanted) {
  const std::uint64_t name = base::mix64(wanted.handle) ^ wanted.namespace_id;
  if (const auto known = by_name_.find(name); known != by_name_.end()) end(known->second, false);
  if (wanted.ttl_s == 0) return ContextAnswer{wanted.handle, 0, 0};
  const std::uint32_t block =
      directory_.find({wanted.hash_low, wanted.hash_high}, wanted.namespace_id);
  if (block == kNoBlock) return Error::make(Code::kNotFound, "retain: the block is not there");
  const std::uint64_t now_s = options_.unix_s ? options_.unix_s() : 0;
  begin(name, block, now_s + wanted.ttl_s);
  evictor_.touch(block);
  const Session session = sessions_.back();
  while (held_.size() > blocks_.capacity() / 2 || sessions_.size() > kMostSessions) give_way();
  if (sessions_.empty())
    return Error::make(Code::kNoSpace, "retain: more than half of the capacity");
  return ContextAnswer{wanted.handle, session.ends_unix_s, session.blocks};
}

void Retained::begin(std::uint64_t name, std::uint32_t block, std::uint64_t ends_unix_s) {
  Session session{name, block, 0, ends_unix_s};
  for (std::uint32_t at = block; at != kNoBlock; at = blocks_.table().record(at).parent) {
    ++session.blocks;
    ++held_[at];
  }
  sessions_.push_back(session);
  const auto place = std::prev(sessions_.end());
  by_name_[name] = place;
  tails_.emplace(block, place);
  directory_.observers().add(*this);
  evictor_.retain(block);
}

Retained::Sessions::iterator Retained::end(Sessions::iterator session, bool is_removed) {
  for (std::uint32_t at = session->block; at != kNoBlock; at = blocks_.table().record(at).parent) {
    const auto held = held_.find(at);
    if (--held->second == 0) held_.erase(held);
  }
  if (!is_removed) evictor_.stop_retaining(session->block);
  by_name_.erase(session->name);
  const auto [first, last] = tails_.equal_range(session->block);
  for (auto at = first; at != last; ++at) {
    if (at->second != session) continue;
    tails_.erase(at);
    break;
  }
  return sessions_.erase(session);
}

bool Retained::give_way() {
  if (sessions_.empty()) return false;
  end(sessions_.begin(), false);
  return true;
}

// A whole subtree goes leaves first, so that the prefix of a session is there when its block goes.
void Retained::on_removed(std::uint32_t block, const BlockHash&) {
  for (auto at = tails_.find(block); at != tails_.end(); at = tails_.find(block))
    end(at->second, true);
}

void Retained::expire(std::uint64_t now_ns) {
  constexpr std::uint64_t kIntervalNs = 1'000'000'000;
  if (sessions_.empty())
    return directory_.observers().remove(*this);  // not in end(), which an observer's call may make
  if (now_ns < next_look_ns_) return;
  next_look_ns_ = now_ns + kIntervalNs;
  const std::uint64_t now_s = options_.unix_s ? options_.unix_s() : 0;
  for (auto at = sessions_.begin(); at != sessions_.end();)
    at = at->ends_unix_s <= now_s ? end(at, false) : std::next(at);
}

}  // namespace cachalot::pool
