// One endpoint. What it owns and what it has opened are apart: they share the engine and the notices.
//
//   endpoint.cpp   the public class, events of the engine, notices
//   serving.cpp    registered memory, and the batches of peers in it
//   batches.cpp    segments of peers, and batches of this endpoint
//
// One mutex guards all of it. The engine calls back without its own lock, and is called with this one held.
#pragma once

#include <cachalot/transfer_endpoint.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transfer/engine/engine.h"
#include "transfer/registry/registry.h"
#include "transfer/segments/messages.h"

namespace cachalot::transfer {

struct RegisteredMemory {
  std::string name;
  std::span<std::byte> memory;
  SegmentAccess access = SegmentAccess::kRead;
};

// A batch of a peer, in memory of this endpoint.
struct ServedBatch {
  std::uint64_t segment = 0;
  std::optional<WindowKey> window;  // the peer writes
  std::optional<PushId> push;       // the peer reads
};
using ServedKey = std::pair<PeerId, std::uint64_t>;  // the peer's number

// A peer that is an endpoint. One that has connected by itself may say any name.
struct KnownPeer {
  std::string name;
  bool is_called = false;
};

// A segment of a peer, open or asked for.
struct OpenedSegment {
  PeerId peer = {};
  std::string name, peer_name;
  std::uint64_t number = 0, bytes = 0;  // as the peer says
  SegmentAccess access = SegmentAccess::kRead;
  bool is_open = false;
  bool is_lost = false;        // its peer
  std::optional<Error> error;  // it will not be, or its peer was lost
};

// A peer that open() has reached.
struct Reached {
  PeerId id = {};
  PeerInfo info;
};

struct Batch {
  SegmentId segment = {};
  PeerId peer = {};
  bool is_write = false;
  ByteStream memory;                // kept until the owner has answered
  std::optional<WindowKey> window;  // of a read
  std::optional<PushId> push;       // of a write, when the owner has answered
  std::uint64_t deadline_ns = 0;
  std::string notice;
  BatchStatus status;
};

// Places in `bytes` bytes at `base`, as addresses. @errors kInvalidArgument: outside; `what` is in the message
Result<ByteStream> place(const ByteStream& places, std::uint64_t base, std::uint64_t bytes,
                         const std::string& what);
// Whether a peer is an endpoint. @errors kVersionMismatch
Status check_version(const PeerInfo& peer);

}  // namespace cachalot::transfer

namespace cachalot {

using namespace transfer;  // NOLINT: the implementation of the public class is this module

struct TransferEndpoint::Impl final : EngineEvents {
  explicit Impl(const TransferEndpointOptions& given) : options(given) {}
  ~Impl() override;
  Status start();
  void close();

  // EngineEvents
  void on_peer(PeerId peer, const PeerInfo& info) override;
  void on_message(PeerId peer, std::span<const std::byte> bytes) override;
  void on_peer_lost(PeerId peer, const Error& error) override;
  void on_window(WindowKey key, const TransferStatus& status) override;
  void on_push(PushId id, const TransferStatus& status) override;

  // All below: with the lock.
  // endpoint.cpp
  Status check_open() const;
  void end_all();
  void send(PeerId to, const SegmentMessage& message);
  // Without the lock. @errors as TransferEndpoint::open()
  Result<PeerAddress> address_of(const PeerEndpoint& peer, std::uint64_t deadline_ns) const;
  // The same. Connects, if it is not connected: `was_connected` says so.
  Result<Reached> reach(const PeerEndpoint& peer, std::uint64_t deadline_ns, bool& was_connected);
  // The same. @param is_lost  the connection has ended before an answer came
  Result<Segment> ask_for(const PeerEndpoint& peer, const Reached& reached, std::string_view name,
                          std::uint64_t deadline_ns, bool& is_lost);
  std::optional<PeerId> find_peer(const PeerEndpoint& wanted) const;
  void take_notice(PeerId peer, NoticeMessage message);

  // serving.cpp
  void take_open(PeerId peer, const OpenMessage& message);
  void take_read(PeerId peer, const ReadMessage& message);
  void take_write(PeerId peer, const WriteMessage& message);
  void take_cancel(PeerId peer, std::uint64_t batch);
  // Where a peer's batch goes. @errors kStale, kPermission, kInvalidArgument, kBusy
  Result<ByteStream> admit(PeerId peer, std::uint64_t batch, std::uint64_t segment,
                           SegmentAccess needed, const ByteStream& places) const;
  void refuse(PeerId peer, std::uint64_t number, const Error& error);
  void end_served(const ServedKey& key, const Error* reason);
  // @param segment  null: of all of them
  void end_segment(const std::uint64_t* segment, const Error& error);

  // batches.cpp
  void take_opened(PeerId peer, const OpenedMessage& message);
  void take_window(PeerId peer, const WindowMessage& message);
  void take_refused(PeerId peer, const RefusedMessage& message);
  Result<BatchId> submit(SegmentId segment, std::span<std::byte> local,
                         std::span<const TransferDescriptor> descriptors,
                         const BatchOptions& options, bool is_write);
  // @param error  null: done
  void end_batch(std::uint64_t number, const Error* error);
  void progress(std::uint64_t number, const TransferStatus& status);
  // A batch that the owner has not answered has no transfer that ends at the deadline.
  void expire(std::uint64_t number, std::uint64_t now_ns);

  const TransferEndpointOptions options;
  std::unique_ptr<TransferEngine> engine;
  std::unique_ptr<Registry> registry;  // null: none is given
  // Of the calls of close(); taken before `mutex`, never by the progress thread
  std::mutex closing;

  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  bool is_closed = false;  // nothing begins any more
  std::map<PeerId, KnownPeer> known;
  // Without a name the same peer would be connected a second time.
  std::map<std::vector<std::string>, PeerId> reached;

  std::map<std::uint64_t, RegisteredMemory> registered;  // by random numbers
  std::map<ServedKey, ServedBatch> served;
  std::map<PeerId, std::size_t> served_of;  // how many
  std::unordered_map<std::uint64_t, ServedKey> served_windows;
  std::map<PushId, ServedKey> served_pushes;

  std::uint64_t next_number = 1;
  std::map<std::uint64_t, OpenedSegment> segments;
  std::map<std::uint64_t, Batch> batches;
  std::unordered_map<std::uint64_t, std::uint64_t> batch_windows;
  std::map<PushId, std::uint64_t> batch_pushes;

  std::deque<Notice> news;
  std::size_t news_bytes = 0;
  EndpointStatistics counts = {};
};

}  // namespace cachalot
