#include "pool/keeper/requests/dispatcher.h"

#include "base/fail_point.h"
#include "pool/keeper/requests/message.h"

namespace cachalot::pool {

using rpc::Message;
using rpc::RequestHead;

Dispatcher::Dispatcher(const Access& access, const KeeperOptions& options, const Reign& reign,
                       Namespaces& namespaces, Blocks& blocks, DirectoryWriter& directory,
                       Evictor& evictor, Sessions& sessions, rpc::Server& server,
                       KeeperCounters& counters)
    : access_(access),
      reign_(reign),
      namespaces_(namespaces),
      directory_(directory),
      evictor_(evictor),
      sessions_(sessions),
      server_(server),
      counters_(counters),
      touches_(reign, blocks.table(), evictor, directory.observers(), server, counters),
      grants_(access, options.max_grants, blocks, evictor, sessions, server, counters),
      commits_(access, namespaces, blocks, directory, evictor, sessions, server, counters),
      contexts_(access, options, reign, namespaces, blocks.table(), directory, evictor, server),
      retained_(options, namespaces, blocks, directory, evictor, server),
      expansions_(access, reign, blocks, evictor, server) {}

void Dispatcher::on_requests(std::uint32_t client, std::span<const Message> messages) {
  counters_[KeeperCounter::kRequests] += messages.size();
  while (!messages.empty() && server_.is_open(client)) {
    std::size_t done = 0;
    if (op_of(messages[0]) == Op::kTouch) {
      done = touches_.serve(client, messages);
    } else {
      serve(client, messages[0]);
      done = 1;
    }
    messages = messages.subspan(done);
  }
}

void Dispatcher::serve(std::uint32_t client, const Message& message) {
  const RequestHead head = message.head();
  if (head.epoch != reign_.epoch()) return refuse(server_, client, Code::kStale);  // W5
  switch (static_cast<Op>(head.op)) {
    case Op::kNamespace:
      return serve_namespace(client, message);
    case Op::kGrant:
      return grants_.serve_grant(client, head);
    case Op::kGiveBack:
      return grants_.serve_give_back(client, message);
    case Op::kCommit:
      return commits_.serve(client, message);
    case Op::kEvict:
      return serve_evict(client, head);
    case Op::kContext:
      return serve_context(client, head);
    case Op::kExpansion:
      return expansions_.serve(client, message);
    case Op::kDetach:
      return serve_detach(client);
    case Op::kStop:
      stop_requested_ = true;
      return server_.answer(client, 0);
    case Op::kPing:
      return server_.answer(client, 0);
    case Op::kFence:
      return serve_fence(client, head);
    case Op::kStorage:
      return serve_storage(client, message);
    case Op::kTouch:
      break;
  }
  refuse(server_, client, Code::kInvalidArgument);
}

void Dispatcher::serve_namespace(std::uint32_t client, const rpc::Message& message) {
  const auto wanted = rpc::load_payload<NamespacePayload>(message.head().payload);
  const std::uint32_t name_lines = rpc::lines_of(message.lines[0]) - 1;
  const BlockHash digest{wanted.digest_low, wanted.digest_high};
  if (digest == Namespaces::kNoDigest || (wanted.flags & ~kNamespaceIfThere) != 0 ||
      name_lines > kNameLines) {
    return refuse(server_, client, Code::kInvalidArgument);
  }
  std::uint32_t id = namespaces_.find(digest);
  // A new pool does not know the namespaces of its storage yet.
  const auto is_stored = [&] {
    return storage_desk_ != nullptr && storage_desk_->has_blocks_of(digest);
  };
  if (id == 0 && ((wanted.flags & kNamespaceIfThere) == 0 || is_stored())) {
    if (namespaces_.count() == kMaxNamespaces) {
      ++counters_[KeeperCounter::kNoSpaceNamespaces];
      return refuse(server_, client, Code::kNoSpace);
    }
    std::string name;
    for (std::uint32_t part = 0; part < name_lines; ++part) {
      const rpc::FollowingLine line = message.following(part);
      name.append(reinterpret_cast<const char*>(line.payload), kNameLineBytes);
    }
    id = namespaces_.add(digest, name);
  }
  answer_with(server_, client, NamespaceAnswer{id});
}

void Dispatcher::serve_evict(std::uint32_t client, const RequestHead& head) {
  const auto wanted = rpc::load_payload<EvictPayload>(head.payload);
  EvictAnswer answer{};
  if (wanted.scope == EvictScope::kAll) {
    answer.evicted = evictor_.evict_all();
  } else if (wanted.scope == EvictScope::kNamespace) {
    if (!namespaces_.is_known(wanted.namespace_id)) return refuse(server_, client, Code::kNotFound);
    answer.evicted = evictor_.evict_namespace(wanted.namespace_id);
  } else if (wanted.scope != EvictScope::kBlock) {
    return refuse(server_, client, Code::kInvalidArgument);
  } else {
    const std::uint32_t block =
        directory_.find({wanted.hash_low, wanted.hash_high}, wanted.namespace_id);
    if (block == kNoBlock) return refuse(server_, client, Code::kNotFound);
    answer.evicted = evictor_.evict_subtree(block);
  }
  access_.domain().order();
  answer_with(server_, client, answer);
}

void Dispatcher::serve_context(std::uint32_t client, const RequestHead& head) {
  const auto wanted = rpc::load_payload<ContextPayload>(head.payload);
  if (wanted.action == ContextAction::kRetain) return retained_.serve(client, wanted);
  contexts_.serve(client, wanted);
}

void Dispatcher::serve_detach(std::uint32_t client) {
  server_.answer(client, 0);
  sessions_.end(client, "detached");
  base::reach(base::FailPoint::kDetachFreed);
}

void Dispatcher::serve_fence(std::uint32_t client, const RequestHead& head) {
  const std::uint32_t slot = rpc::load_payload<FencePayload>(head.payload).client;
  if (slot == kAllUnknown) {
    return answer_with(server_, client, FenceAnswer{sessions_.release_unknown()});
  }
  if (slot >= sessions_.slots()) return refuse(server_, client, Code::kInvalidArgument);
  // A served client is alive; fencing it would hand its blocks to others while it stores.
  if (sessions_[slot].incarnation != 0) return refuse(server_, client, Code::kBusy);
  if (!sessions_[slot].is_held) return refuse(server_, client, Code::kNotFound);
  answer_with(server_, client, FenceAnswer{sessions_.release(slot)});
  sessions_.end(slot, "was fenced");
}

void Dispatcher::serve_storage(std::uint32_t client, const rpc::Message& message) {
  if (storage_desk_ == nullptr) return refuse(server_, client, Code::kUnsupported);
  const auto wanted = rpc::load_payload<StoragePayload>(message.head().payload);
  const std::uint32_t lines = rpc::lines_of(message.lines[0]) - 1;
  constexpr std::uint32_t kFlags = kStorageFetch | kStorageAsk | kStorageIsSure | kStorageGoesOn;
  const bool is_known = namespaces_.is_known(wanted.namespace_id);
  const BlockHash given{wanted.digest_low, wanted.digest_high};
  const bool names_space = wanted.namespace_id == 0 && given != Namespaces::kNoDigest;
  if ((!is_known && !names_space) || (wanted.flags & ~kFlags) != 0 ||
      wanted.hashes > kMaxStorageHashes || wanted.hashes > lines * kHashesInFollowing) {
    return refuse(server_, client, Code::kInvalidArgument);
  }
  BlockHash hashes[kMaxStorageHashes];
  for (std::uint32_t i = 0; i < wanted.hashes; ++i) {
    const auto three =
        rpc::load_payload<StorageHashes>(message.following(i / kHashesInFollowing).payload);
    const std::uint32_t at = i % kHashesInFollowing * 2;
    hashes[i] = {three.words[at], three.words[at + 1]};
  }
  answer_with(server_, client,
              storage_desk_->answer({wanted.namespace_id,
                                     is_known ? namespaces_.digest_of(wanted.namespace_id) : given,
                                     {hashes, wanted.hashes},
                                     is_known && (wanted.flags & kStorageFetch) != 0,
                                     (wanted.flags & kStorageAsk) != 0,
                                     (wanted.flags & kStorageIsSure) != 0,
                                     (wanted.flags & kStorageGoesOn) != 0}));
}

}  // namespace cachalot::pool
