// A device's chunks, shared by processes: each has a guaranteed number and may borrow what the others
// do not use; a process that gets less than its guarantee asks the borrowers, and they give back what no request
// of theirs needs.
//
// 1. A credit is one byte that names its owner, changed by compare-and-swap: at every moment, whichever process
//    dies when, each credit has one owner or none, and there are never more than the budget's.
// 2. The credits of a process that has ended are taken back on evidence, never on silence: the kernel
//    has dropped its file lock. A process that needs credits checks, and so does one that joins.
// 3. The guarantees of all together are no more than the budget.
// 4. Beyond its guarantee no process takes what others have asked for as part of theirs.
// 5. A process is asked for at most what it has beyond its guarantee, and never twice for the same.
//
// The memory of a process that was killed is the device's again when the driver has noticed, which may
// be a little later than its credits are; a create() then fails, and gives its credits back.
//
// @threads any; between processes of one machine
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "vtensor/budget_file.h"
#include "vtensor/chunk_budget.h"

namespace cachalot::vtensor {

struct SharedBudgetOptions {
  std::string path;          // of the file: made by the first, removed by the last
  std::uint64_t chunks = 0;  // in all; 0: as the file says, which must be there
  std::uint64_t chunk_bytes = std::uint64_t{2} << 20;
  std::uint64_t guaranteed_chunks = 0;
};

class SharedBudget final : public ChunkBudget {
 public:
  // A file whose users were all killed is used as it is, or made anew with other sizes.
  // @errors kInvalidArgument: sizes unlike the file's, more guarantees than chunks; kBusy: all slots
  //         are taken; as BudgetFile::open
  static Result<std::unique_ptr<SharedBudget>> join(const SharedBudgetOptions& options);
  // Gives everything back; removes the file if no other process uses it.
  ~SharedBudget() override;

  // @cost  a look at each credit until enough are free: 20 us for 80 GB when they are rare
  std::uint64_t take(std::uint64_t wanted) override;
  void give(std::uint64_t credits) override;
  void ask(std::uint64_t wanted) override;
  std::uint64_t owed() const override;
  std::uint64_t asked() const override;
  std::uint32_t wait_asked(std::uint32_t seen) override;
  void stop_waiting() override;

  std::uint64_t held() const;
  std::uint64_t chunks() const { return file_.credits(); }
  // Credits without an owner, counted one by one.
  std::uint64_t count_free() const;

  // Sleeps until credits were given back since given() returned `seen`. @return whether some were
  std::uint32_t given() const;
  bool wait_given(std::uint32_t seen, std::uint64_t timeout_ns) const;

 private:
  explicit SharedBudget(BudgetFile file) : file_(std::move(file)) {}

  BudgetHeader& header() const { return file_.header(); }
  BudgetSlot& own() const { return header().slots[slot_]; }
  std::uint8_t mark() const { return static_cast<std::uint8_t>(slot_ + 1); }
  std::uint64_t allowance() const;
  std::uint64_t take_free(std::uint64_t wanted);
  void put_back(std::uint64_t credits);
  void count_as_answer(std::uint64_t credits);
  void wake_those_who_wait();

  Status take_slot(const SharedBudgetOptions& options);
  Status check_guarantee(const SharedBudgetOptions& options) const;
  bool take_back_of_the_dead();
  bool is_abandoned() const;  // unused; with the door's lock held
  void wipe();
  void clear_slot(std::uint32_t slot);
  void forget_slot(std::uint32_t slot);

  BudgetFile file_;
  std::unique_ptr<os::FileLock> lock_;  // on the slot: alive as long as it is held
  std::uint32_t slot_ = kBudgetSlots;   // none
  std::mutex mine_mutex_;               // of the next two
  std::vector<std::uint64_t> mine_;     // numbers of the credits that this process has
  std::uint64_t next_ = 0;              // where to look for free ones
  std::mutex dead_;                     // one thread looks for them
  std::atomic<bool> has_asked_{false};
  std::atomic<bool> stop_{false};
};

}  // namespace cachalot::vtensor
