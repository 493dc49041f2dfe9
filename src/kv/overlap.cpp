#include "kv/overlap.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace cachalot::kv {
namespace {

// Sums reach 2^65: a difference of two places, each within 2^63 of its plane's beginning.
__extension__ using Wide = __int128;

// A multiple of `stride` from least to most. It stands for the index of the first element, of the second
// one, or for the second one's minus the first one's.
struct Term {
  enum class Of { kFirst, kSecond, kDifference };
  std::uint32_t dimension = 0;
  Of of = Of::kDifference;
  Wide stride = 0;
  Wide least = 0, most = 0;
  Wide chosen = 0;
};

Wide floor_divide(Wide a, Wide b) {
  return a / b - (a % b < 0 ? 1 : 0);
}

// Terms whose sum with `base` shall be above `low` and below `high`.
class Equation {
 public:
  Equation(Wide low, Wide high) : low_(low), high_(high) {}

  void add(const Term& term) { terms_[count_++] = term; }
  // Before the first find(), and before any term is changed.
  void sort() {
    std::sort(terms_.begin(), terms_.begin() + count_,
              [](const Term& a, const Term& b) { return a.stride > b.stride; });
  }
  std::uint32_t count() const { return count_; }
  Term& term(std::uint32_t i) { return terms_[i]; }

  bool find(Wide base, std::uint64_t& steps_left) {
    below_[count_] = {0, 0, 0};
    for (std::uint32_t i = count_; i-- > 0;) {
      const Term& term = terms_[i];
      const Below& next = below_[i + 1];
      below_[i] = {next.least + term.least * term.stride, next.most + term.most * term.stride,
                   std::gcd(static_cast<std::uint64_t>(term.stride), next.divisor)};
    }
    return find_from(0, base, steps_left);
  }

 private:
  // Of the terms from here on: the bounds of their sum, and what divides it.
  struct Below {
    Wide least = 0, most = 0;
    std::uint64_t divisor = 0;
  };

  bool find_from(std::uint32_t i, Wide sum, std::uint64_t& steps_left) {
    if (steps_left == 0 || --steps_left == 0) return false;
    if (i == count_) return low_ < sum && sum < high_;
    if (!may_reach(sum, below_[i].divisor)) return false;
    Term& term = terms_[i];
    const Below& rest = below_[i + 1];
    Wide first = term.least, last = term.most;
    if (term.stride != 0) {
      first = std::max(first, floor_divide(low_ - sum - rest.most, term.stride) + 1);
      last = std::min(last, -floor_divide(sum + rest.least - high_, term.stride) - 1);
    } else {
      first = last = std::clamp(Wide{0}, term.least, term.most);
    }
    for (term.chosen = first; term.chosen <= last; ++term.chosen) {
      if (find_from(i + 1, sum + term.chosen * term.stride, steps_left)) return true;
    }
    return false;
  }

  // Whether a multiple of the divisor leads from `sum` between low and high.
  bool may_reach(Wide sum, std::uint64_t divisor) const {
    if (divisor == 0) return low_ < sum && sum < high_;
    const Wide steps = floor_divide(low_ - sum, divisor) + 1;
    return sum + steps * divisor < high_;
  }

  Wide low_, high_;
  std::array<Term, std::size_t{2} * kPlaneDimensions> terms_;
  std::uint32_t count_ = 0;
  std::array<Below, std::size_t{2} * kPlaneDimensions + 1> below_;
};

Overlap overlap_of(Equation& equation) {
  Overlap overlap;
  for (std::uint32_t i = 0; i < equation.count(); ++i) {
    const Term& term = equation.term(i);
    const Wide by = term.chosen;
    const auto size = static_cast<std::uint64_t>(by < 0 ? -by : by);
    const bool to_first =
        term.of == Term::Of::kFirst || (term.of == Term::Of::kDifference && by < 0);
    (to_first ? overlap.first : overlap.second)[term.dimension] = size;
  }
  return overlap;
}

}  // namespace

std::optional<Overlap> OverlapSearch::within(const Plane& plane) {
  const auto bytes = static_cast<Wide>(plane.bytes);
  Equation equation(-bytes, bytes);
  for (std::uint32_t d = 0; d < kPlaneDimensions; ++d) {
    const Wide most = static_cast<Wide>(plane.count[d]) - 1;
    if (most > 0) equation.add({d, Term::Of::kDifference, plane.stride[d], -most, most});
  }
  equation.sort();
  // The elements differ in one dimension first: there the second has the larger index. Dimensions before it
  // are equal.
  for (std::uint32_t lead = 0; lead < equation.count(); ++lead) {
    Term& term = equation.term(lead);
    term.least = 1;
    if (equation.find(0, steps_left_)) return overlap_of(equation);
    term.least = term.most = 0;
  }
  return std::nullopt;
}

std::optional<Overlap> OverlapSearch::between(const Plane& a, const Plane& b) {
  // The second element begins before the first ends, and ends after the first begins.
  Equation equation(-static_cast<Wide>(b.bytes), a.bytes);
  for (std::uint32_t d = 0; d < kPlaneDimensions; ++d) {
    const Wide most_a = static_cast<Wide>(a.count[d]) - 1;
    const Wide most_b = static_cast<Wide>(b.count[d]) - 1;
    if (a.stride[d] == b.stride[d]) {
      if (most_a > 0 || most_b > 0)
        equation.add({d, Term::Of::kDifference, a.stride[d], -most_a, most_b});
      continue;
    }
    if (most_a > 0) equation.add({d, Term::Of::kFirst, a.stride[d], -most_a, 0});
    if (most_b > 0) equation.add({d, Term::Of::kSecond, b.stride[d], 0, most_b});
  }
  equation.sort();
  if (!equation.find(static_cast<Wide>(b.at) - static_cast<Wide>(a.at), steps_left_))
    return std::nullopt;
  return overlap_of(equation);
}

}  // namespace cachalot::kv
