#include "client/prefetch.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"

namespace cachalot::client {
namespace {

std::size_t count_in_pool(const Session& session, std::span<const BlockHash> hashes) {
  std::vector<pool::Found> found(hashes.size());
  pool::KeeperView view;
  return session.lookup(hashes, view, found);
}

// Asks for the chain portion by portion, up to the first block that storage does not have.
// @param last  the last portion that storage has anything of
Result<std::size_t> ask_for_all(Session& session, std::span<const BlockHash> hashes, bool fetches,
                                std::span<const BlockHash>& last, bool& is_fetching) {
  std::size_t stored = 0;
  is_fetching = false;
  while (stored < hashes.size()) {
    const std::span<const BlockHash> portion = hashes.subspan(
        stored, std::min<std::size_t>(pool::kMaxStorageHashes, hashes.size() - stored));
    CACHALOT_TRY_ASSIGN(const pool::StorageAnswer answer, session.ask_storage(portion, fetches));
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

}  // namespace

Result<Prefetched> prefetch(Session& session, std::span<const BlockHash> hashes,
                            std::uint64_t wait_ns, std::size_t least_blocks) {
  using namespace std::chrono_literals;
  CACHALOT_TRY(session.check_usable());
  Prefetched result;
  result.in_pool = count_in_pool(session, hashes);
  if (result.in_pool == hashes.size()) return result;
  const Deadline deadline = Deadline::after(wait_ns);
  std::span<const BlockHash> last;
  bool is_fetching = false;
  const std::span<const BlockHash> rest = hashes.subspan(result.in_pool);
  if (least_blocks != 0) {
    if (rest.size() < least_blocks) return result;
    CACHALOT_TRY_ASSIGN(const std::size_t stored,
                        ask_for_all(session, rest, false, last, is_fetching));
    if (stored < least_blocks) return result;
  }
  CACHALOT_TRY_ASSIGN(result.in_storage, ask_for_all(session, rest, true, last, is_fetching));
  const std::size_t wanted = result.in_pool + result.in_storage;
  if (wait_ns == 0 || result.in_storage == 0) return result;
  // Short naps first: blocks of a fast disk are there after some hundred microseconds.
  auto nap = 50us;
  while (is_fetching && !deadline.is_over()) {
    std::this_thread::sleep_for(nap);
    nap = std::min(nap * 2, 1000us);
    result.in_pool = count_in_pool(session, hashes.first(wanted));
    if (result.in_pool == wanted) break;
    CACHALOT_TRY_ASSIGN(const pool::StorageAnswer answer, session.ask_storage(last, false));
    is_fetching = answer.is_fetching != 0;
  }
  result.in_pool = count_in_pool(session, hashes);
  result.in_storage = wanted > result.in_pool ? wanted - result.in_pool : 0;
  return result;
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

}  // namespace cachalot::client
