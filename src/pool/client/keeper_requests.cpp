#include "pool/client/keeper_requests.h"

#include <algorithm>
#include <cstring>

#include "base/fail_point.h"

namespace cachalot::pool {

using base::FailPoint;

Status KeeperRequests::call(Op op, const memory::Line& head,
                            std::span<const rpc::FollowingLine> following) {
  const CallTime::Scope scope(time_);
  CACHALOT_TRY(attachment_.ensure());
  return calls_.call(op, head, 1, following);
}

Status KeeperRequests::ping() {
  CACHALOT_TRY(call(Op::kPing));
  return calls_.check_status("answer a ping");
}

bool KeeperRequests::post_touch(const BlockUse& use) {
  if (!can_post()) return false;
  memory::Line head{};  // a UsesPayload, by words
  head.words[rpc::kRequestPayloadWord] = namespace_.id() | std::uint64_t{use.block} << 32;
  head.words[rpc::kRequestPayloadWord + 1] = use.generation;
  calls_.post({static_cast<std::uint8_t>(Op::kTouch), 1, 1, KeeperCalls::kIgnore}, head);
  return true;
}

Result<std::uint32_t> KeeperRequests::evict(const BlockHash& hash) {
  const EvictPayload wanted{namespace_.id(), EvictScope::kBlock, hash.low, hash.high};
  CACHALOT_TRY(call(Op::kEvict, rpc::request_payload(wanted)));
  base::reach(FailPoint::kEvictAsked);
  if (calls_.status() == Code::kNotFound) {
    return Error::make(Code::kNotFound, "evict: block %s is not in the pool",
                       block_hash::to_hex(hash).c_str());
  }
  CACHALOT_TRY(calls_.check_status("evict a block"));
  return calls_.answer<EvictAnswer>().evicted;
}

Result<std::uint32_t> KeeperRequests::evict_everything() {
  return evict_all_of(EvictScope::kAll);
}

Result<std::uint32_t> KeeperRequests::evict_namespace() {
  if (namespace_.id() == 0) return 0u;  // the pool does not have it
  return evict_all_of(EvictScope::kNamespace);
}

Result<std::uint32_t> KeeperRequests::evict_all_of(EvictScope scope) {
  CACHALOT_TRY(call(Op::kEvict, rpc::request_payload(EvictPayload{namespace_.id(), scope, 0, 0})));
  CACHALOT_TRY(calls_.check_status("evict all blocks"));
  return calls_.answer<EvictAnswer>().evicted;
}

Result<ContextAnswer> KeeperRequests::create_context(const BlockHash& last, std::uint64_t ttl_s) {
  return ask_context({namespace_.id(), ContextAction::kCreate, 0, ttl_s, last.low, last.high});
}

Result<ContextAnswer> KeeperRequests::renew_context(std::uint64_t handle, std::uint64_t ttl_s) {
  return ask_context({namespace_.id(), ContextAction::kRenew, handle, ttl_s, 0, 0});
}

Result<ContextAnswer> KeeperRequests::retain(std::string_view session, const BlockHash& last,
                                             std::uint64_t ttl_s) {
  // The same in all processes, because a session may move from one engine to another.
  const std::uint64_t name =
      block_hash::hash_key(block_hash::make_namespace("sessions"), session).low;
  return ask_context({namespace_.id(), ContextAction::kRetain, name, ttl_s, last.low, last.high});
}

Status KeeperRequests::drop_context(std::uint64_t handle) {
  CACHALOT_TRY(ask_context({namespace_.id(), ContextAction::kDrop, handle, 0, 0, 0}));
  return {};
}

Result<ContextAnswer> KeeperRequests::ask_context(const ContextPayload& wanted) {
  if (wanted.ttl_s > kMostContextSeconds) {
    return Error::make(Code::kInvalidArgument, "context: %llu seconds, at most %llu",
                       static_cast<unsigned long long>(wanted.ttl_s),
                       static_cast<unsigned long long>(kMostContextSeconds));
  }
  const bool is_new =
      wanted.action == ContextAction::kCreate || wanted.action == ContextAction::kRetain;
  const Error not_found =
      is_new ? Error::make(Code::kNotFound, "context: block %s is not in the pool",
                           block_hash::to_hex({wanted.hash_low, wanted.hash_high}).c_str())
             : Error::make(
                   Code::kNotFound,
                   "context %llx: this namespace has none with this handle, or its time has ended",
                   static_cast<unsigned long long>(wanted.handle));
  if (wanted.namespace_id == 0) return not_found;  // the pool does not have the namespace
  CACHALOT_TRY(call(Op::kContext, rpc::request_payload(wanted)));
  if (calls_.status() == Code::kNotFound) return not_found;
  if (calls_.status() == Code::kNoSpace) {
    return Error::make(
        Code::kNoSpace,
        "context: contexts keep half of the pool, or as much as the namespace's quota "
        "allows, or the pool has no room for another one");
  }
  CACHALOT_TRY(calls_.check_status("keep a context"));
  return calls_.answer<ContextAnswer>();
}

Result<std::uint32_t> KeeperRequests::fence(std::uint32_t client) {
  CACHALOT_TRY(call(Op::kFence, rpc::request_payload(FencePayload{client})));
  // Its own slot is served, but only because nothing is held there.
  const Code status = client == context_.slot ? Code::kNotFound : calls_.status();
  if (status == Code::kBusy) {
    return Error::make(Code::kBusy, "client slot %u: is served, its process lives: stop it first",
                       client);
  }
  if (status == Code::kNotFound) {
    return Error::make(Code::kNotFound, "client slot %u: nothing is held there", client);
  }
  if (status == Code::kInvalidArgument) {
    return Error::make(Code::kInvalidArgument, "client slot %u: the pool's last one is %u", client,
                       context_.access.geometry.clients - 1);
  }
  CACHALOT_TRY(calls_.check_status("fence a client"));
  return calls_.answer<FenceAnswer>().released;
}

Result<StorageAnswer> KeeperRequests::ask_storage(std::span<const BlockHash> hashes,
                                                  std::uint32_t flags) {
  rpc::FollowingLine lines[kMaxStorageHashes / kHashesInFollowing] = {};
  const std::size_t count = (hashes.size() + kHashesInFollowing - 1) / kHashesInFollowing;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const std::uint64_t words[] = {hashes[i].low, hashes[i].high};
    std::memcpy(lines[i / kHashesInFollowing].payload + i % kHashesInFollowing * sizeof words,
                words, sizeof words);
  }
  const BlockHash& digest = namespace_.digest();
  const StoragePayload wanted{.namespace_id = namespace_.id(),
                              .flags = flags,
                              .hashes = static_cast<std::uint32_t>(hashes.size()),
                              .digest_low = digest.low,
                              .digest_high = digest.high};
  CACHALOT_TRY(call(Op::kStorage, rpc::request_payload(wanted), {lines, count}));
  if (calls_.status() == Code::kUnsupported) return StorageAnswer{};
  CACHALOT_TRY(calls_.check_status("ask the storage"));
  return calls_.answer<StorageAnswer>();
}

