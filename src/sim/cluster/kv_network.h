// Caches of instances, the pool that they share, and KV on its way between them.
//
// 1. What is sent from a cache is held there until the transfer has ended or was dropped, but for what a peer sends: that is
//    a copy from when it is asked.
// 2. A request has at most one transfer at a time.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "sched/policy/transfer_plan.h"
#include "sim/cluster/event_loop.h"
#include "sim/cluster/load_series.h"
#include "sim/cluster/prefix_cache.h"

namespace cachalot::sim {

inline constexpr std::uint32_t kNoNode = 0xffffffffu;

// What a transfer brings.
enum class Cargo : std::uint8_t {
  kPeerPrefix,
  kPoolPrefix,
  kStorageFetch,
  kPoolStore,
  kHandover,
  kPeerQuestion,  // to a host that is a peer, or its answer that not all blocks are there: no bytes
  kPeerCopy,
};

// In a transfer's tag beside the job: the prompt waits no longer for its peers. No bytes.
inline constexpr std::uint64_t kPeerWaitTag = std::uint64_t{1} << 33;

struct Ports {
  LinkId out = 0, in = 0;            // to the other instances
  LinkId pool_out = 0, pool_in = 0;  // to the pool, if there is one
  LinkId peer_out = 0;               // what is sent to peers, if there are some; also on `out`
};

// An instance that computes prompts.
struct CachingInstance {
  CachingInstance(const ClusterOptions& options, std::uint32_t instance)
      : number(instance),
        cache(options.eviction, options.node_capacity_blocks,
              options.peers.is_on && options.peers.copies_first),
        busy(options.window_s),
        requests(options.window_s) {
    report.instance = instance;
  }

  std::uint32_t number;
  PrefixCache cache;
  Ports ports;
  bool accepts = true;
  bool is_leaving = false;
  // Blocks of prompts that wait or are computed, and in how many of them.
  std::unordered_map<std::uint32_t, std::uint32_t> coming;
  double queued_s = 0;  // predicted prefill of prompts that wait
  InstanceReport report;
  LoadSeries busy, requests;
  double requests_since_s = 0;
};

// The KV of a request that moves over links.
struct MovingKv {
  std::uint64_t ready_tokens = 0;                  // that transfers have brought
  std::uint64_t peer_tokens = 0, pool_tokens = 0;  // in all, from there
  bool is_waited_for = false;                      // its instance has to wait for it
  TransferId transfer = kNoTransfer;
  Cargo cargo = Cargo::kHandover;
  std::uint32_t source = kNoNode;  // kPeerPrefix, kPeerCopy: the sender; kPeerQuestion: it is asked
  std::size_t source_blocks = 0;   // held there
  std::uint64_t source_generation = 0;
  std::size_t own_blocks = 0;          // kPeerQuestion, kPeerCopy: those before them
  TransferId peer_wait = kNoTransfer;  // ends the wait for peers
  bool has_waited_enough = false;      // for peers
};

class KvNetwork : public EventLoop {
 protected:
  // @param instances  that have a timer: those that compute prompts come first
  KvNetwork(const ClusterOptions& options, const Workload& workload, std::size_t instances);

  // In the order of their numbers.
  void add_instance(CachingInstance& instance);
  Ports make_ports();

  bool has_pool() const { return options_.pool_capacity_blocks != 0; }
  double kv_bytes(std::uint64_t tokens) const {
    return static_cast<double>(tokens) * options_.kv_bytes_per_token;
  }
  CachingInstance& instance_of(JobId id) { return *instances_[record(id).prefill]; }

  void send(JobId id, Cargo cargo, LinkNetwork::Transfer transfer);
  // Over the links of peers, or of the pool.
  LinkNetwork::Transfer transfer_over(const sched::LinkSpeed& speed, LinkId from, LinkId to,
                                      double bytes) const;
  // Begins to bring a prefix from a peer or the pool, and holds it there.
  void fetch_prefix(JobId id, std::uint32_t to, const sched::KvPlan& plan);
  // The prefix is in the instance's cache now.
  void receive_prefix(JobId id);
  // Sends what the pool may lack of a prompt that was computed. False: nothing; what was read there has been used.
  bool send_to_pool(JobId id);
  // @return as PrefixCache::store
  std::size_t store_in_cache(CachingInstance& instance, std::span<const std::uint32_t> path,
                             bool are_copies = false);
  void store_in_pool(std::span<const std::uint32_t> path);
  void hold_source(JobId id, PrefixCache& cache);
  virtual PrefixCache& source_of(JobId id);
  void release_source(JobId id);
  // What it did not send is not counted.
  void drop_transfer(JobId id);

  // Peers (kv_peers.cpp). Of those of the instance that have more than `own_blocks` of the prompt, one that has the most, of
  // several the one that sends least. kNoNode: there is none.
  std::uint32_t find_peer(JobId id, const CachingInstance& reader, std::size_t own_blocks) const;
  // Asks one for the blocks after the request's `own_blocks`. False: none has them, or the request has waited enough.
  bool ask_peers(JobId id, std::size_t own_blocks);
  // A question has come to the peer, or its answer to the request. False: nothing more comes.
  bool end_peer_transfer(JobId id);
  // Takes what has come until now.
  void end_peer_wait(JobId id);

  // Requests of other instances that wait for KV of this one.
  std::vector<JobId> waiting_for(const CachingInstance& instance) const;

  // In the report.
  double& bytes_of(Cargo cargo);

  std::vector<CachingInstance*> instances_;
  PrefixCache pool_;
  LinkId pool_out_ = 0, pool_in_ = 0;
  std::vector<MovingKv> kv_;  // of requests

 private:
  void send_copy(JobId id);
  void receive_copy(JobId id, std::size_t blocks);
  void stop_waiting(JobId id);
};

}  // namespace cachalot::sim
