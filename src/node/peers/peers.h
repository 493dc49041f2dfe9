// The pools of other hosts: finds them, follows what they have, reads blocks out of them, and lets them read this one.
//
//   Result<std::unique_ptr<Peers>> peers = Peers::open(pool.access(), {.registry = "file:/run/kv", .listen = {"tcp:10.0.0.1:0"}});
//   keeper.observe((*peers)->observer());
//   (*peers)->get(gets, deadline_ns);
//
//   PeerFeed       tells followers what this pool has
//   PeerServer     reads blocks of this pool for them
//   PeerDirectory  what the others have
//   Peers          the connections: each host calls each other one, follows it and asks it over that connection
//
// There is no master: the registry says where peers are, and is not asked on the way of a block.
//
// Invariants
//   1. Bytes of a peer count after the seal over them matched, which Store checks: a peer that lies costs a miss.
//   2. A call ends at its deadline, whatever a peer does. A peer that has failed rests for 1, 2, 4 … 60 s.
//   3. What a lost peer had is forgotten at once.
//   4. With a key, a peer that has not proved that it has it gets nothing, and nothing of it counts.
//   5. Nothing is asked of a peer that has connected by itself, and what it says of its blocks does not count: any
//      process may connect and say any name.
//
// @threads any
#pragma once

#include <cachalot/result.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/rare_line.h"
#include "node/peers/directory.h"
#include "node/peers/feed.h"
#include "node/peers/proof.h"
#include "node/peers/server.h"
#include "os/secret_key.h"
#include "storage/backend.h"
#include "transfer/engine/engine.h"
#include "transfer/registry/registry.h"

namespace cachalot::node {

struct PeersOptions {
  std::string registry;             // open_registry()
  std::string name;                 // unique among live peers; empty: a random one
  std::vector<std::string> listen;  // "tcp:10.0.0.1:0", "unix:@name"
  // Peers have to show that they have it (proof.h). None: each process that reaches the address is a peer.
  std::optional<os::SecretKey> key = {};
  bool is_encrypted = true;  // what travels over TCP, if there is a key; all peers say the same
  PeerServerOptions server = {};
  std::size_t most_known_blocks = std::size_t{8} << 20;  // of all peers
  // A peer that takes longer than this for a part of a call, and than its bytes take at that speed, is given up. The time
  // begins when the part before has come.
  std::uint64_t patience_ns = 250'000'000;
  std::uint64_t least_bytes_per_s = 50'000'000;
  std::uint64_t look_pause_ns = 500'000'000;  // between looks at the registry
};

struct PeersCounts {
  std::uint64_t peers, known_blocks, followers;  // now
  std::uint64_t told_changes, heard_changes;     // one for each follower that was sent it
  std::uint64_t untold_changes;                  // now; read before told_changes
  std::uint64_t got_blocks, got_bytes;
  std::uint64_t absent_blocks;    // said to be there, and gone
  std::uint64_t failed_requests;  // of this host
  PeerServerCounts served;
};

class Peers final : private transfer::EngineEvents, private PeerLinks {
 public:
  // @param access  outlives it
  // Does not wait for the registry: one that is down is asked until it answers.
  // @errors those of open_registry() and TransferEngine::open()
  // Whether the addresses can be listened at: before a pool is made for it.
  // @errors those of TransferEngine::open()
  static Status check_listen(const PeersOptions& options);
  static Result<std::unique_ptr<Peers>> open(const pool::Access& access,
                                             const PeersOptions& options);
  ~Peers() override;

  pool::BlockObserver& observer() { return feed_->observer(); }
  const std::vector<std::string>& addresses() const { return engine_->addresses(); }

  // What the peers have, as they say. No message.
  void heads(std::span<const storage::ObjectKey> keys,
             std::span<std::optional<storage::ObjectHead>> heads) const;
  // Of blocks that came with wrong bytes: no peer is asked for them for a while.
  void doubt(std::span<const storage::ObjectKey> keys);
  // Reads blocks; see storage::Backend::get_each. Never fails as a whole.
  void get(std::span<storage::Get> gets, std::uint64_t deadline_ns,
           const storage::Backend::Arrived& arrived);

  PeersCounts counts() const;

