#include "pool/keeper/requests/contexts.h"

#include "pool/keeper/requests/message.h"
#include "pool/reader/directory.h"

namespace cachalot::pool {

Contexts::Contexts(const Access& access, const KeeperOptions& options, const Reign& reign,
                   const Namespaces& namespaces, const BlockTable& table,
                   DirectoryWriter& directory, Evictor& evictor, rpc::Server& server)
    : access_(access),
      options_(options),
      reign_(reign),
      namespaces_(namespaces),
      table_(table),
      directory_(directory),
      evictor_(evictor),
      server_(server),
      contexts_(context_room(access)),
      kept_of_namespace_(kMaxNamespaces + 1) {}

void Contexts::serve(std::uint32_t client, const ContextPayload& wanted) {
  Result<ContextAnswer> answer = Error::make(Code::kInvalidArgument, "context");
  if (namespaces_.is_known(wanted.namespace_id) && wanted.ttl_s <= kMostContextSeconds) {
    if (wanted.action == ContextAction::kCreate) answer = create(wanted);
    if (wanted.action == ContextAction::kRenew) answer = renew(wanted);
    if (wanted.action == ContextAction::kDrop) answer = drop(wanted);
  }
  if (!answer) return refuse(server_, client, answer.error().code);
  access_.domain().order();
  answer_with(server_, client, *answer);
}

Result<ContextAnswer> Contexts::create(const ContextPayload& wanted) {
  const std::uint32_t block =
      directory_.find({wanted.hash_low, wanted.hash_high}, wanted.namespace_id);
  if (block == kNoBlock) return Error::make(Code::kNotFound, "context: the block is not there");
  for (Context& place : contexts_) {
    if (place.line.handle != 0) continue;
    if (!has_room_for(block)) break;
    ContextLine line{};
    line.handle = std::uint64_t{reign_.epoch()} << 32 | ++created_;
    line.hash_low = wanted.hash_low;
    line.hash_high = wanted.hash_high;
    line.expires_unix_s = now_unix_s() + wanted.ttl_s;
    line.namespace_id = wanted.namespace_id;
    begin(place, line, block);
    return ContextAnswer{place.line.handle, place.line.expires_unix_s, place.line.blocks};
  }
  return Error::make(Code::kNoSpace, "context: no room");
}

Result<ContextAnswer> Contexts::renew(const ContextPayload& wanted) {
  Context* const context = find(wanted);
  if (context == nullptr) return Error::make(Code::kNotFound, "context: no such handle");
  context->line.expires_unix_s = now_unix_s() + wanted.ttl_s;
  publish(*context);
  evictor_.touch(context->block);
  return ContextAnswer{context->line.handle, context->line.expires_unix_s, context->line.blocks};
}

Result<ContextAnswer> Contexts::drop(const ContextPayload& wanted) {
  Context* const context = find(wanted);
  if (context == nullptr) return Error::make(Code::kNotFound, "context: no such handle");
  const ContextAnswer answer{context->line.handle, 0, context->line.blocks};
  evictor_.let_go(context->block);
  end(*context);
  return answer;
}

Contexts::Context* Contexts::find(const ContextPayload& wanted) {
  for (Context& context : contexts_) {
    if (wanted.handle != 0 && context.line.handle == wanted.handle &&
        context.line.namespace_id == wanted.namespace_id) {
      return &context;
    }
  }
  return nullptr;
}

// Blocks of its prefix that no context keeps yet count.
bool Contexts::has_room_for(std::uint32_t block) const {
  const std::uint32_t space = table_.use(block).namespace_id;
  std::uint64_t more = 0;
  for (std::uint32_t at = block; at != kNoBlock; at = table_.record(at).parent)
    more += !kept_.contains(at);
  if (kept_.size() + more > DirectoryReader(access_).capacity_blocks() / 2) return false;
  const std::uint32_t quota = namespaces_.quota_of(space);
  return quota >= options_.quotas.size() ||
         kept_of_namespace_[space] + more <= namespaces_.quota_blocks(quota);
}

void Contexts::begin(Context& context, const ContextLine& line, std::uint32_t block) {
  context.line = line;
  context.block = block;
  context.line.blocks = 0;
  for (std::uint32_t at = block; at != kNoBlock; at = table_.record(at).parent) {
    ++context.line.blocks;
    if (kept_[at]++ == 0) ++kept_of_namespace_[context.line.namespace_id];
  }
  ++tails_[block];
  // Only while there are contexts: each observer costs every touch a call.
  directory_.observers().add(*this);
  evictor_.keep(block);
  publish(context);
}

void Contexts::end(Context& context) {
  for (std::uint32_t at = context.block; at != kNoBlock; at = table_.record(at).parent) {
    const auto kept = kept_.find(at);
    if (--kept->second != 0) continue;
    kept_.erase(kept);
    --kept_of_namespace_[context.line.namespace_id];
  }
  const auto tail = tails_.find(context.block);
  if (--tail->second == 0) tails_.erase(tail);
  context.line = {};
  context.block = kNoBlock;
  publish(context);
}

void Contexts::publish(const Context& context) const {
  const auto index = static_cast<std::uint32_t>(&context - contexts_.data());
  ContextLine line = context.line;
  line.epoch = reign_.epoch();
  access_.region.publish(
      access_.layout.context_line(reign_.area(), index, access_.geometry.clients), line);
}

// A whole subtree goes leaves first, so that the prefix of a context is there when its block goes.
void Contexts::on_removed(std::uint32_t block, const BlockHash&) {
  if (!tails_.contains(block)) return;
  for (Context& context : contexts_) {
    if (context.line.handle != 0 && context.block == block) end(context);
  }
}

void Contexts::adopt() {
  const Predecessor& predecessor = reign_.predecessor();
  if (predecessor.epoch == 0) return;
  std::size_t place = 0;
  for (const ContextLine& line : read_contexts(access_, predecessor.area, predecessor.epoch)) {
    const std::uint32_t block = directory_.find({line.hash_low, line.hash_high}, line.namespace_id);
    if (block == kNoBlock || line.expires_unix_s <= now_unix_s()) continue;
    begin(contexts_[place++], line, block);
  }
  // What an earlier keeper left in this area is void by its epoch.
}

void Contexts::expire(std::uint64_t now_ns) {
  constexpr std::uint64_t kIntervalNs = 1'000'000'000;
  if (tails_.empty())
    return directory_.observers().remove(*this);  // not in end(), which an observer's call may make
  if (now_ns < next_look_ns_) return;
  next_look_ns_ = now_ns + kIntervalNs;
  const std::uint64_t now_s = now_unix_s();
  for (Context& context : contexts_) {
    if (context.line.handle == 0 || context.line.expires_unix_s > now_s) continue;
    evictor_.let_go(context.block);
    end(context);
  }
}

}  // namespace cachalot::pool
