// Hits that the keeper's order of use has not learned yet, sent in batches.
//
// @threads one at a time
#pragma once

#include <cachalot/result.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "pool/client/client_namespace.h"
#include "pool/client/keeper_calls.h"
#include "pool/format/requests.h"
#include "pool/format/statistics.h"

namespace cachalot::pool {

class HitReports {
 public:
  HitReports(KeeperCalls& calls, const ClientNamespace& name_space, LiveClientCounters& counters)
      : calls_(calls), namespace_(name_space), counters_(counters) {}

  // Sends a full batch if the keeper takes one. Never waits: else the batch is dropped and counted.
  void add(const BlockUse& use) {
    uses_[count_++] = use;
    if (count_ == uses_.size()) post_or_drop();
  }
  bool is_empty() const { return count_ == 0; }
  // Sends what there is. Needs a credit for one line and one answer line.
  void post();
  // The same, and waits for the credit.
  Status flush();
  void clear() { count_ = 0; }

 private:
  void post_or_drop();

  KeeperCalls& calls_;
  const ClientNamespace& namespace_;
  LiveClientCounters& counters_;
  std::array<BlockUse, kUsesInHead> uses_;
  std::uint32_t count_ = 0;
};

inline void HitReports::post_or_drop() {
  if (!calls_.has_credit(1, 1)) calls_.poll();
  if (calls_.has_credit(1, 1)) return post();
  // A keeper that is slow, or gone: no reader waits for it.
  counters_[ClientCounter::kLostReports] += count_;
  count_ = 0;
}

inline Status HitReports::flush() {
  if (is_empty()) return {};
  CACHALOT_TRY(calls_.wait_for_credit(1, 1));
  post();
  return {};
}

inline void HitReports::post() {
  UsesPayload uses{};
  uses.namespace_id = namespace_.id();
  std::copy_n(uses_.begin(), count_, uses.uses);
  calls_.post({static_cast<std::uint8_t>(Op::kTouch), static_cast<std::uint16_t>(count_), 1,
               KeeperCalls::kIgnore},
              rpc::request_payload(uses));
  count_ = 0;
}

}  // namespace cachalot::pool
