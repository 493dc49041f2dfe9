#include "base/fail_point.h"

namespace cachalot::base {

#ifdef CACHALOT_FAIL_POINTS
std::atomic<FailPointHandler> fail_point_handler{nullptr};
#endif

const char* fail_point_name(FailPoint point) {
  static constexpr const char* kNames[] = {"none",
                                           "write_bulk",
                                           "read_bulk",
                                           "attach_line_written",
                                           "attach_seen",
                                           "attach_namespace",
                                           "grant_asked",
                                           "grant_taken",
                                           "put_stored",
                                           "put_posted",
                                           "put_answered",
                                           "looked_up",
                                           "read_copied",
                                           "read_validated",
                                           "pin_published",
                                           "pin_ended",
                                           "evict_asked",
                                           "detach_drained",
                                           "detach_said",
                                           "session_opened",
                                           "grant_popped",
                                           "grant_in_ledger",
                                           "grant_answered",
                                           "expansion_named",
                                           "expansion_empty",
                                           "commit_checked",
                                           "entry_written",
                                           "spill_written",
                                           "commit_in_ledger",
                                           "commit_answered",
                                           "tombstone_written",
                                           "eviction_done",
                                           "suspected",
                                           "released",
                                           "detach_freed",
                                           "takeover_announced",
                                           "takeover_entries_read",
                                           "takeover_ledger_read",
                                           "takeover_half_swept",
                                           "takeover_swept",
                                           "takeover_ledger_written",
                                           "takeover_done",
                                           "keeper_stopped"};
  static_assert(sizeof kNames / sizeof kNames[0] == static_cast<std::uint32_t>(FailPoint::kCount));
  const auto index = static_cast<std::uint32_t>(point);
  return index < static_cast<std::uint32_t>(FailPoint::kCount) ? kNames[index] : "?";
}

}  // namespace cachalot::base
