// The keeper that a client is attached to, or attaches to: whether it still rules, and what it says of the
// client's slot.
//
// @threads one
#pragma once

#include <cachalot/result.h>

#include <cstdint>

#include "pool/client/client_options.h"
#include "pool/reader/directory.h"

namespace cachalot::pool {

class KeeperWatch {
 public:
  explicit KeeperWatch(const ClientContext& context)
      : context_(context), directory_(context.access) {}

  // The keeper lines, as they were when the client began to attach.
  const KeeperView& view() const { return view_; }
  void watch(const KeeperView& keeper) { view_ = keeper; }

  // The keeper lines, read now.
  KeeperView read() const { return directory_.read_keepers(); }
  // Whether the keeper's process has ended, if this can be known. @cost may be a system call
  bool has_ended(const KeeperView& keeper) const {
    return context_.options.keeper_has_ended && context_.options.keeper_has_ended(keeper.keeper);
  }
  // By these lines, the watched keeper rules and serves.
  bool is_serving(const KeeperView& now) const {
    return now.epoch == view_.epoch && (now.flags & kKeeperServing) != 0;
  }
  // The next keeper has announced itself, and does not serve yet.
  bool is_taken_over() const {
    const KeeperView now = read();
    return now.min_epoch != now.epoch && !has_ended(now);
  }

  // Call in each round of a wait for the watched keeper. @errors kNoKeeper: it has gone
  Status check_stays(std::uint32_t round) const;

  // What the watched keeper says of this client's slot. False: nothing that can be read.
  bool read_slot(ViewLine& line) const {
    return context_.access.region.read_as(
               context_.access.layout.view_line(view_.keeper, context_.slot), line) &&
           line.epoch == view_.epoch;
  }

  // The keeper did not react to a line of this client in time.
  Error did_not_see_client() const;

 private:
  const ClientContext& context_;
  const DirectoryReader directory_;
  KeeperView view_;
};

inline Status KeeperWatch::check_stays(std::uint32_t round) const {
  constexpr std::uint32_t kRoundsBetweenLooks = 64;  // at the process, which takes system calls
  const KeeperView now = read();
  const bool has_died = round % kRoundsBetweenLooks == 0 && has_ended(now);
  if (is_serving(now) && !has_died) return {};
  return Error::make(Code::kNoKeeper,
                     "the keeper of this pool went away while client slot %u attached",
                     context_.slot);
}

inline Error KeeperWatch::did_not_see_client() const {
  KeeperLine keeper{};
  (void)context_.access.region.read_as(context_.access.layout.keeper_line(view_.keeper), keeper);
  return Error::make(Code::kNoKeeper,
                     "the keeper, pid %u, did not see client slot %u within %llu ms "
                     "(`cachalot serve --take-over` replaces one that hangs)",
                     keeper.pid, context_.slot,
                     static_cast<unsigned long long>(context_.options.timeout_ns / 1'000'000));
}

}  // namespace cachalot::pool
