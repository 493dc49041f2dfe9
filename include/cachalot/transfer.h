// The API for handing the KV cache of a prompt from one engine instance to another, without a shared pool: prefill to
// decode, also of other tensor parallelism, other pages and another layout.
//
//   prefill, each rank   rank.offer({.id = id, .pages = pages, .tokens = n, .deadline_ns = …});
//                        … computes …, rank.layers_ready(id, l + 1) after each layer
//   the proxy            carries a KvReference {instance, id, tokens, …} to the decode instance
//   decode, each rank    AskId ask = rank.ask(reference, {.pages = pages});
//                        … wait(ask) …, computes from the first token on
//
// The decode rank asks, the prefill rank pushes, and only a rank itself writes into its own memory. Which rank asks
// which, for which heads and layers, follows from both geometries. An *offer* lends its pages until every transfer that
// the pair of geometries expects has ended, or the deadline, or withdraw(). An *ask* owns its pages until it has ended.
//
// A *standing* offer is a cache that peers may read: any number of instances may take it until its deadline. With the
// hashes of its blocks, an instance whose prompt only begins in the same way takes the blocks that are equal.
//
// Invariants
//   1. A reference leads to the KV of one request or to nothing: its id is random and used once, but for standing
//      offers. After its end (taken, expired, withdrawn, the instance restarted) it is refused, with the reason.
//      The id is the secret of the offer: it is not sent, and both sides prove that they know it. A process that does not
//      know it gets nothing, and changes no page of an ask that is done. Links are not encrypted: one that has read the
//      reference or the wire is not kept out.
//   2. An ask counts bytes only when they are in place. Nothing writes into its pages after it has ended.
//   3. Everything ends at its deadline at the latest. A peer that died or restarted ends it earlier.
//   4. Ranks of unlike models (TransferOptions::model, heads, dtype …) never exchange KV.
//   5. Part of an offer, or a standing one, is sent only to an ask with the hash of the last block that it takes.
//
// @threads any
// @source  Mooncake (FAST '25) §3, §4; vLLM's NixlConnector for the roles of the sides
#pragma once

#include <cachalot/client.h>
#include <cachalot/geometry.h>
#include <cachalot/hash.h>
#include <cachalot/result.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cachalot {

// Names an offer, and is its secret: 128 bits of the system's generator, that no process can guess. Use random_offer_id().
struct OfferId {
  std::uint64_t high = 0, low = 0;
  bool operator==(const OfferId&) const = default;
  auto operator<=>(const OfferId&) const = default;
};
// @errors kIo: the system gives no random numbers
Result<OfferId> random_offer_id();

// How an instance divides the model. Rank r of n is stage r / tp_size, tensor-parallel rank r % tp_size.
struct InstanceShape {
  std::uint32_t tp_size = 1, pp_size = 1;
  // Of each stage; none: all stages have the same. A rank's geometry and its instance's references say the same.
  std::vector<std::uint32_t> stage_layers = {};
  // Of each rank: ranks with the same number are on one machine. Of those that hold the same bytes (MLA, more ranks than
  // heads) one fetches them, the others copy from it. None: each rank fetches its own.
  std::vector<std::uint32_t> machines = {};

  std::uint32_t ranks() const { return tp_size * pp_size; }
  bool operator==(const InstanceShape&) const = default;
};

// What a proxy carries from the prefill to the decode instance.
struct KvReference {
  std::string instance;
  OfferId id;
  std::uint64_t tokens = 0;
  InstanceShape shape;
  // Of each rank: where it can be reached. As many as the shape has ranks; none: the registry says it.
  std::vector<std::vector<std::string>> addresses = {};
  bool expects_note = false;  // the ask ends only after finish(); the offer has has_note
};

