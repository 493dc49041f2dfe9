// The requests that clients send to the keeper, as they lie in rpc messages (docs/formats/pool.md).
#pragma once

#include <cstdint>

#include "pool/format/format.h"
#include "rpc/message.h"

namespace cachalot::pool {

enum class Op : std::uint8_t {
  // digest of a fingerprint, and a name in the following lines -> namespace id, given out at the first time
  kNamespace = 1,
  kGrant = 2,       // count blocks, please -> block uses
  kGiveBack = 3,    // block uses that are not needed
  kTouch = 4,       // block uses that were hit: the deepest of each prefix
  kCommit = 5,      // a chain of written blocks -> one verdict each
  kEvict = 6,       // drop a hash with its subtree, or everything
  kDetach = 7,      // the last request of an incarnation
  kStop = 8,        // ask the keeper to end
  kPing = 9,        // nothing: measures the way there and back
  kFence = 10,      // an operator's word that what a held slot's process does is over
  kContext = 12,    // a block stays, with its prefix, until a time; or does not any more
  kExpansion = 13,  // a growable pool gets a device, or gives one up
  kStorage = 11,    // what the storage behind the pool has of a chain; fetch it
};

// One use of a block: with the keeper's epoch, its identity.
struct BlockUse {
  std::uint32_t block;
  std::uint32_t generation;
};
inline constexpr std::uint32_t kUsesInHead = 5;  // behind the namespace id
inline constexpr std::uint32_t kUsesInFollowing = 6;
inline constexpr std::uint32_t kUsesInResponse = 4;  // in a response's head

// Head payload of kTouch and kGiveBack; `count` of the head says how many in all.
struct UsesPayload {
  std::uint32_t namespace_id;
  BlockUse uses[kUsesInHead];
};
struct UsesFollowing {
  BlockUse uses[kUsesInFollowing];
};

struct NamespacePayload {
  std::uint64_t digest_low, digest_high;
  std::uint32_t flags;  // kNamespace*
};
// open none, unless storage has blocks of it: a pool has few, and never takes one back
inline constexpr std::uint32_t kNamespaceIfThere = 1;
struct NamespaceAnswer {
  std::uint32_t namespace_id;  // 0: there is none
};

struct GrantAnswer {
  BlockUse uses[kUsesInResponse];
};

// kCommit: `count` items follow, one a line; each one's parent is the one before it, the first
// one's is `parent` (all zero: a root).
inline constexpr std::uint32_t kMaxCommitItems = 32;
struct CommitPayload {
  std::uint32_t namespace_id;
  std::uint32_t has_parent;
  std::uint64_t parent_low, parent_high;
  std::uint32_t flags = 0;     // kCommit*
  std::uint32_t reserved = 0;  // in the place of padding, which would carry whatever lay there
};
static_assert(sizeof(CommitPayload) == 32);
// more of this chain follows: spare what is there of it
inline constexpr std::uint32_t kCommitGoesOn = 1;
struct CommitItem {
  std::uint64_t hash_low, hash_high;
  std::uint64_t checksum;
  BlockUse use;
  std::uint32_t length;
  std::uint32_t flags;  // kEntry*, kItem*
};
// another host has the block, too: it is evicted before those that only this pool has
inline constexpr std::uint32_t kItemIsCopy = 1u << 16;
enum class Verdict : std::uint8_t {
  kCommitted = 0,
  // the hash is published already; the block is the client's again, next generation
  kDuplicate = 1,
  kNoRoom = 2,    // nothing evictable; likewise
  kNoParent = 3,  // the parent is not published; likewise
  kBadItem = 4,   // length or hash out of range; likewise
  kNotHeld = 5,   // the client does not hold this use: it must forget the block
};
struct CommitAnswer {
  Verdict verdicts[kMaxCommitItems];
};

struct FencePayload {
  std::uint32_t client;  // slot; kAllUnknown: blocks whose holder is unknown
};
inline constexpr std::uint32_t kAllUnknown = 0xffffffffu;
struct FenceAnswer {
  std::uint32_t released;  // blocks
};

enum class EvictScope : std::uint32_t {
  kBlock = 0,      // and all below it
  kAll = 1,        // of all namespaces, but pinned blocks and their prefixes
  kNamespace = 2,  // pinned blocks, too
};
struct EvictPayload {
  std::uint32_t namespace_id;
  EvictScope scope;
  std::uint64_t hash_low, hash_high;
};
struct EvictAnswer {
  std::uint32_t evicted;
};

enum class ContextAction : std::uint32_t {
  kCreate = 1,  // of a published block
  kRenew = 2,   // the time counts from now
  kDrop = 3,
  kRetain = 4,  // softly, of a session: handle names it, 0 s ends it (keeper/requests/retained.h)
};
struct ContextPayload {
  std::uint32_t namespace_id;
  ContextAction action;
  std::uint64_t handle;  // of kRenew, kDrop and kRetain
  std::uint64_t ttl_s;   // of kCreate, kRenew and kRetain
  std::uint64_t hash_low, hash_high;
};
static_assert(sizeof(ContextPayload) == 40);
struct ContextAnswer {
  std::uint64_t handle = 0;
  std::uint64_t expires_unix_s = 0;
  std::uint32_t blocks = 0;
  std::uint32_t reserved = 0;
};
inline constexpr std::uint64_t kMostContextSeconds = 366 * 86'400;

enum class ExpansionAction : std::uint32_t {
  kAdd =
      1,  // the device whose path follows, which was prepared (pool/expansion/expansion_device.h)
  kGiveUp =
      2,  // the last device: asked again until no block of it is in use, it is not part of the pool any more
  kKeep = 3,  // ends kGiveUp before that
};
struct ExpansionPayload {
  ExpansionAction action;
  std::uint32_t path_bytes = 0;  // of kAdd, in the following lines
  std::uint64_t serial_low, serial_high;
};
static_assert(sizeof(ExpansionPayload) == 24);
struct ExpansionAnswer {
  std::uint32_t blocks = 0;    // that the pool hands out now
  std::uint32_t capacity = 0;  // that may be published at once
  std::uint32_t in_use =
      0;  // blocks of the device that is given up, which clients may still store into or read
  std::uint32_t held = 0;  // of those: quarantined
};

// kStorage: the hashes of a chain follow, three a line.
struct StoragePayload {
  std::uint32_t namespace_id;
  std::uint32_t flags;  // kStorage*
  std::uint32_t hashes;
  std::uint32_t reserved = 0;
  // of the namespace, if namespace_id is 0: the pool has none of it, and storage may have
  std::uint64_t digest_low = 0, digest_high = 0;
};
static_assert(sizeof(StoragePayload) == 32);
inline constexpr std::uint32_t kStorageFetch = 1;  // bring what is stored into the pool
inline constexpr std::uint32_t kStorageAsk = 2;    // ask storage that others write, too
// the blocks before these are stored: ask for all of them at once
inline constexpr std::uint32_t kStorageIsSure = 4;
inline constexpr std::uint32_t kStorageGoesOn = 8;  // questions about what comes after these follow
inline constexpr std::uint32_t kHashesInFollowing = 3;
inline constexpr std::uint32_t kMaxStorageHashes = 96;
struct StorageHashes {
  std::uint64_t words[2 * kHashesInFollowing];  // low, high
};
struct StorageAnswer {
  std::uint32_t stored = 0;       // leading hashes that storage has
  std::uint32_t is_fetching = 0;  // 1: blocks of this chain are on their way into the pool
  std::uint32_t queued = 0;       // blocks of the pool that wait to be stored
  std::uint32_t is_up = 0;        // 0: the storage is out of use
  std::uint32_t is_asking = 0;    // 1: storage is being asked for more of this chain; ask again
};

static_assert(sizeof(StorageHashes) <= rpc::kFollowingPayloadBytes);
static_assert(sizeof(ContextAnswer) <= rpc::kResponsePayloadBytes);
static_assert(sizeof(StorageAnswer) <= rpc::kResponsePayloadBytes);
static_assert(sizeof(ExpansionAnswer) <= rpc::kResponsePayloadBytes);
static_assert(sizeof(UsesPayload) == 44 && sizeof(UsesFollowing) == 48);
static_assert(sizeof(CommitItem) <= rpc::kFollowingPayloadBytes);
static_assert(sizeof(CommitAnswer) <= rpc::kResponsePayloadBytes);
static_assert(sizeof(GrantAnswer) <= rpc::kResponsePayloadBytes);

}  // namespace cachalot::pool
