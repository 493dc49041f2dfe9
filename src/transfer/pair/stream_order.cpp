#include "transfer/pair/stream_order.h"

#include <cinttypes>
#include <cstring>
#include <limits>
#include <numeric>

namespace cachalot::transfer {
namespace {

constexpr const char* kLetters[kLoopOrders] = {"KNH",  "KHN", "KBHN", "BKNH", "BKHN", "BHKN",
                                               "BHNK", "NKH", "NHK",  "HKN",  "HNK"};

// False: beyond 63 bits.
bool multiply(std::uint64_t a, std::uint64_t b, std::uint64_t& product) {
  return !__builtin_mul_overflow(a, b, &product) && product >> 63 == 0;
}

std::uint64_t content_of(const StreamShape& shape) {
  return shape.part[0].content_bytes + shape.part[1].content_bytes;
}

// Shapes come from peers: after this check no product of sizes overflows.
Status check(const StreamShape& shape) {
  std::uint64_t bytes = 0;
  const std::uint64_t most = std::uint64_t{1} << 62;
  if (shape.heads == 0 || shape.page_tokens == 0 || shape.part[0].content_bytes == 0 ||
      shape.part[0].content_bytes > most || shape.part[1].content_bytes > most ||
      shape.page_tokens > std::numeric_limits<std::uint32_t>::max() ||
      !multiply(shape.heads, content_of(shape), bytes) ||
      !multiply(bytes, shape.page_tokens, bytes)) {
    return Error::make(Code::kInvalidArgument,
                       "KV stream: a shape of %" PRIu64 " heads of %" PRIu64 " and %" PRIu64
                       " bytes in pages of %" PRIu64 " tokens, expected sizes from 1 to 2^62",
                       shape.heads, shape.part[0].content_bytes, shape.part[1].content_bytes,
                       shape.page_tokens);
  }
  return {};
}

Status check_equal(const char* what, std::uint64_t source, std::uint64_t destination) {
  if (source == destination) return {};
  return Error::make(Code::kInvalidArgument,
                     "KV stream: %s of the source %" PRIu64 ", of the destination %" PRIu64
                     ", expected equal ones",
                     what, source, destination);
}

// One step further out: the steps of a loop are neighbours.
bool widen(std::uint64_t& run, std::uint64_t count, std::uint64_t stride) {
  if (count > 1 && stride != run) return false;
  run *= count;
  return true;
}

// How many bytes lie together, of one part or of both.
std::uint64_t run_bytes(const StreamShape& shape, const StreamOrder& order, std::uint32_t part) {
  const char* const loops = loop_letters(order.loops);
  std::size_t i = std::strlen(loops);
  std::uint64_t run = shape.part[part].content_bytes;
  if (is_packed(shape, order.loops)) {
    run = content_of(shape);
    --i;
  }
  const std::uint64_t unit = order.page_tokens, stride = shape.part[part].token_stride;
  while (i-- > 0) {
    switch (loops[i]) {
      case 'K':
        if (i == 0) return run;
        if (shape.part[1].content_bytes == 0) continue;
        if (shape.part_step < 0 || !widen(run, 2, static_cast<std::uint64_t>(shape.part_step))) {
          return run;
        }
        continue;
      case 'H':
        if (!widen(run, shape.heads, shape.part[part].head_stride)) return run;
        continue;
      case 'N':
        if (unit == 0) {
          widen(run, shape.page_tokens, stride);
          return run;  // the next page is elsewhere
        }
        if (!widen(run, unit, stride)) return run;
        continue;
      default:
        std::uint64_t unit_stride = 0;
        if (multiply(unit, stride, unit_stride)) widen(run, shape.page_tokens / unit, unit_stride);
        return run;
    }
  }
  return run;
}

}  // namespace

const char* loop_letters(Loops loops) {
  const auto i = static_cast<std::uint32_t>(loops);
  return i < kLoopOrders ? kLetters[i] : nullptr;
}

bool is_packed(const StreamShape& shape, Loops loops) {
  const char* const letters = loop_letters(loops);
  return letters[std::strlen(letters) - 1] == 'K' && shape.part[1].content_bytes != 0 &&
         shape.part_step > 0 &&
         static_cast<std::uint64_t>(shape.part_step) == shape.part[0].content_bytes;
}

bool is_possible(const StreamShape& shape, const StreamOrder& order) {
  const char* const loops = loop_letters(order.loops);
  if (loops == nullptr) return false;
  const bool has_page = std::strchr(loops, 'B') != nullptr;
  if (has_page != (order.page_tokens != 0)) return false;
  if (has_page && shape.page_tokens % order.page_tokens != 0) return false;
  // The parts of a layer may lie anywhere. Further inside they need one step, and equal sizes or none between.
  if (loops[0] == 'K' || shape.part[1].content_bytes == 0) return true;
  if (shape.part_step == 0) return false;
  return shape.part[0].content_bytes == shape.part[1].content_bytes ||
         is_packed(shape, order.loops);
}

std::uint64_t runs_of(const StreamShape& shape, const StreamOrder& order) {
  const std::uint64_t tokens = shape.heads * shape.page_tokens;
  if (loop_letters(order.loops)[0] != 'K') {
    return tokens * content_of(shape) / run_bytes(shape, order, 0);
  }
  std::uint64_t runs = 0;
  for (std::uint32_t part = 0; part < kParts; ++part) {
    const std::uint64_t content = shape.part[part].content_bytes;
    if (content != 0) runs += tokens * content / run_bytes(shape, order, part);
  }
  return runs;
}

Result<StreamOrder> choose_order(const StreamShape& source, const StreamShape& destination) {
  CACHALOT_TRY(check(source));
  CACHALOT_TRY(check(destination));
  CACHALOT_TRY(check_equal("heads", source.heads, destination.heads));
  for (std::uint32_t part = 0; part < kParts; ++part) {
    CACHALOT_TRY(check_equal("bytes of a head", source.part[part].content_bytes,
                             destination.part[part].content_bytes));
  }
  const auto unit =
      static_cast<std::uint32_t>(std::gcd(source.page_tokens, destination.page_tokens));
  StreamOrder best;
  unsigned __int128 fewest = ~static_cast<unsigned __int128>(0);
  for (std::uint32_t i = 0; i < kLoopOrders; ++i) {
    const StreamOrder order{static_cast<Loops>(i),
                            kLetters[i][0] == 'B' || kLetters[i][1] == 'B' ? unit : 0};
    if (!is_possible(source, order) || !is_possible(destination, order)) continue;
    // Runs for each token, over one denominator.
    const unsigned __int128 runs =
        static_cast<unsigned __int128>(runs_of(source, order)) * destination.page_tokens +
        static_cast<unsigned __int128>(runs_of(destination, order)) * source.page_tokens;
    if (runs < fewest) {
      fewest = runs;
      best = order;
    }
  }
  return best;
}

}  // namespace cachalot::transfer