struct TransferOptions {
  std::string instance;  // unique among live instances
  std::string model;     // weights and everything else that changes the bytes of the KV
  KvGeometry geometry;   // of this rank; block_tokens is the page of `cache`
  InstanceShape shape;   // of this instance
  // In this process's memory, or on a GPU. There copies follow the work that is on cache.cuda_stream: of a layer at
  // offer(), layers_ready() or finish(), of the pages of an ask at ask(). After kIo keep its tensors until the process
  // ends: a copy may still write.
  PagedCache cache;
  // Cache on a GPU: page-locked memory between its pages and the links. Each page of an open offer or ask has a place in
  // it; offers and asks that find none free are refused. At most as many pages as the cache has.
  std::uint64_t bounce_bytes = std::uint64_t{1} << 30;
  // "tcp:10.0.0.1:0", "ucx:10.0.0.1:0", "unix:@name"; "auto": a unix socket of this machine. A rank reaches "ucx:"
  // addresses of others only if it has one of its own.
  std::vector<std::string> listen = {};
  // Where ranks find each other by instance name, for references without addresses: "file:DIR",
  // "etcd://HOST:PORT[,HOST:PORT][/PREFIX]". While the registry is down, known peers and running transfers go on.
  std::string registry = {};
  // A file with the key that all ranks have in common: 32 bytes, or 64 hexadecimal digits. "tcp:" links are encrypted by
  // it (TLS 1.3), records of the registry have its tag, and a peer without it is refused. "ucx:" cannot be listened at.
  std::string cluster_key_file = {};
  bool checksums = false;  // verify every payload of pushes from here
  // Of silence, while something waits for a peer. 1 ms at least.
  std::uint64_t peer_timeout_ns = 5'000'000'000;
};

struct OfferOptions {
  OfferId id = {};
  std::span<const PageId> pages = {};  // in the order of the tokens
  std::uint64_t tokens = 0;            // the last page may be partly used
  std::uint64_t deadline_ns = 0;       // from now
  std::uint32_t layers_ready = ~0u;    // of this rank; fewer: layers_ready() raises it
  bool has_note = false;               // finish() will come; the offer does not end before
  // Of each page, chained: the same hash means the same tokens before it, too. None: no part can be asked for.
  std::span<const BlockHash> hashes = {};
  bool is_standing =
      false;  // until the deadline, any number may take it; needs hashes, has no note
};

struct AskOptions {
  std::span<const PageId> pages = {};  // for the tokens from first_token on
  std::uint64_t first_token =
      0;  // tokens before it are not transferred; they would be in earlier pages
  std::uint64_t deadline_ns = 0;  // from now
  bool waits_for_offer = false;   // the prefill has not been told yet: the ask may come first
  std::uint64_t tokens =
      0;  // from the first one of the reference on; 0: all. Fewer: whole pages of the offer
  std::optional<BlockHash> hash =
      {};  // of the last page of these tokens; another one there: refused
};

enum class AskId : std::uint64_t {};
enum class HandoverState { kRunning, kDone, kFailed };

struct AskStatus {
  HandoverState state = HandoverState::kRunning;
  std::uint32_t layers = 0;          // of this rank, from the first one on, that have arrived
  std::uint64_t bytes = 0;           // that have arrived, of all transfers
  Error error = {};                  // kFailed
  std::vector<std::byte> note = {};  // of finish(), when it has come
};

// How an offer has ended: its pages are the caller's again.
struct EndedOffer {
  OfferId id;
  Status
      status;  // kTimeout: nothing has asked in time; kCancelled: withdrawn; else why a rank has failed to take it
};

struct TransferStatistics {
  std::uint64_t offers, taken_offers, declined_offers, expired_offers, failed_offers;
  std::uint64_t asks, done_asks, failed_asks, refused_asks;
  std::uint64_t sent_bytes, received_bytes, copied_bytes, resent_bytes;
  std::uint64_t corrupt_chunks, dropped_chunks;
  std::uint64_t open_offers, open_asks;  // now
};

