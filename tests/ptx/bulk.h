// For tests: what the asynchronous proxy of a thread block does: barriers in shared memory (mbarrier) and
// bulk transfers (cp.async.bulk). A transfer reads and writes at some moment of its life, chosen by a mood;
// what other instructions may do meanwhile does not depend on that moment:
//
//   load   begun --- reads global, writes shared, completes its bytes on the barrier --- seen by a wait
//   store  begun --- reads shared --- waited for (.read) --- writes global --- waited for
//
// 1. Between begin and what is seen, no thread touches the shared bytes of a load, writes those of a store,
//    or touches the global bytes that a store writes.
// 2. What a thread has written by ordinary stores, barriers among it, is not there for a transfer before a
//    proxy fence of that thread.
// 3. At the end of a block no load is unseen, and no store unread.
// 4. A barrier's phase ends when no arrival is pending and its count of bytes is 0, which may be below 0
//    between (bytes may complete before they are announced, while an arrival is pending).
//
// @source PTX ISA: mbarrier, cp.async.bulk, async proxy, fence.proxy.async; CUDA C++ programming guide: a
//         barrier is initialised, then fenced, before a bulk copy uses it
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/rng.h"
#include "ptx/memory.h"

namespace cachalot::ptx {

// When transfers happen: at once, when a thread cannot go on without, at any time.
enum class Mood { kEarly, kLate, kRandom };

// Whose stores a proxy fence covers.
enum class Fenced : std::uint8_t { kAll, kShared, kGlobal };

class Bulk {
 public:
  Bulk(TrackedMemory& shared, GlobalMemory& global, Mood mood, base::Rng& rng, bool has_bulk)
      : shared_(shared), global_(global), mood_(mood), rng_(rng), has_bulk_(has_bulk) {}

  void init(std::uint32_t thread, std::uint64_t barrier, std::uint32_t count);
  void arrive(std::uint64_t barrier, std::uint32_t expected_bytes);
  // Whether the phase of this parity is over; may say no once more than it must.
  bool try_wait(std::uint64_t barrier, std::uint32_t parity);
  void fence(std::uint32_t thread, Fenced fenced);

  void load(std::uint32_t thread, std::uint64_t to, std::uint64_t from, std::uint32_t bytes,
            std::uint64_t barrier);
  void store(std::uint32_t thread, std::uint64_t to, std::uint64_t from, std::uint32_t bytes);
  void commit(std::uint32_t thread);
  // Until at most `late` of the thread's groups have not been read (or read and written).
  void wait(std::uint32_t thread, std::uint32_t late, bool reads_only);

  // Ordinary accesses.
  void touch_shared(std::uint32_t thread, std::uint64_t at, std::uint64_t bytes, bool writes) {
    if (has_bulk_) check_shared(thread, at, bytes, writes);
  }
  void touch_global(std::uint32_t thread, std::uint64_t at, std::uint64_t bytes, bool writes) {
    if (has_bulk_) check_global(thread, at, bytes, writes);
  }

  // A turn of the block: some transfers may happen.
  void turn() {
    if (!transfers_.empty()) happen();
  }
  // One that waits must, if there is one. @return  whether
  bool hurry();
  void end();

 private:
  struct Barrier {
    std::uint32_t expected = 0, pending = 0;
    std::int64_t bytes = 0;
    std::uint64_t phase = 0;
    std::uint32_t thread = 0;   // that made it
    std::uint64_t written = 0;  // when
  };
  struct Transfer {
    bool is_load = false;
    std::uint32_t thread = 0, bytes = 0;
    std::uint64_t shared = 0, global = 0;
    std::uint64_t barrier = 0, phase = 0;  // of a load, when it has completed
    std::uint64_t group = 0;               // of a store
    bool has_read = false, has_written = false;
    bool read_was_seen = false;
    std::vector<std::byte> taken;  // by a store that has read
  };
  // Bytes that a thread wrote, at a time.
  struct Written {
    std::uint64_t at, bytes, when;
    std::uint32_t thread;
  };
  struct Groups {
    std::uint64_t committed = 0;    // the next group's number
    std::uint64_t fenced = 0;       // shared memory, when
    std::uint64_t uncommitted = 0;  // stores
  };

  void check_shared(std::uint32_t thread, std::uint64_t at, std::uint64_t bytes, bool writes);
  void check_global(std::uint32_t thread, std::uint64_t at, std::uint64_t bytes, bool writes);
  void happen();
  void check_fenced(const std::vector<Written>& all, std::uint64_t at, std::uint64_t bytes);
  void check_transfer(std::uint64_t shared, std::uint64_t global, std::uint32_t bytes);
  void check_other_transfers(const Transfer& transfer);
  Barrier& find(std::uint64_t barrier);
  void look_at(Barrier& barrier);
  // The next thing that a transfer does. @return  false: there is none
  bool advance(Transfer& transfer);
  void complete(Transfer& transfer);
  void read(Transfer& transfer);

  TrackedMemory& shared_;
  GlobalMemory& global_;
  const Mood mood_;
  base::Rng& rng_;
  const bool has_bulk_;
  std::map<std::uint64_t, Barrier> barriers_;           // by address
  std::map<std::uint32_t, Groups> groups_;              // by thread
  std::vector<Transfer> transfers_;                     // whose end has not been seen
  std::vector<Written> shared_writes_, global_writes_;  // that no fence has covered
  std::uint64_t now_ = 1;
};

}  // namespace cachalot::ptx
