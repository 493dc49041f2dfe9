// Which of two shadows a cache follows: LRU, unless density has proved better and the way to it and
// back is paid for.
//
// A shadow is what a cache of this size would hold under one policy, in names only; both see each
// request, so hits are compared and not predicted. What the comparison does not tell is the price
// of changing over: the cache does not hold what the shadow holds. It is known, though, what
// becomes of blocks that only one shadow holds: they are used again or dropped. From the share that
// is used again comes what it costs to lack `n` of them: that share of n hits, once.
//
// 1. Nothing is ever done that is expected to leave the cache behind LRU by more than kSlack of all
//    references, the way back included. Being ahead adds to what may be risked.
// 2. It goes over to density when all of these hold:
//    - density's lead, counted since it was last at 0, is kSureness standard deviations (of a sum
//      of requests) above 0, twice as much evidence after each failure;
//    - the lead is above the price of going there and back;
//    - kLeastRequests were seen;
//    - half of the slack that is left pays for the way back and a standard deviation more, as such
//      blocks are used by whole requests: the other half is for finding out;
//    - and what then is left of the slack is a bad request: the hits that density lacks in those
//      where it lacks some, each weighted by its size.
// 3. It returns when LRU's lead is as sure, or when it would be further behind than in 1.
//
// @source the lead that starts again at 0: Page's cumulative sum, Biometrika 1954; shadows as
//         judges: set dueling, Qureshi et al., ISCA 2007
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace cachalot::eviction {

enum class Shadow : std::uint8_t { kLru, kDensity };
inline constexpr std::array<Shadow, 2> kShadows = {Shadow::kLru, Shadow::kDensity};
constexpr Shadow other(Shadow s) {
  return s == Shadow::kLru ? Shadow::kDensity : Shadow::kLru;
}
constexpr std::size_t index(Shadow s) {
  return static_cast<std::size_t>(s);
}

// @threads one at a time
// @cost    O(1)
class ShadowGuard {
 public:
  // A request and what it left, in blocks; arrays are by shadow.
  struct Request {
    std::uint32_t blocks;                    // of its path
    std::uint32_t hits;                      // the cache's own
    std::array<std::uint32_t, 2> in_shadow;  // hits of each
    std::array<std::uint32_t, 2> missing;    // in the shadow and not in the cache
    std::array<std::uint32_t, 2> departed;   // in the cache and not in the shadow
  };

  Shadow followed() const { return followed_; }
  std::uint64_t hits(Shadow s) const { return hits_[index(s)]; }

  // What became of a block that was in this shadow only. `space`: blocks of a shadow; as many fates
  // are remembered.
  void count_fate(Shadow s, bool is_used, std::uint32_t space);
  // After each request, which all fates of its blocks precede.
  void judge(const Request& request);

 private:
  // A quarter of the tenth of a point that is bearable: what is lost has come to twice the slack.
  static constexpr double kSlack = 1.0 / 4096;
  // Fewer are an anecdote, and their slack is nothing beside one request.
  static constexpr std::uint64_t kLeastRequests = 2048;
  // One chance in a thousand to go on noise.
  static constexpr double kSureness = 3;

  struct Fates {
    double used = 0, dropped = 0;
    double used_now = 0;  // by the request in hand
    double squares = 0;   // of what each request used
  };

  bool is_sure() const { return lead_ * lead_ > kSureness * kSureness * doubt_ * variance_; }
  // Hits that a cache misses which lacks `blocks` of those that only this shadow holds.
  double price(Shadow s, std::uint32_t blocks) const;
  // Its standard deviation.
  double spread(Shadow s, std::uint32_t blocks) const;

  Shadow followed_ = Shadow::kLru;
  std::uint64_t requests_ = 0;
  std::uint64_t references_ = 0;
  std::uint64_t own_hits_ = 0;
  std::array<std::uint64_t, 2> hits_ = {0, 0};
  std::array<Fates, 2> fates_;
  double lead_ = 0;      // of the shadow that is not followed
  double variance_ = 0;  // of it
  double lost_ = 0;      // hits of LRU above density's, of all requests in which it had more
  double lost_squares_ = 0;
  double doubt_ = 1;  // doubled by each failure
};

}  // namespace cachalot::eviction
