// All vTensors of one device: requests whose KV is contiguous in addresses, over chunks of physical
// memory that they take as they grow, share where their prefixes are the same, and leave to each other.
//
//   create   addresses, and chunks for the prompt; with hashes, its recorded prefix is mapped first
//   prepare  the next step's chunks, mapped in the background while this step runs
//   wait_ready, extend   they are there when it returns
//   record   the prompt's blocks can be found by later requests
//   release  the request has ended; its chunks stay mapped for the next one, until a request needs them
//
// 1. A call that fails has changed nothing that its caller can see.
// 2. A chunk full of shared tokens is writable nowhere. The chunk in which a recorded prefix ends is
//    written by the request that filled it, and only behind what is recorded; others copy from it.
// 3. What is short of chunks takes, in this order: what is ready or can be created within the budget;
//    what idle vTensors keep; what only recorded prefixes keep, least recently used first.
// 4. No lock is held while the device works.
//
// @threads any; of one vTensor, one call at a time beside prepare()'s background
// @source  vTensor (arXiv 2407.15309): Create, Prefix_Match, Extend, Prefix_Record; vAttention (ASPLOS
//          2025): deferred reclamation, mapping one step ahead
#pragma once

#include <cachalot/hash.h>
#include <cachalot/result.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "device_memory/backend.h"
#include "vtensor/chunk_store.h"
#include "vtensor/idle_vtensors.h"
#include "vtensor/prefix_table.h"
#include "vtensor/range_layout.h"
#include "vtensor/tail_copy.h"
#include "vtensor/vtensor.h"

namespace cachalot::vtensor {

struct VTensorOptions {
  KvShape shape;
  KvLayout layout = KvLayout::kFolded;
  std::uint64_t chunk_bytes = std::uint64_t{2} << 20;
  std::uint64_t max_tokens = 0;    // of a request: the addresses it gets
  std::uint64_t block_tokens = 0;  // of recorded prefixes; 0: nothing is recorded
  // For the part of a prefix behind its last full chunk; without it prefixes are shared without tail.
  CopyBytes copy = {};
  std::uint64_t ready_chunks = 0;                 // the background keeps so many ready
  std::uint64_t idle_chunks = ~std::uint64_t{0};  // at most so many stay mapped without a request
  bool with_thread = true;                        // false: the caller calls work()
  // Others ask for chunks that no idle vTensor and no recorded prefix could give. Called by the
  // background, without a lock.
  std::function<void(std::uint64_t chunks)> on_pressure = {};
};

struct VTensorStats {
  ChunkCounts chunks;
  std::uint64_t live = 0;          // vTensors of requests
  std::uint64_t idle_chunks = 0;   // mapped by idle ones
  std::uint64_t stuck_chunks = 0;  // the device did not unmap them: never reused
  std::uint64_t recorded_blocks = 0;
  std::uint64_t evicted_blocks = 0;
  std::uint64_t borrowed_chunks = 0;        // mapped from another request's now
  std::uint64_t borrowed_chunks_total = 0;  // and ever: what sharing has saved
  std::uint64_t matched_tokens = 0;
  std::uint64_t copied_bytes = 0;  // of tails
  std::uint64_t prepared = 0;      // times that the background mapped chunks
  std::uint64_t waits = 0;         // of wait_ready(): the chunks were not there
  std::uint64_t wait_ns = 0;
};

class VTensorSet {
 public:
  // Both outlive the set. @errors kInvalidArgument: options; kNoSpace: no thread to be had
  static Result<std::unique_ptr<VTensorSet>> open(device_memory::Backend& backend,
                                                  ChunkBudget& budget,
                                                  const VTensorOptions& options);
  // What open() would say to these sizes, before there is a budget. @return where everything will lie
  static Result<RangeLayout> check(const device_memory::Backend& backend,
                                   const VTensorOptions& options);
  // Gives everything back, vTensors of requests too.
  ~VTensorSet();

  struct Created {
    VTensor* vtensor = nullptr;
    std::uint64_t shared_tokens =
        0;  // the first ones: their KV is there, and read-only up to a chunk
  };
  // Memory for `tokens`, of at most `max_tokens` later. With hashes of the prompt's blocks the longest
  // recorded prefix is there already; one token at least is left to compute.
  // @errors kInvalidArgument: more tokens than there are addresses for; kNoSpace
  Result<Created> create(std::uint64_t tokens, std::uint64_t max_tokens,
                         std::span<const BlockHash> hashes = {});

  // At once; errors are those of the wait_ready() to come. @cost  10 ns where nothing is to do
  void prepare(VTensor& vtensor, std::uint64_t tokens);
  // Memory for `tokens` is there when it returns. wait_ready() is for decode, after prepare(): what it
  // really has to wait is counted. @errors as create()
  Status extend(VTensor& vtensor, std::uint64_t tokens);
  Status wait_ready(VTensor& vtensor, std::uint64_t tokens);
  // Unmaps what is behind `tokens`. @errors kInvalidArgument: 0 < tokens < those that are shared
  Status shrink(VTensor& vtensor, std::uint64_t tokens);

