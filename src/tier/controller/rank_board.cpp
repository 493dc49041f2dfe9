#include "tier/controller/rank_board.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <optional>
#include <thread>

#include "base/check.h"
#include "base/clock.h"
#include "os/futex.h"
#include "os/shared_file.h"

namespace cachalot {
namespace tier {
namespace {

constexpr std::uint32_t kValueBits = 24;
constexpr std::uint64_t kMostValue = (std::uint64_t{1} << kValueBits) - 1;
constexpr std::uint64_t kMostRound = (std::uint64_t{1} << 40) - 2;

// Never 0.
std::uint64_t word_of(std::uint64_t round, std::uint64_t value) {
  return (round + 1) << kValueBits | value;
}
std::uint64_t round_key(std::uint64_t word) {
  return word >> kValueBits;
}

// The minimum of a round; none: some rank has not come.
std::optional<std::uint64_t> minimum_of(const RankBoard::Entry& entry, std::uint32_t ranks,
                                        std::uint64_t round) {
  std::uint64_t least = kMostValue;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const std::uint64_t word = entry.values[rank].load(std::memory_order_acquire);
    if (round_key(word) != round + 1) return std::nullopt;
    least = std::min(least, word & kMostValue);
  }
  return least;
}

// The entry's decision of `round` afterwards: `value`, or what another rank decided before.
std::uint64_t decide(RankBoard::Entry& entry, std::uint64_t round, std::uint64_t value) {
  std::uint64_t seen = entry.decision.load();
  const std::uint64_t wanted = word_of(round, value);
  while (round_key(seen) < round + 1) {
    if (!entry.decision.compare_exchange_weak(seen, wanted)) continue;
    entry.decisions.fetch_add(1);
    os::futex_wake(entry.decisions);
    return wanted;
  }
  return seen;
}

}  // namespace

Result<std::uint64_t> BoardRank::minimum(std::uint64_t round, std::uint64_t value,
                                         std::uint64_t timeout_ns) {
  if (round > kMostRound || value > kMostValue) {
    return Error::make(Code::kInvalidArgument,
                       "rank agreement: round %" PRIu64 ", value %" PRIu64
                       "; expected a round below 2^40 and a value below 2^24",
                       round, value);
  }
  RankBoard::Entry& entry = board_->entries[round % RankBoard::kEntries];
  entry.values[rank_].store(word_of(round, value), std::memory_order_release);
  const std::uint64_t begin = base::SteadyClock::read();
  std::uint64_t decision = entry.decision.load();
  while (round_key(decision) < round + 1) {
    const std::uint32_t seen = entry.decisions.load();
    const std::uint64_t waited = base::SteadyClock::read() - begin;
    if (const auto least = minimum_of(entry, ranks_, round)) {
      decision = decide(entry, round, *least);
    } else if (waited >= timeout_ns) {
      decision = decide(entry, round, 0);
    } else {
      // A rank that writes the last value decides; the short limit is for one that dies just before.
      os::futex_wait(entry.decisions, seen,
                     std::min<std::uint64_t>(timeout_ns - waited, 1'000'000));
      decision = entry.decision.load();
    }
  }
  if (round_key(decision) != round + 1) {
    return Error::make(Code::kStale,
                       "rank agreement: rank %u asks for round %" PRIu64
                       ", but the others are %u rounds or more ahead",
                       rank_, round, RankBoard::kEntries);
  }
  return decision & kMostValue;
}

}  // namespace tier

std::vector<std::shared_ptr<RankGroup>> make_ranks(std::uint32_t ranks) {
  CACHALOT_CHECK(ranks >= 1 && ranks <= tier::kMostRanks);
  const auto board = std::make_shared<tier::RankBoard>();
  std::vector<std::shared_ptr<RankGroup>> group;
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    group.push_back(std::make_shared<tier::BoardRank>(board, rank, ranks));
  return group;
}

Result<std::shared_ptr<RankGroup>> join_ranks(const std::string& path, std::uint32_t rank,
                                              std::uint32_t ranks) {
  using namespace std::chrono_literals;
  if (ranks == 0 || ranks > tier::kMostRanks || rank >= ranks) {
    return Error::make(
        Code::kInvalidArgument,
        "rank agreement: rank %u of %u; expected at most %u ranks, and a rank below them", rank,
        ranks, tier::kMostRanks);
  }
  Result<os::SharedFile> file =
      os::SharedFile::create(path, sizeof(tier::RankBoard), {.huge_pages = false});
  // Another rank makes it at this moment: it is empty for a while.
  for (int tries = 0; !file && tries < 200; ++tries) {
    file = os::SharedFile::open(path, os::Access::kReadWrite, os::Owners::kTrusted);
    if (file && file->bytes() >= sizeof(tier::RankBoard)) break;
    if (!file && file.error().code != Code::kBadInput) return file.error();
    std::this_thread::sleep_for(10ms);
  }
  if (!file) return file.error();
  if (file->bytes() != sizeof(tier::RankBoard)) {
    return Error::make(Code::kInvalidArgument,
                       "rank agreement: %s has %" PRIu64 " bytes; expected the %zu of a board",
                       path.c_str(), file->bytes(), sizeof(tier::RankBoard));
  }
  CACHALOT_TRY_ASSIGN(os::Mapping map, file->map({.huge_pages = false}));
  const auto memory = std::make_shared<os::Mapping>(std::move(map));
  auto* const board = reinterpret_cast<tier::RankBoard*>(memory->data());
  std::uint64_t others = 0;
  if (!board->ranks.compare_exchange_strong(others, ranks) && others != ranks) {
    return Error::make(Code::kInvalidArgument,
                       "rank agreement: %s is of %" PRIu64 " ranks; expected %u", path.c_str(),
                       others, ranks);
  }
  const std::uint64_t bit = std::uint64_t{1} << rank;
  if ((board->joined.fetch_or(bit) & bit) != 0) {
    return Error::make(Code::kInvalidArgument,
                       "rank agreement: %s was joined by rank %u before; expected a new file each "
                       "time the ranks start",
                       path.c_str(), rank);
  }
  return std::shared_ptr<RankGroup>(std::make_shared<tier::BoardRank>(
      std::shared_ptr<tier::RankBoard>(memory, board), rank, ranks));
}

}  // namespace cachalot
