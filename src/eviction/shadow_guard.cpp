#include "eviction/shadow_guard.h"

#include <cmath>

namespace cachalot::eviction {

void ShadowGuard::count_fate(Shadow s, bool is_used, std::uint32_t space) {
  Fates& fates = fates_[index(s)];
  (is_used ? fates.used : fates.dropped) += 1;
  if (is_used) fates.used_now += 1;
  if (fates.used + fates.dropped <= 64.0 + space) return;  // 64: of a tiny cache, too
  fates.used /= 2;
  fates.dropped /= 2;
  fates.squares /= 2;
}

// Where nothing is known every block counts as used again.
double ShadowGuard::price(Shadow s, std::uint32_t blocks) const {
  const Fates& fates = fates_[index(s)];
  return blocks * (fates.used + 1) / (fates.used + fates.dropped + 1);
}

double ShadowGuard::spread(Shadow s, std::uint32_t blocks) const {
  const Fates& fates = fates_[index(s)];
  return std::sqrt(blocks * fates.squares / (fates.used + fates.dropped + 1));
}

void ShadowGuard::judge(const Request& request) {
  ++requests_;
  references_ += request.blocks;
  own_hits_ += request.hits;
  for (const Shadow s : kShadows) hits_[index(s)] += request.in_shadow[index(s)];
  for (Fates& fates : fates_) {
    fates.squares += fates.used_now * fates.used_now;
    fates.used_now = 0;
  }
  const auto hits = [&](Shadow s) { return static_cast<double>(request.in_shadow[index(s)]); };
  const double ahead = hits(other(followed_)) - hits(followed_);
  lead_ += ahead;
  variance_ += ahead * ahead;
  const double worse = hits(Shadow::kLru) - hits(Shadow::kDensity);
  if (worse > 0) {
    lost_ += worse;
    lost_squares_ += worse * worse;
  }
  if (lead_ <= 0) lead_ = variance_ = 0;

  const double slack = kSlack * static_cast<double>(references_);
  const double behind =
      static_cast<double>(hits_[index(Shadow::kLru)]) - static_cast<double>(own_hits_);
  bool is_over = false;
  if (followed_ == Shadow::kLru) {
    // What density does not hold will be gone, and missed on the way back.
    const std::uint32_t gone = request.departed[index(Shadow::kDensity)];
    const double back = price(Shadow::kLru, gone);
    const double stake = lost_ > 0 ? lost_squares_ / lost_ : 0;
    const double there = price(Shadow::kDensity, request.missing[index(Shadow::kDensity)]);
    is_over = is_sure() && lead_ > there + back && requests_ >= kLeastRequests &&
              behind + 2 * (back + spread(Shadow::kLru, gone)) + stake <= slack;
  } else {
    const double back = price(Shadow::kLru, request.missing[index(Shadow::kLru)]);
    const bool has_failed = behind + back > slack;
    is_over = has_failed || (is_sure() && lead_ > back);
    if (has_failed) doubt_ *= 2;
  }
  if (!is_over) return;
  followed_ = other(followed_);
  lead_ = variance_ = 0;
}

}  // namespace cachalot::eviction
