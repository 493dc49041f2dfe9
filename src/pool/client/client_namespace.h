// The namespace of a client's blocks, and its number in this pool.
//
// @threads  id(): any; open(): the client's
#pragma once

#include <cachalot/result.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "block_hash/block_hash.h"
#include "pool/client/client_options.h"
#include "pool/client/keeper_calls.h"

namespace cachalot::pool {

class ClientNamespace {
 public:
  ClientNamespace(const ClientContext& context, KeeperCalls& calls)
      : context_(context),
        calls_(calls),
        digest_(context.options.namespace_digest.value_or(
            block_hash::make_namespace(context.options.fingerprint).digest)) {}

  // Asks the keeper for the number, which it gives out at the first time.
  Status open();
  // Of a client that chooses_namespaces.
  void choose(std::uint32_t id) { id_.store(id, std::memory_order_relaxed); }
  const BlockHash& digest() const { return digest_; }
  // 0: the namespace does not exist (reads_only).
  std::uint32_t id() const { return id_.load(std::memory_order_relaxed); }

 private:
  std::vector<rpc::FollowingLine> name_lines() const;

  const ClientContext& context_;
  KeeperCalls& calls_;
  const BlockHash digest_;
  std::atomic<std::uint32_t> id_ = 0;  // relaxed: readers of a namespace that moves just miss
};

inline std::vector<rpc::FollowingLine> ClientNamespace::name_lines() const {
  const std::string_view name = std::string_view(context_.options.name).substr(0, kMaxNameBytes);
  std::vector<rpc::FollowingLine> lines((name.size() + kNameLineBytes - 1) / kNameLineBytes);
  for (std::size_t part = 0; part < lines.size(); ++part) {
    const std::string_view rest = name.substr(part * kNameLineBytes, kNameLineBytes);
    std::memcpy(lines[part].payload, rest.data(), rest.size());
  }
  return lines;
}

inline Status ClientNamespace::open() {
  const ClientOptions& options = context_.options;
  if (options.chooses_namespaces) return {};
  const bool must_be_there = options.reads_only || options.is_operator;
  const NamespacePayload wanted{digest_.low, digest_.high, must_be_there ? kNamespaceIfThere : 0};
  CACHALOT_TRY(calls_.call(Op::kNamespace, rpc::request_payload(wanted), 1, name_lines()));
  if (calls_.status() == Code::kNoSpace) {
    return Error::make(Code::kNoSpace, "namespace '%.80s': this pool has its %u namespaces already",
                       options.fingerprint.c_str(), kMaxNamespaces);
  }
  CACHALOT_TRY(calls_.check_status("open a namespace"));
  id_.store(calls_.answer<NamespaceAnswer>().namespace_id, std::memory_order_relaxed);
  return {};
}

}  // namespace cachalot::pool