class TransferRank {
 public:
  // @errors kInvalidArgument: geometry, cache, addresses; kBusy: another process has the address;
  //         kUnsupported: a GPU that cannot be used, "ucx:" in a build without UCX; kNotFound: libucp.so.0; kIo, kTimeout:
  //         also the registry; kBusy: also the instance's name in it
  static Result<TransferRank> open(const TransferOptions& options);
  TransferRank(TransferRank&&) noexcept;
  TransferRank& operator=(TransferRank&&) noexcept;
  // As close().
  ~TransferRank();
  // Ends all offers and asks with kCancelled; peers see it at once. Calls in other threads that wait return at once. After
  // close() nothing reads or writes the cache, and the addresses are free. status(), wait(), ended_offers() and
  // statistics() then say what has been; offer() and ask(): kInvalidArgument; calls for an offer: kStale; decline() does
  // nothing.
  // @threads any, also while others are in calls of this rank. A second call waits for the first one
  // @cost    may wait for one slice of a copy (1 MiB) of each transfer; up to three seconds for a registry that hangs
  void close();

  const std::vector<std::string>& addresses() const;  // with the ports that the system chose

  // --- Prefill --------------------------------------------------------------------------------------------

  // @errors kInvalidArgument: pages, tokens, hashes, more layers_ready than this rank has; kBusy: the id is in use, or was;
  //         of a cache on a GPU: kNoSpace: bounce_bytes; kIo: a copy of the GPU's has failed
  Status offer(const OfferOptions& options);
  // Layers [0, layers) of this rank are computed.
  // @errors kStale: the offer has ended, says why; kNotFound: none of this id is known (the last 4,096 that ended are);
  //         kInvalidArgument: more layers than this rank has
  Status layers_ready(const OfferId& id, std::uint32_t layers);
  // All layers are computed. The note goes to every rank that asks: a first token, logits, a hidden state. Needs
  // has_note at the offer, and expects_note at the reference: else the one side or the other does not wait for it.
  // @errors as layers_ready(); kInvalidArgument: a note of more than 1 MiB
  Status finish(const OfferId& id, std::span<const std::byte> note);
  // Takes the pages back: nothing reads them after this call. @errors kStale, kNotFound as layers_ready()
  Status withdraw(const OfferId& id);
  // Offers that have ended since the last call.
  std::vector<EndedOffer> ended_offers();

  // --- Decode ---------------------------------------------------------------------------------------------

  // Where the ranks of this instance can be reached, for copies between ranks of one machine (InstanceShape::machines).
  // Not needed with a registry. @errors kInvalidArgument: not one list for each rank
  Status set_instance_addresses(std::vector<std::vector<std::string>> addresses);
  // Returns at once; the KV arrives layer by layer. All ranks of an instance ask for the same tokens. A rank that others
  // copy from is done when they have copied, or at its deadline: until then they read its pages. It waits no longer than
  // peer_timeout_ns for a rank that has not asked.
  // @errors kInvalidArgument: pages, also one that is given twice; a reference of an unlike instance; the rank to copy
  //         from has no known address. A reference that divides the layers otherwise than its instance ends the ask.
  //         Of a cache on a GPU: kNoSpace: bounce_bytes; kIo: a copy of the GPU's has failed
  Result<AskId> ask(const KvReference& reference, const AskOptions& options);
  // @errors kNotFound: no such ask, or released
  Result<AskStatus> status(AskId ask) const;
  // Waits until it has ended, or `layers` layers have arrived; at most timeout_ns.
  Result<AskStatus> wait(AskId ask, std::uint64_t timeout_ns = kNoTimeout,
                         std::uint32_t layers = kAllLayers) const;
  // Forgets it. One that has not ended is cancelled, on both sides; nothing writes into its pages after this call. Ranks
  // that it has no connection to yet hear it when that stands: they keep no pages for this rank, and do not let it ask
  // for this offer again.
  void release(AskId ask);
  // This instance will not ask: it has the KV from elsewhere, and the prefill's pages are free at once, unless the
  // offer stands. Rank 0 says it for all ranks; the others do nothing. Returns at once; a prefill that cannot be
  // reached until deadline_ns from now frees its pages at its own deadline. @errors kInvalidArgument: as ask()
  Status decline(const KvReference& reference, std::uint64_t deadline_ns);

  TransferStatistics statistics() const;

  struct Impl;
  explicit TransferRank(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace cachalot
