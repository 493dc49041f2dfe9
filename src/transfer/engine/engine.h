// Moves byte streams between the memory of two processes, on one machine or on two.
//
//   receiver:  window = engine.open_window(peer, strided memory)   → its key goes to the sender in a message
//   sender:    engine.push(peer, key, strided memory)              → bytes 0 to n of the sender's stream become
//                                                                    bytes 0 to n of the window
//
// The two streams have the same bytes in the same order; where they lie is each side's own matter. So heads are split,
// pages change their size and layouts are converted while bytes are copied.
//
// 1. No process writes into the memory of another one. A window is written by its own process, and only by frames of
//    the peer for which it was opened, inside its bounds.
// 2. A window counts bytes only after they are in place, whole and (with checksums) verified. status().bytes is a
//    prefix of the stream.
// 3. After a push or a window has ended (done, failed, cancelled), its memory is not touched again. It ends at its
//    deadline at the latest, whatever the peer does.
// 4. A peer is a name and an incarnation. A restarted peer is another one: what was opened for the old one fails.
// 5. A peer is called, or it has connected: never both. connect() gives called peers only, each by a connection to one
//    of the given addresses. Whatever a connection from outside says, it joins and replaces no other peer.
// 6. Connections from outside that are not trusted are few: the oldest one ends for a new one (admission.cpp).
//
// @threads  any. Events come from the progress thread; they must not block, and may call everything here but
//           connect() and wait_*()
// @source   Mooncake (FAST '25) §4: segments, batches, several paths; differs: two-sided, so a late write of a peer
//           that was given up cannot reach memory that is used again
#pragma once

#include <cachalot/result.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "os/secret_key.h"
#include "transfer/link/link.h"
#include "transfer/link/peer_memory.h"
#include "transfer/strided/byte_stream.h"

namespace cachalot::transfer {

enum class PeerId : std::uint64_t {};
enum class WindowKey : std::uint64_t {
};  // random: a key cannot be guessed, and is never used twice
enum class PushId : std::uint64_t {};

inline constexpr std::uint64_t kNoDeadline = ~std::uint64_t{0};
// 146 years: a sum with a clock's value fits.
inline constexpr std::uint64_t kMostPeerTimeoutNs = ~std::uint64_t{0} >> 2;
inline constexpr std::size_t kMostMessageBytes = 2u << 20;

// Name, incarnation and facts are what the peer says of itself.
struct PeerInfo {
  std::string name;
  std::uint64_t incarnation = 0;
  std::map<std::string, std::string> facts;
  // This engine has called it, at an address that it was given. Others have connected by themselves: they may be any
  // process, of any name.
  bool is_called = false;
  std::string host = {};  // where it is: "tcp:10.0.0.2"
};

// Where a peer can be reached. All tcp addresses are used, as paths of one connection; of unix addresses the first one
// that answers, and then no other.
struct PeerAddress {
  std::string name;
  std::uint64_t incarnation = 0;  // 0: any
  std::vector<std::string> addresses;
  bool operator==(const PeerAddress&) const = default;
};

enum class TransferState { kRunning, kDone, kFailed };

struct TransferStatus {
  TransferState state = TransferState::kRunning;
  std::uint64_t bytes = 0;  // from the beginning of the stream: arrived
  Error error = {};         // kFailed: why
};

// All are called in the progress thread, and no lock is held.
class EngineEvents {
 public:
  virtual ~EngineEvents() = default;
  virtual void on_peer(PeerId, const PeerInfo&) {}
  virtual void on_message(PeerId, std::span<const std::byte>) {}
  // Its pushes and windows have failed.
  virtual void on_peer_lost(PeerId, const Error&) {}
  // It has ended, or more bytes have arrived.
  virtual void on_window(WindowKey, const TransferStatus&) {}
  virtual void on_push(PushId, const TransferStatus&) {}
};

struct EngineOptions {
  std::string name;                 // unique among live peers, at most 256 bytes
  std::uint64_t incarnation = 0;    // 0: random
  std::vector<std::string> listen;  // "tcp:10.0.0.1:0", "unix:@name"; none: others cannot connect
  std::map<std::string, std::string> facts;  // for peers: versions, geometry; at most 64 KiB
  // Links over TCP are encrypted, and lead to peers with the same key only. None: they are open.
  std::optional<os::SecretKey> cluster_key = {};
  // Memory in shared files: peers of this machine read it by plain loads.
  std::vector<SharedSegment> segments;
  bool reads_peer_memory =
      true;                    // of this machine, instead of receiving the bytes through a socket
  bool has_checksums = false;  // verify every payload of pushes from here
  std::uint64_t chunk_bytes = 1u << 20;
  // A peer of which nothing is heard for so long, though pushes or windows wait for it, is lost.
  std::uint64_t peer_timeout_ns = 5'000'000'000;
  // Also peers for which nothing waits are watched, by a ping each quarter of that time. Without it, a peer whose host is
  // gone stays connected until something is asked of it.
  bool watches_idle_peers = false;
  // A peer of several paths is lost with any of them. Without it, messages that were on the lost path are missing, and later
  // ones come by another.
  bool loses_peers_with_a_path = false;
  // Tests only: true changes one of these received bytes before they are verified.
  std::function<bool(WindowKey, std::uint64_t offset, std::uint64_t bytes)> damage = {};
};

struct EngineCounters {
  std::uint64_t pushed_bytes, received_bytes;
  std::uint64_t copied_bytes;  // received_bytes of these, read out of a peer's memory
  std::uint64_t resent_bytes, corrupt_chunks, dropped_chunks;
  std::uint64_t pushes, windows, failed_pushes, failed_windows;
  std::uint64_t open_pushes, open_windows;  // now: that were not released
};

class TransferEngine {
 public:
  // @errors kInvalidArgument: a name, an address; kBusy, kPermission: cannot listen; kIo
  static Result<std::unique_ptr<TransferEngine>> open(
      const EngineOptions& options, EngineEvents* events = nullptr,
      std::vector<std::unique_ptr<Transport>> transports = {});
  // As close().
  ~TransferEngine();
  // Ends the connections, which fails all pushes and windows, the progress thread and the transports. After it returns, no
  // memory is touched, no event comes, and the addresses are free. Other calls find no peer then.
  // @threads any, also while others are in calls; not in an event. A second call waits for the first one
  void close();