 private:
  // A peer that this host has called.
  struct Peer {
    std::string name, address;
    std::uint64_t incarnation = 0;
    transfer::PeerId id = {};
    std::uint64_t flying_bytes = 0;
    std::uint64_t heard_ns = 0;  // when it answered last
    std::uint64_t rest_ns = 0, rests_until_ns = 0;
    bool is_resting(std::uint64_t now_ns) const { return now_ns < rests_until_ns; }
  };
  struct Call {
    bool is_running = false;
    std::uint64_t pause_ns = 0, next_ns = 0;
  };
  // What a peer has shown of the key. Both sides prove.
  struct Standing {
    PeerIdentity identity;
    ChallengeMessage challenge;
    bool is_proved = false;
    bool is_called = false;  // by this host, which follows it once it has proved
  };
  // An answer that is waited for.
  struct Awaited {
    transfer::PeerId from = {};
    std::optional<GotMessage> got = {};
    std::optional<Error> error = {};
  };
  struct Part;  // of a call: blocks that one peer is asked for

  Peers(const pool::Access& access, const PeersOptions& options)
      : access_(access),
        options_(options),
        directory_(options.most_known_blocks, access.geometry.block_bytes) {}
  Status start();
  void look();
  void publish();
  void look_at_registry();
  bool may_call(const transfer::PeerRecord& record);
  void take_peer(const transfer::PeerRecord& record, Result<transfer::PeerId> connected);

  // EngineEvents
  void on_peer(transfer::PeerId peer, const transfer::PeerInfo& info) override;
  void on_message(transfer::PeerId peer, std::span<const std::byte> bytes) override;
  void on_peer_lost(transfer::PeerId peer, const Error& error) override;
  void on_push(transfer::PushId push, const transfer::TransferStatus& status) override;
  // PeerLinks
  void send(transfer::PeerId to, const PeerMessage& message) override;
  Result<transfer::PushId> push(transfer::PeerId to, std::uint64_t window,
                                transfer::ByteStream memory, std::uint64_t deadline_ns) override;
  void release(transfer::PushId push) override { engine_->release(push); }

  PeerIdentity own_identity() const;
  void take_challenge(transfer::PeerId peer, const ChallengeMessage& challenge);
  void take_proof(transfer::PeerId peer, const ProofMessage& proof);
  std::optional<std::uint32_t> slot_of(transfer::PeerId peer) const;  // under mutex_
  std::optional<std::uint32_t> choose(std::uint64_t owners,
                                      std::optional<std::uint32_t> last) const;
  std::vector<Part> divide(std::span<storage::Get> gets, std::span<std::uint64_t> tried);
  void ask(Part& part, std::span<storage::Get> gets, std::uint64_t deadline_ns);
  std::uint64_t patience_end_ns(const Part& part) const;
  void collect(Part& part, std::span<storage::Get> gets, std::span<std::uint64_t> tried);
  void finish(Part& part, std::span<storage::Get> gets, GotMessage got);
  static void rate(Peer& peer, bool has_worked);

  const pool::Access& access_;
  const PeersOptions options_;
  PeerDirectory directory_;
  std::unique_ptr<transfer::Registry> registry_;
  transfer::PeerRecord record_;
  bool is_published_ = false;                 // of the thread
  base::RareLine registry_line_, list_line_;  // of the thread
  std::unique_ptr<PeerServer> server_;
  std::atomic<std::uint64_t> heard_changes_{0};
  std::unique_ptr<PeerFeed> feed_;

  mutable std::mutex mutex_;  // below
  std::condition_variable changed_;
  std::map<std::uint32_t, Peer> peers_;  // by slot, below kMostPeers
  std::map<std::uint64_t, Call> calls_;  // by incarnation, until the peer tells what it has
  std::map<transfer::PeerId, bool> followers_;
  std::map<transfer::PeerId, Standing> standings_;  // if there is a key
  std::map<std::uint64_t, Awaited> awaited_;
  std::uint64_t next_request_ = 1;
  bool stop_ = false;
  base::RareLine stranger_line_{4}, unreached_line_{4}, joined_line_{4}, lost_line_{4}, large_line_;
  std::uint64_t got_blocks_ = 0, got_bytes_ = 0, absent_blocks_ = 0, failed_requests_ = 0;

  std::unique_ptr<transfer::TransferEngine> engine_;  // closed first
  std::thread thread_;
};

// A backend that reads from peers and is never written. @param peers  outlives it
std::unique_ptr<storage::Backend> make_peer_backend(Peers& peers);

}  // namespace cachalot::node
