// A keeper's reign: its area and epoch, and the lines by which every other process knows them.
//
// States: prepared (epoch 0) -> announced -> serving -> ended. An announced or serving keeper is deposed
// once another keeper has announced itself; then it does nothing any more.
//
// @threads  one; has_successor(): any
#pragma once

#include <cachalot/result.h>

#include <cstdint>

#include "pool/format/access.h"
#include "pool/format/statistics.h"
#include "pool/format/storage_state.h"
#include "pool/keeper/keeper_options.h"
#include "pool/keeper/predecessor.h"

namespace cachalot::pool {

class Reign {
 public:
  Reign(const Access& access, const KeeperOptions& options) : access_(access), options_(options) {}

  // Chooses area and epoch, and publishes both.
  // @errors kBusy: no area is free; kRefused: the epochs of this pool are used up
  Status announce(std::uint32_t avoid_areas);
  // Publishes how the keeper serves, and that nothing of an earlier epoch counts from now on.
  void begin_to_serve();
  // Publishes that no keeper serves any more, after stop_serving().
  void stop_serving() { is_serving_ = false; }
  void end();
  // After end(): publishes that all payloads have reached the devices' files.
  void be_flushed();

  // Whether another keeper has announced itself, as the pool says now.
  bool has_successor() const;
  void be_deposed();

  std::uint32_t area() const { return area_; }
  std::uint32_t epoch() const { return epoch_; }  // 0: it does not rule yet
  const Predecessor& predecessor() const { return predecessor_; }
  bool is_serving() const { return is_serving_; }
  bool is_deposed() const { return is_deposed_; }

  // Repairs the keeper's line where it was overwritten. @return lines that were mended
  std::uint32_t mend_line() const;
  void publish_counters(const KeeperCounters& counters);
  // Writes only if the state has changed.
  void publish_storage(const StorageState& state);

 private:
  std::uint32_t next_epoch(std::uint32_t highest) const;
  void publish_line(std::uint32_t min_epoch, std::uint32_t flags);
  void publish_info() const;
  bool answers_too_early() const;

  const Access& access_;
  const KeeperOptions& options_;
  std::uint32_t area_ = 0;
  std::uint32_t epoch_ = 0;
  Predecessor predecessor_;
  KeeperLine line_{};  // as it was last published
  std::uint32_t counters_sequence_ = 0;
  StorageState storage_;  // as it was last published
  bool is_serving_ = false;
  bool is_deposed_ = false;
};

}  // namespace cachalot::pool
