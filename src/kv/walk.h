// Walks the fragments of a block in pool order, the CPU's way: nested loops that add strides
// instead of taking a number apart (kv/fragment.h), with the same result.
#pragma once

#include <cachalot/geometry.h>

#include <algorithm>
#include <span>

#include "kv/fragment.h"

namespace cachalot::kv {

template <class F>
class Walk {
 public:
  Walk(const Plan& plan, std::span<const TokenRange> tokens, F& f)
      : plan_(plan),
        all_{0, plan.token_dimension < kMaxDimensions ? plan.dimension[plan.token_dimension].count
                                                      : 0},
        tokens_(tokens.empty() ? std::span(&all_, 1) : tokens),
        f_(f) {}
  Walk(const Walk&) = delete;

  void run() const {
    Places at;
    for (std::uint32_t k = 0; k < plan_.parts; ++k) {
      const PlanPart& part = plan_.part[k];
      at.part[k] = {part.tensor,   0, part.engine_offset, part.page_stride, part.pool_offset,
                    part.run_bytes};
    }
    outer(0, at);
  }

 private:
  struct Places {
    Fragment part[kParts];
  };

  // Calls g(step) for the steps of a dimension that were chosen.
  template <class G>
  void for_each_step(std::uint32_t d, G&& g) const {
    if (d != plan_.token_dimension) {
      for (std::uint32_t step = 0; step < plan_.dimension[d].count; ++step) g(step);
      return;
    }
    for (const TokenRange& range : tokens_) {
      for (std::uint32_t step = range.first; step < range.last; ++step) g(step);
    }
  }

  // Dimensions outside of the part: both parts go along.
  void outer(std::uint32_t d, const Places& at) const {
    if (d == plan_.outer_dimensions) {
      for (std::uint32_t k = 0; k < plan_.parts; ++k) inner(d, k, at.part[k]);
      return;
    }
    if (plan_.parts == 1) return inner(d, 0, at.part[0]);
    for_each_step(d, [&](std::uint32_t step) {
      Places next = at;
      for (std::uint32_t k = 0; k < plan_.parts; ++k) advance(plan_, k, d, step, next.part[k]);
      outer(d + 1, next);
    });
  }

  void inner(std::uint32_t d, std::uint32_t part, const Fragment& at) const {
    if (d == plan_.dimensions) return f_(at);
    if (d + 1 == plan_.dimensions && d == plan_.token_dimension) return token_runs(d, part, at);
    for_each_step(d, [&](std::uint32_t step) {
      Fragment next = at;
      advance(plan_, part, d, step, next);
      if (d + 1 == plan_.dimensions) return f_(next);
      inner(d + 1, part, next);
    });
  }

  // The innermost dimension is a block's tokens: neighbours in one page are one fragment where they
  // are contiguous on both sides.
  void token_runs(std::uint32_t d, std::uint32_t part, const Fragment& at) const {
    const PlanPart& strides = plan_.part[part];
    const std::uint32_t page_tokens = plan_.dimension[d].steps_per_page;
    const bool contiguous =
        strides.engine_stride[d] == at.bytes && strides.pool_stride[d] == at.bytes;
    Fragment run = at;
    std::uint32_t page_first = 0,
                  page_end = page_tokens;  // the page's tokens; found by counting up
    for (const TokenRange& range : tokens_) {
      for (std::uint32_t token = range.first; token < range.last;) {
        for (; token >= page_end; page_end += page_tokens) {
          ++run.page;
          page_first += page_tokens;
        }
        const std::uint32_t next = contiguous ? std::min(page_end, range.last) : token + 1;
        run.engine_offset = at.engine_offset + (token - page_first) * strides.engine_stride[d];
        run.pool_offset = at.pool_offset + token * strides.pool_stride[d];
        run.bytes = at.bytes * (next - token);
        f_(run);
        token = next;
      }
    }
  }

  const Plan& plan_;
  const TokenRange all_;
  const std::span<const TokenRange> tokens_;
  F& f_;
};

// Calls f(fragment) for each fragment of a block, in pool order.
// @param tokens  ascending; none: all. Some only with a plan of Grain::kToken.
template <class F>
void for_each_fragment(const Plan& plan, std::span<const TokenRange> tokens, F&& f) {
  Walk<F>(plan, tokens, f).run();
}

}  // namespace cachalot::kv
