#include "stitch/placement_history.h"

#include "base/check.h"
#include "base/rng.h"

namespace cachalot::stitch {

// Over the last kContext codes: the sum of code * kFactor^age, from which the oldest drops out.
std::uint64_t PlacementHistory::hash_with(std::uint64_t code) {
  constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15u;
  constexpr std::uint64_t kOldest = [] {
    std::uint64_t power = 1;
    for (int i = 0; i < kContext; ++i) power *= kFactor;
    return power;
  }();
  const std::uint64_t oldest = next_ >= kContext ? at(next_ - kContext).code : 0;
  return hash_ * kFactor + code - oldest * kOldest;
}

const Place* PlacementHistory::expect(std::uint64_t bytes, gpu::StreamId stream) {
  code_ = base::mix64(bytes * 0x2545f4914f6cdd1du + stream);
  hash_with_code_ = hash_with(code_);
  if (contexts_ == nullptr) {
    contexts_.reset(static_cast<Context*>(std::calloc(kContexts, sizeof(Context))));
    CACHALOT_CHECK(contexts_ != nullptr);
  }
  if (!is_known(cursor_) || at(cursor_).code != code_) {
    const Context& found = context(base::mix64(hash_with_code_));
    const std::uint64_t request = found.request_and_one - 1;  // none becomes kNowhere
    cursor_ = found.hash == hash_with_code_ && is_known(request) ? request : kNowhere;
  }
  if (cursor_ == kNowhere) return nullptr;
  return &at(cursor_).place;
}

void PlacementHistory::record(const Place& place) {
  if (requests_.size() < kRequests) requests_.emplace_back();
  hash_ = hash_with_code_;
  at(next_) = {code_, place};
  context(base::mix64(hash_)) = {hash_, next_ + 1};
  ++next_;
  if (cursor_ != kNowhere) ++cursor_;
}

}  // namespace cachalot::stitch
