// What a client may ask of the keeper beside storing: evictions, fences, the keeper's end; and single
// requests, for measurements. Each attaches again first, if the attachment is lost.
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "pool/client/attachment.h"
#include "pool/client/call_time.h"
#include "pool/client/client_namespace.h"
#include "pool/client/client_options.h"
#include "pool/client/keeper_calls.h"
#include "pool/format/requests.h"

namespace cachalot::pool {

class KeeperRequests {
 public:
  // All of them outlive this.
  KeeperRequests(const ClientContext& context, CallTime& time, Attachment& attachment,
                 KeeperCalls& calls, const ClientNamespace& name_space)
      : context_(context),
        time_(time),
        attachment_(attachment),
        calls_(calls),
        namespace_(name_space) {}

  // Drops a block and all below it. @return blocks dropped @errors kNotFound
  Result<std::uint32_t> evict(const BlockHash& hash);
  Result<std::uint32_t> evict_everything();
  // All blocks of this client's namespace, pinned ones, too; its id stays. @return blocks
  Result<std::uint32_t> evict_namespace();
  // A block of this client's namespace stays, with its prefix, until the time ends; the answer has its handle.
  // @errors kNotFound: the block is not in the pool; kNoSpace: contexts keep half of the pool, or the quota, or 1,024 are there
  Result<ContextAnswer> create_context(const BlockHash& last, std::uint64_t ttl_s);
  // The time counts from now. @errors kNotFound: this namespace has no such context (any more)
  Result<ContextAnswer> renew_context(std::uint64_t handle, std::uint64_t ttl_s);
  Status drop_context(std::uint64_t handle);
  // A block of this client's namespace, and its prefix, will be used again by this session: they are evicted last, until
  // the time ends or the session retains another one. 0 s: it retains none any more.
  // @errors kNotFound: the block is not in the pool; kNoSpace: alone more than half of the capacity
  Result<ContextAnswer> retain(std::string_view session, const BlockHash& last,
                               std::uint64_t ttl_s);
  // Says that the process that last had this slot, and is suspected, stores no more.
  // @return blocks released @errors kBusy: the slot is served, kNotFound: nothing is held there, as
  //         in this client's own, which let it in
  Result<std::uint32_t> fence(std::uint32_t client);
  // The same for blocks whose holder is unknown.
  Result<std::uint32_t> fence_unknown() { return fence(kAllUnknown); }
  // What the storage behind the pool has of a chain. A keeper without storage: nothing, and it is not up.
  // @param hashes   at most kMaxStorageHashes
  // @param fetches  bring what is stored, and not in the pool, into the pool
  // @param flags    kStorage*
  Result<StorageAnswer> ask_storage(std::span<const BlockHash> hashes, std::uint32_t flags);
  // Adds a device that was prepared (pool/expansion/expansion_device.h) to a growable pool.
  // @errors kUnsupported: it cannot grow; kBusy: a device is being given up; kNoSpace: it has all its blocks; what the
  //         keeper met when it opened the device
  Result<ExpansionAnswer> add_expansion(const std::string& path, const PoolId& serial);
  // Begins to give the pool's last device up, or goes on. It is done when the answer has no blocks in use.
  // @errors kNotFound: the pool has no such device (any more); kRefused: another one was added later; kBusy: blocks of it
  //         are pinned, or kept by contexts
  Result<ExpansionAnswer> give_up_expansion(const PoolId& serial);
  // Ends that, if the device is still the pool's.
  Result<ExpansionAnswer> keep_expansion();
  // Asks the keeper to end.
  Status stop_keeper();

  // One round trip.
  Status ping();
  // Posts a touch of this use, or nothing at all, without waiting. False: no credit, poll first.
  bool post_touch(const BlockUse& use);
  // Sends what was posted and takes what has been answered. @return requests answered
  std::uint32_t poll() { return calls_.poll(); }
  std::uint32_t outstanding() const { return calls_.outstanding(); }

 private:
  Result<ContextAnswer> ask_context(const ContextPayload& wanted);
  Result<ExpansionAnswer> ask_expansion(ExpansionPayload wanted, const std::string& path,
                                        const char* what);
  Result<std::uint32_t> evict_all_of(EvictScope scope);
  Status call(Op op, const memory::Line& head = {},
              std::span<const rpc::FollowingLine> following = {});
  bool can_post() const { return attachment_.is_attached() && calls_.has_credit(1, 1); }

  const ClientContext& context_;
  CallTime& time_;
  Attachment& attachment_;
  KeeperCalls& calls_;
  const ClientNamespace& namespace_;
};

}  // namespace cachalot::pool
