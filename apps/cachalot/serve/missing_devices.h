// Devices that were added to a pool and that a standby cannot open.
//
// While it waits for them an operator may put them back, another standby may take over, and engines read what is there. But
// nothing is stored meanwhile, so it does not wait for ever unless it is told to.
//
// @threads one
#pragma once

#include <cstdint>

#include "base/rare_line.h"
#include "pool/pool.h"

namespace cachalot::apps {

class MissingDevices {
 public:
  // @param patience_s  0: without end
  MissingDevices(std::uint32_t patience_s, bool goes_without)
      : patience_ns_(patience_s * kSecondNs), is_told_to_(goes_without) {}

  // While another keeper serves, once a second: an operator reads in the log what would be missing.
  void look(const pool::Pool& pool);
  // When it is this standby's turn.
  bool must_wait(const pool::Pool& pool);
  // It was told so, or its patience has ended.
  bool goes_without() const { return is_told_to_ || has_waited_; }

 private:
  static constexpr std::uint64_t kSecondNs = 1'000'000'000;

  bool is_due(std::uint64_t now_ns);

  const std::uint64_t patience_ns_;
  const bool is_told_to_;
  bool has_waited_ = false;
  std::uint64_t waits_since_ns_ = 0;  // 0: it does not wait
  std::uint64_t next_look_ns_ = 0;
  base::RareLine line_;
};

}  // namespace cachalot::apps
