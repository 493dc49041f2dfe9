#include "client/prefetch.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"

namespace cachalot::client {
namespace {

// A keeper that serves answers within microseconds; on a busy machine within some turns of its scheduler.
constexpr std::uint64_t kAnswerNs = 200'000'000;

// When a call ends whose caller waits for blocks for `wait_ns`, whatever the keeper does.
Deadline end_of(std::uint64_t wait_ns) {
  return Deadline::after(wait_ns > kNoTimeout - kAnswerNs ? kNoTimeout : wait_ns + kAnswerNs);
}

std::size_t count_in_pool(const Session& session, std::span<const BlockHash> hashes) {
  std::vector<pool::Found> found(hashes.size());
  pool::KeeperView view;
  return session.lookup(hashes, view, found);
}

// Asks for the chain portion by portion, up to the first block that storage does not have.
// @param last  the last portion that storage has anything of
Result<std::size_t> ask_for_all(Session& session, std::span<const BlockHash> hashes, bool fetches,
                                const Deadline& end, std::span<const BlockHash>& last,
                                bool& is_fetching) {
  std::size_t stored = 0;
  is_fetching = false;
  while (stored < hashes.size()) {
    const std::span<const BlockHash> portion = hashes.subspan(
        stored, std::min<std::size_t>(pool::kMaxStorageHashes, hashes.size() - stored));
    CACHALOT_TRY_ASSIGN(const pool::StorageAnswer answer,
                        session.ask_storage(portion, fetches, end));
    if (answer.is_up == 0) break;
    const std::size_t count = std::min<std::size_t>(answer.stored, portion.size());
    if (count != 0) {
      last = portion.first(count);
      is_fetching = answer.is_fetching != 0;
    }
    stored += count;
    if (count < portion.size()) break;
  }
  return stored;
}

// What a chain's prefetch has begun.
struct Begun {
  Prefetched found;
  std::span<const BlockHash> last = {};
  bool is_fetching = false;
};

Result<Begun> begin(Session& session, std::span<const BlockHash> hashes, std::size_t least_blocks,
                    const Deadline& end) {
  Begun begun;
  begun.found.in_pool = count_in_pool(session, hashes);
  const std::span<const BlockHash> rest = hashes.subspan(begun.found.in_pool);
  if (rest.empty()) return begun;
  if (least_blocks != 0) {
    if (rest.size() < least_blocks) return begun;
    CACHALOT_TRY_ASSIGN(const std::size_t stored,
                        ask_for_all(session, rest, false, end, begun.last, begun.is_fetching));
    if (stored < least_blocks) return begun;
  }
  CACHALOT_TRY_ASSIGN(begun.found.in_storage,
                      ask_for_all(session, rest, true, end, begun.last, begun.is_fetching));
  return begun;
}

Result<Prefetched> wait_for(Session& session, std::span<const BlockHash> hashes, Begun begun,
                            const Deadline& deadline, const Deadline& end) {
  using namespace std::chrono_literals;
  Prefetched& found = begun.found;
  if (found.in_storage == 0) return found;
  const std::size_t wanted = found.in_pool + found.in_storage;
  // Short naps first: blocks of a fast disk are there after some hundred microseconds.
  auto nap = 50us;
  while (begun.is_fetching && !deadline.is_over()) {
    std::this_thread::sleep_for(nap);
    nap = std::min(nap * 2, 1000us);
    found.in_pool = count_in_pool(session, hashes.first(wanted));
    if (found.in_pool == wanted) break;
    CACHALOT_TRY_ASSIGN(const pool::StorageAnswer answer,
                        session.ask_storage(begun.last, false, end));
    begun.is_fetching = answer.is_fetching != 0;
  }
  found.in_pool = count_in_pool(session, hashes);
  found.in_storage = wanted > found.in_pool ? wanted - found.in_pool : 0;
  return found;
}

// What is there of all groups.
Prefetched least_of(const Prefetched& a, const Prefetched& b) {
  const std::size_t in_pool = std::min(a.in_pool, b.in_pool);
  const std::size_t in_all = std::min(a.in_pool + a.in_storage, b.in_pool + b.in_storage);
  return {in_pool, in_all - in_pool};
}

}  // namespace

Result<Prefetched> prefetch(Session& session, std::span<const BlockHash> hashes,
                            std::uint64_t wait_ns, std::size_t least_blocks) {
  CACHALOT_TRY(session.check_usable());
  const Deadline deadline = Deadline::after(wait_ns), end = end_of(wait_ns);
  CACHALOT_TRY_ASSIGN(const Begun begun, begin(session, hashes, least_blocks, end));
  session.prompts().ask(hashes, begun.found);
  if (wait_ns == 0) return begun.found;
  return wait_for(session, hashes, begun, deadline, end);
}

Result<Prefetched> prefetch_groups(Session& session, const HeadGroups& groups,
                                   std::span<const BlockHash> hashes, std::uint64_t wait_ns) {
  CACHALOT_TRY(session.check_usable());
  const Deadline deadline = Deadline::after(wait_ns), end = end_of(wait_ns);
  std::vector<PoolNames> names;
  std::vector<Begun> all;
  for (std::uint32_t i = 0; i < groups.count; ++i) {
    names.push_back(PoolNames::of_group(groups, i, hashes));
    CACHALOT_TRY_ASSIGN(const Begun begun, begin(session, names.back().get(), 0, end));
    all.push_back(begun);
  }
  Prefetched least{hashes.size(), 0};
  for (const Begun& begun : all) least = least_of(least, begun.found);
  session.prompts().ask(hashes, least);
  if (wait_ns == 0) return least;
  least = {hashes.size(), 0};
  for (std::uint32_t i = 0; i < groups.count; ++i) {
    CACHALOT_TRY_ASSIGN(const Prefetched found,
                        wait_for(session, names[i].get(), all[i], deadline, end));
    least = least_of(least, found);
  }
  return least;
}

Result<bool> is_fetching(Session& session, std::span<const BlockHash> stored) {
  CACHALOT_TRY(session.check_usable());
  if (stored.empty()) return false;
  // The portions that prefetch() asked for come one after the other.
  const std::size_t portions = (stored.size() - 1) / pool::kMaxStorageHashes;
  CACHALOT_TRY_ASSIGN(
      const pool::StorageAnswer answer,
      session.ask_storage(stored.subspan(portions * pool::kMaxStorageHashes), false));
  return answer.is_up != 0 && answer.is_fetching != 0;
}

Result<bool> is_fetching_groups(Session& session, const HeadGroups& groups,
                                std::span<const BlockHash> stored) {
  for (std::uint32_t i = 0; i < groups.count; ++i) {
    const PoolNames names = PoolNames::of_group(groups, i, stored);
    CACHALOT_TRY_ASSIGN(const bool comes, is_fetching(session, names.get()));
    if (comes) return true;
  }
  return false;
}

}  // namespace cachalot::client
