// The API for moving bytes between the memory of two processes, on one machine or on two: one process registers memory
// under a name; another one opens it, as a *segment*, and submits *batches* of strided reads and writes.
//
//   owner   endpoint.register_memory("weights", {memory, bytes}, SegmentAccess::kRead);
//   other   Segment s = endpoint.open({"owner", {"tcp:10.0.0.1:7001"}}, "weights", timeout_ns);
//           // With a registry: endpoint.open({"owner"}, "weights", timeout_ns)
//           BatchId b = endpoint.read(s.id, own_memory, {{.local = …, .remote = …}});
//           endpoint.wait(b)
//
// A descriptor says which bytes of the segment go to which bytes of the caller's memory: nested loops over runs, not a
// list of addresses (StridedBytes). For the KV cache of a prompt use cachalot/transfer.h, which knows pages and heads.
//
// Invariants
//   1. A process writes into its own memory only. A peer names places inside a segment, never an address; the owner
//      checks each against the size and the access of the segment.
//   2. A batch is done when all its bytes are in place. After a batch has failed, the bytes where it writes are anything.
//   3. Nothing writes into the caller's memory after a batch has ended, nor into the owner's after unregister_memory().
//      Nothing sends from them either; on one machine a peer may copy a slice more, which counts for nothing.
//   4. A batch ends at its deadline at the latest. A peer that died or restarted ends it earlier.
//
// Each process that reaches an address of the endpoint and knows the name of a segment can open it. A process that
// connects by itself may say any name: it takes the place of no peer that this endpoint has called, and no answer of it
// counts. Bytes are not encrypted. Use addresses of a private network.
//
// @threads any
// @source  Mooncake (FAST '25) §4: segments and batches; NIXL's notifications. Differs: no one-sided write, so a late
//          write of a peer that was given up cannot reach memory that is used again
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot {

enum class SegmentAccess : std::uint32_t { kRead = 1, kWrite = 2, kReadWrite = 3 };  // of peers
enum class SegmentId : std::uint64_t {};
enum class BatchId : std::uint64_t {};

struct TransferEndpointOptions {
  std::string name;  // unique among live peers, at most 256 bytes
  // "tcp:10.0.0.1:0", "ucx:10.0.0.1:0", "unix:@name"; "auto": a unix socket of this machine. None: others cannot
  // connect. An endpoint reaches "ucx:" addresses only if it has one of its own.
  std::vector<std::string> listen = {};
  bool checksums = false;  // verify the bytes that this endpoint sends
  // Of silence, while something waits for a peer. 1 ms at least.
  std::uint64_t peer_timeout_ns = 5'000'000'000;
  // Where endpoints find each other by name: "file:DIR", "etcd://HOST:PORT[,HOST:PORT][/PREFIX]". This one is found if it
  // listens. It is asked when a peer is opened that is not connected; while it is down, connected peers go on.
  std::string registry = {};
  // As TransferOptions::cluster_key_file.
  std::string cluster_key_file = {};
};

struct PeerEndpoint {
  std::string name = {};  // empty: any
  // All tcp addresses are used, as paths of one connection. None: the registry says where the name is.
  std::vector<std::string> addresses = {};
};

// One loop. Step i is i * stride_bytes from the place of the loop around it, or at offsets[i].
struct StridedLoop {
  std::uint64_t count = 1;
  std::uint64_t stride_bytes = 0;
  std::vector<std::uint64_t> offsets = {};  // none, or `count` of them: pages by their ids
};

// `run_bytes` at each step of nested loops, the first loop slowest. Example: 4 of 8 heads of 256 bytes in pages 5 and 2
// of 64 KiB: {.offset = 1024, .loops = {{.count = 2, .offsets = {5 << 16, 2 << 16}}, {.count = 32, .stride_bytes = 2048}},
// .run_bytes = 1024}.
struct StridedBytes {
  std::uint64_t offset = 0;  // of the first run: in the segment, or in the caller's memory
  std::vector<StridedLoop> loops = {};  // at most 6
  std::uint64_t run_bytes = 0;
};

// The same number of bytes on both sides, in the same order; loops and runs may differ.
struct TransferDescriptor {
  StridedBytes local, remote;
};
inline constexpr std::size_t kMostDescriptors = 64;  // of a batch

struct Segment {
  SegmentId id = {};
  std::string peer;  // the owner's name
  std::uint64_t bytes = 0;
  SegmentAccess access = SegmentAccess::kRead;
};

struct BatchOptions {
  std::uint64_t deadline_ns = 30'000'000'000;  // from now
  // Not empty: a notice for the owner, sent when all bytes are in place.
  std::string notice = {};
};

enum class BatchState { kRunning, kDone, kFailed };

struct BatchStatus {
  BatchState state = BatchState::kRunning;
  std::uint64_t bytes = 0;  // from the first one on, that are in place
  Error error = {};         // kFailed
};

struct Notice {
  std::string peer, text;
  // This endpoint has called that peer, at an address that it was given, or of the registry. If not, the peer has
  // connected by itself, and its name is only what it says.
  bool is_called = false;
};
inline constexpr std::size_t kMostNoticeBytes = 64 << 10;

struct EndpointStatistics {
  std::uint64_t batches, done_batches, failed_batches;  // of this endpoint
  std::uint64_t served_batches, refused_batches;        // of peers
  std::uint64_t sent_bytes, received_bytes, copied_bytes;
  std::uint64_t open_batches, open_served_batches;  // now
};

class TransferEndpoint {
 public:
  // @errors kInvalidArgument: the name, an address; kBusy: another process has the address; kPermission;
  //         kUnsupported, kNotFound: "ucx:" without UCX; kIo; also those of the registry: kTimeout, kIo; kBusy: another
  //         live peer has the name there. A killed one has it for a while: waits for that, up to 15 seconds
  static Result<TransferEndpoint> open(const TransferEndpointOptions& options);
  TransferEndpoint(TransferEndpoint&&) noexcept;
  TransferEndpoint& operator=(TransferEndpoint&&) noexcept;
  // As close().
  ~TransferEndpoint();
  // Ends all batches, also those of peers, with kCancelled; peers see it at once. Calls in other threads that wait return
  // at once. After close() nothing touches the memory of batches and segments, and the addresses are free. status(),
  // wait(), notices() and statistics() then say what has been; other calls: kInvalidArgument.
  // @threads any, also while others are in calls of this endpoint. A second call waits for the first one
  // @cost    may wait for one slice of a copy (1 MiB) of each batch; up to three seconds for a registry that hangs
  void close();

  const std::vector<std::string>& addresses() const;  // with the ports that the system chose

  // --- Owner ----------------------------------------------------------------------------------------------

  // The memory must live until unregister_memory(), or the end of the endpoint.
  // @errors kInvalidArgument: a name of 0 or more than 256 bytes, no memory; kBusy: the name is registered
  Status register_memory(std::string_view name, std::span<std::byte> memory, SegmentAccess access);
  // Ends the batches of peers in it. @errors kNotFound
  // @cost   may wait for one system call or one slice of a copy (1 MiB), for each of them
  Status unregister_memory(std::string_view name);

  // --- Other ----------------------------------------------------------------------------------------------

  // Connects, unless it is connected, and waits for the owner's answer.
  // @errors kNotFound: no segment of this name, or no peer of this name in the registry; kInvalidArgument: no
  //         addresses, and no registry or no name; kTimeout; kStale: another name answers at the address;
  //         kVersionMismatch: a peer of another kind or version; kIo
  Result<Segment> open(const PeerEndpoint& peer, std::string_view segment,
                       std::uint64_t timeout_ns);
  // Cancels its batches and forgets it.
  void close(SegmentId segment);

  // Return at once. `local` is the memory in which the descriptors' local bytes lie; it must live until the batch has
  // ended.
  // @errors kInvalidArgument: a descriptor that is empty, leaves the memory or the segment, or has unequal sides; none or
  //         more than kMostDescriptors; more than 250,000 offsets; kPermission: the segment's access; kNotFound: the
  //         segment is closed, or its peer was lost: open it again
  Result<BatchId> read(SegmentId segment, std::span<std::byte> local,
                       std::span<const TransferDescriptor> descriptors,
                       const BatchOptions& options = {});
  Result<BatchId> write(SegmentId segment, std::span<const std::byte> local,
                        std::span<const TransferDescriptor> descriptors,
                        const BatchOptions& options = {});
  // @errors kNotFound: no such batch, or released
  Result<BatchStatus> status(BatchId batch) const;
  // Waits until it has ended, or `bytes` bytes are in place; at most timeout_ns.
  Result<BatchStatus> wait(BatchId batch, std::uint64_t timeout_ns = ~std::uint64_t{0},
                           std::uint64_t bytes = ~std::uint64_t{0}) const;
  // Ends it with kCancelled, on both sides, if it has not ended. Nothing touches its memory after this call.
  void cancel(BatchId batch);
  // As cancel(), and forgets it.
  void release(BatchId batch);

  // --- Both -----------------------------------------------------------------------------------------------

  // @param peer  of a segment, or else one that has connected (of several, the first). @errors kNotFound;
  //              kInvalidArgument: more than 64 KiB
  Status notify(std::string_view peer, std::string_view text);
  // Notices that have come since the last call. If there are none, waits for the first one, at most timeout_ns.
  // While 4,096 of them or 16 MiB wait to be read, the connection of a peer that sends another one ends.
  std::vector<Notice> notices(std::uint64_t timeout_ns = 0);

  EndpointStatistics statistics() const;

  struct Impl;
  explicit TransferEndpoint(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace cachalot