Result<ExpansionAnswer> KeeperRequests::add_expansion(const std::string& path,
                                                      const PoolId& serial) {
  const auto bytes = static_cast<std::uint32_t>(std::min<std::size_t>(path.size(), ~0u));
  return ask_expansion({ExpansionAction::kAdd, bytes, serial.low, serial.high}, path,
                       "add a device (its log says why)");
}

Result<ExpansionAnswer> KeeperRequests::give_up_expansion(const PoolId& serial) {
  return ask_expansion({ExpansionAction::kGiveUp, 0, serial.low, serial.high}, {},
                       "give a device up");
}

Result<ExpansionAnswer> KeeperRequests::keep_expansion() {
  return ask_expansion({ExpansionAction::kKeep, 0, 0, 0}, {}, "keep a device");
}

Result<ExpansionAnswer> KeeperRequests::ask_expansion(ExpansionPayload wanted,
                                                      const std::string& path, const char* what) {
  if (path.size() > kMaxPathBytes) {
    return Error::make(Code::kInvalidArgument, "%.80s…: a path of %zu bytes, at most %u",
                       path.c_str(), path.size(), kMaxPathBytes);
  }
  rpc::FollowingLine lines[kPathLines] = {};
  const std::size_t count = (path.size() + kNameLineBytes - 1) / kNameLineBytes;
  for (std::size_t part = 0; part < count; ++part) {
    const std::size_t at = part * kNameLineBytes;
    std::memcpy(lines[part].payload, path.data() + at,
                std::min<std::size_t>(kNameLineBytes, path.size() - at));
  }
  CACHALOT_TRY(call(Op::kExpansion, rpc::request_payload(wanted), {lines, count}));
  CACHALOT_TRY(calls_.check_status(what));
  return calls_.answer<ExpansionAnswer>();
}

Status KeeperRequests::stop_keeper() {
  CACHALOT_TRY(call(Op::kStop));
  return calls_.check_status("stop");
}

}  // namespace cachalot::pool