  const std::string& name() const;
  std::uint64_t incarnation() const;
  // Where peers can connect, with the ports that the system chose.
  const std::vector<std::string>& addresses() const;

  // A peer that is called already, at one of these addresses (at any, if none is given), is not called again.
  // @errors kTimeout; kStale: another incarnation or name answers there; kVersionMismatch; kIo: also after close()
  Result<PeerId> connect(const PeerAddress& peer, std::uint64_t deadline_ns);
  // The same without waiting. @param done  called in the progress thread; not if the engine is closed already
  void connect_async(const PeerAddress& peer, std::uint64_t deadline_ns,
                     std::function<void(Result<PeerId>)> done);
  void disconnect(PeerId peer);
  // The peer has shown that it belongs here: its connection does not end for others.
  void trust(PeerId peer);
  Result<PeerInfo> info(PeerId peer) const;

  // @errors kNotFound: the peer is lost; kInvalidArgument: too large
  Status send(PeerId peer, std::span<const std::byte> message);
  // Of messages that the connection has not taken yet: a peer for which too many bytes wait is lost. 0: it is lost.
  std::uint64_t waiting_bytes(PeerId peer) const;

  // Memory that `from` may write once, as a stream.
  // @errors kNotFound; kInvalidArgument: an empty stream
  Result<WindowKey> open_window(PeerId from, ByteStream memory, std::uint64_t deadline_ns);
  // Sends a stream into a window of the peer.
  // @param  ready_bytes  how much of the stream may be read already; advance() raises it, layer by layer
  Result<PushId> push(PeerId to, WindowKey window, ByteStream memory, std::uint64_t deadline_ns,
                      std::uint64_t ready_bytes = ~std::uint64_t{0});
  Status advance(PushId push, std::uint64_t ready_bytes);

  // @errors kNotFound
  Result<TransferStatus> status(WindowKey window) const;
  Result<TransferStatus> status(PushId push) const;
  // Waits until it has ended, or `bytes` bytes have arrived. At the deadline: as status().
  Result<TransferStatus> wait(WindowKey window, std::uint64_t deadline_ns,
                              std::uint64_t bytes = ~std::uint64_t{0}) const;
  Result<TransferStatus> wait(PushId push, std::uint64_t deadline_ns,
                              std::uint64_t bytes = ~std::uint64_t{0}) const;
  // Ends it, if it has not ended, and forgets it. The memory belongs to the caller again.
  // @cost  may wait for one system call or one slice of a copy (1 MiB)
  void release(WindowKey window, const Error* reason = nullptr);
  void release(PushId push, const Error* reason = nullptr);

  EngineCounters counters() const;

  struct Impl;

 private:
  explicit TransferEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cachalot::transfer