  // The KV of these blocks, the first ones of the request, is complete: a request with a prompt that
  // begins with them may map it. @errors kInvalidArgument: more than there is memory for
  Status record(VTensor& vtensor, std::span<const BlockHash> hashes);
  // Maps the first tokens of `from` into `to`, which is empty, as if they had been recorded.
  // @return how many: all of them, or without the tail where there is no way to copy it
  Result<std::uint64_t> alias(VTensor& to, VTensor& from, std::uint64_t tokens);

  // The device does not use it any more, nor does the caller from now on.
  void release(VTensor* vtensor);

  // Unmaps idle vTensors and forgets recorded prefixes until `chunks` more are ready, or nothing is
  // left. @return how many became ready
  std::uint64_t reclaim(std::uint64_t chunks);
  // One piece of the background's work, the most urgent one; for sets without a thread, and for tests.
  enum class Work : std::uint8_t { kNone, kAnswered, kGrew, kTrimmed, kFilled };
  Work work_once();
  void work() {
    while (work_once() != Work::kNone) {
    }
  }

  const RangeLayout& layout() const { return layout_; }
  VTensorStats stats() const;

 private:
  // One thread works on a vTensor at a time: the one with its turn.
  class Turn;

  VTensorSet(device_memory::Backend& backend, ChunkBudget& budget, const VTensorOptions& options,
             RangeLayout layout);
  Status start();
  Status check_tokens(std::uint64_t tokens, std::uint64_t most) const;

  Result<VTensor*> pick(std::uint64_t tokens, std::uint64_t max_tokens, bool empty);
  Status fill(VTensor& vtensor, std::uint64_t tokens, const PrefixTable::Found& found);
  Status take(std::uint64_t count, std::vector<Chunk>& chunks);
  Status grow(VTensor& vtensor, std::uint64_t tokens);

  Status borrow(VTensor& vtensor, const PrefixTable::Found& found);
  Status copy_tails_of(VTensor& vtensor, const PrefixTable::Found& found);
  Result<PrefixTable::Found> lend(VTensor& from, std::uint64_t tokens);
  void forget_sharing(VTensor& vtensor);
  bool enter(VTensor& vtensor, std::span<const BlockHash> hashes);  // with the lock

  bool make_room(std::uint64_t chunks);
  bool unmap_one_idle(std::uint64_t& freed);
  bool evict_one_prefix(std::uint64_t& freed);

  // The background: one piece of work of each kind, if there is some.
  bool answer_asks();
  bool grow_one();
  bool trim_one();
  bool fill_one();
  void run();
  void watch();
  // With the lock.
  bool has_to_trim() const;
  bool has_to_fill() const;
  bool has_work() const;
  VTensor* next_queued() const;
  void unqueue(VTensor& vtensor);

  device_memory::Backend& backend_;
  ChunkBudget& budget_;
  const VTensorOptions options_;
  const RangeLayout layout_;
  ChunkStore store_;

  mutable std::mutex mutex_;  // of all below but the threads
  std::condition_variable turn_over_, work_;
  std::vector<std::unique_ptr<VTensor>> all_;
  IdleVTensors idle_;
  std::vector<VTensor*> stuck_;
  std::deque<VTensor*> queue_;
  PrefixTable prefixes_;
  VTensorStats stats_;
  std::uint64_t unmapping_ = 0;  // idle vTensors: their chunks will be ready soon
  bool fill_rests_ = false;      // until chunks come back
  bool asks_rest_ = false;       // until others ask again, or a vTensor is released
  bool stop_ = false;
  std::thread thread_, watch_;
};

// One works on a vTensor at a time, and while it does holds no lock.
class VTensorSet::Turn {
 public:
  // Waits until no other thread has it.
  Turn(VTensorSet& set, VTensor& vtensor) : set_(set), vtensor_(vtensor) {
    std::unique_lock lock(set.mutex_);
    set.turn_over_.wait(lock, [&] { return !vtensor.busy_; });
    vtensor.busy_ = true;
  }
  struct Taken {};  // busy_ was set with the lock held
  Turn(VTensorSet& set, VTensor& vtensor, Taken) : set_(set), vtensor_(vtensor) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  ~Turn() {
    vtensor_.set_ready();
    {
      const std::lock_guard lock(set_.mutex_);
      vtensor_.busy_ = false;
    }
    set_.turn_over_.notify_all();
    set_.work_.notify_one();  // it may be queued
  }

 private:
  VTensorSet& set_;
  VTensor& vtensor_;
};

}  // namespace cachalot::vtensor
