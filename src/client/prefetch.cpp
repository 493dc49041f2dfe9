#include "client/prefetch.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"

namespace cachalot::client {
namespace {

// A keeper that serves answers within microseconds; on a busy machine within some turns of its scheduler.
constexpr std::uint64_t kAnswerNs = 200'000'000;
// At once while blocks come in: the first one that is missing ends a look.
constexpr std::size_t kLookBlocks = 256;

// When a call ends whose caller waits for blocks for `wait_ns`, whatever the keeper does.
Deadline end_of(std::uint64_t wait_ns) {
  return Deadline::after(wait_ns > kNoTimeout - kAnswerNs ? kNoTimeout : wait_ns + kAnswerNs);
}

std::size_t count_in_pool(const Session& session, std::span<const BlockHash> hashes) {
  std::vector<pool::Found> found(hashes.size());
  pool::KeeperView view;
  return session.lookup(hashes, view, found);
}

// What storage has of a chain, asked for portion by portion, up to the first block that it does not have.
class Inquiry {
 public:
  // @param hashes  what the pool lacks
  explicit Inquiry(std::span<const BlockHash> hashes) : hashes_(hashes) {}

  // Asks for what is not known yet. Storage that others write answers later: then is_asking(), and another round may
  // know more. A round asks for twice what was known before it, so that a long chain takes few rounds, and a miss one
  // question.
  // @param flags  of the questions: kStorageFetch
  Status round(Session& session, std::uint32_t flags, const Deadline& end) {
    is_asking_ = false;
    if (is_over_) return {};
    std::size_t most_open = whole_portions_ + 1;
    for (std::size_t i = whole_portions_; i * pool::kMaxStorageHashes < hashes_.size(); ++i) {
      const std::span<const BlockHash> asked = portion(i);
      const std::uint32_t sure = i == 0 ? 0 : pool::kStorageIsSure;
      const bool is_last = most_open == 1 || (i + 1) * pool::kMaxStorageHashes >= hashes_.size();
      const std::uint32_t goes_on = is_last ? 0 : pool::kStorageGoesOn;
      CACHALOT_TRY_ASSIGN(
          const pool::StorageAnswer answer,
          session.ask_storage(asked, flags | pool::kStorageAsk | sure | goes_on, end));
      if (answer.is_up == 0) {
        is_over_ = true;
        break;
      }
      const std::size_t count = std::min<std::size_t>(answer.stored, asked.size());
      if (i == whole_portions_) {
        rest_ = count;
        if (count != 0) last_ = asked.first(count);
        if (count != 0) is_fetching_ = answer.is_fetching != 0;
        if (count == asked.size()) {
          ++whole_portions_;
          rest_ = 0;
          continue;
        }
        is_over_ = answer.is_asking == 0;
        if (is_over_) break;
      }
      is_asking_ = true;
      if (--most_open == 0) break;
    }
    return {};
  }

  std::size_t stored() const {
    return std::min(whole_portions_ * pool::kMaxStorageHashes + rest_, hashes_.size());
  }
  bool is_asking() const { return is_asking_; }
  // Of the last portion that storage has anything of.
  bool is_fetching() const { return is_fetching_; }
  Status look_whether_fetching(Session& session, const Deadline& end) {
    if (last_.empty()) return {};
    CACHALOT_TRY_ASSIGN(const pool::StorageAnswer answer, session.ask_storage(last_, 0, end));
    is_fetching_ = answer.is_fetching != 0;
    return {};
  }

 private:
  std::span<const BlockHash> portion(std::size_t i) const {
    const std::size_t first = i * pool::kMaxStorageHashes;
    return hashes_.subspan(first,
                           std::min<std::size_t>(pool::kMaxStorageHashes, hashes_.size() - first));
  }

  std::span<const BlockHash> hashes_;
  std::size_t whole_portions_ = 0;  // of which storage has all
  std::size_t rest_ = 0;            // blocks of the next one
  std::span<const BlockHash> last_ = {};
  bool is_over_ = false, is_asking_ = false, is_fetching_ = false;
};

// What a chain's prefetch has begun.
struct Begun {
  Prefetched found;
  Inquiry inquiry{{}};
};

Result<Begun> begin(Session& session, std::span<const BlockHash> hashes, std::size_t least_blocks,
                    const Deadline& end) {
  Begun begun;
  begun.found.in_pool = count_in_pool(session, hashes);
  const std::span<const BlockHash> rest = hashes.subspan(begun.found.in_pool);
  if (rest.empty()) return begun;
  if (least_blocks != 0) {
    if (rest.size() < least_blocks) return begun;
    Inquiry first(rest);
    CACHALOT_TRY(first.round(session, 0, end));
    begun.found.is_asking = first.is_asking();
    if (first.stored() < least_blocks) return begun;
  }
  begun.inquiry = Inquiry(rest);
  CACHALOT_TRY(begun.inquiry.round(session, pool::kStorageFetch, end));
  begun.found.in_storage = begun.inquiry.stored();
  begun.found.is_asking = begun.inquiry.is_asking();
  return begun;
}

// @param stored  filled: blocks that storage was found to have
Result<Prefetched> wait_for(Session& session, std::span<const BlockHash> hashes, Begun begun,
                            const Deadline& deadline, const Deadline& end, std::size_t& stored) {
  using namespace std::chrono_literals;
  Prefetched& found = begun.found;
  Inquiry& inquiry = begun.inquiry;
  const std::size_t in_pool_before = found.in_pool;
  std::size_t wanted = found.in_pool + inquiry.stored();
  // A look into the pool costs no message, so it comes often: blocks of a fast disk are there after some hundred
  // microseconds. The keeper is asked less often.
  auto nap = 20us, until_asked = 100us, pause = until_asked;
  while ((inquiry.is_asking() || inquiry.is_fetching()) && !deadline.is_over()) {
    std::this_thread::sleep_for(nap);
    nap = std::min(nap + nap / 4, 200us);
    if (found.in_pool < wanted) {
      const std::size_t some = std::min(wanted - found.in_pool, kLookBlocks);
      found.in_pool += count_in_pool(session, hashes.subspan(found.in_pool, some));
    }
    if (found.in_pool >= wanted && !inquiry.is_asking()) break;
    until_asked -= nap;
    if (until_asked > 0us) continue;
    until_asked = pause = std::min(pause * 2, 1000us);
    if (inquiry.is_asking()) {
      CACHALOT_TRY(inquiry.round(session, pool::kStorageFetch, end));
      wanted = in_pool_before + inquiry.stored();
    } else {
      CACHALOT_TRY(inquiry.look_whether_fetching(session, end));
    }
  }
  stored = inquiry.stored();
  found.in_pool = count_in_pool(session, hashes);
  found.in_storage = wanted > found.in_pool ? wanted - found.in_pool : 0;
  found.is_asking = inquiry.is_asking();
  return found;
}

// What is there of all groups.
Prefetched least_of(const Prefetched& a, const Prefetched& b) {
  const std::size_t in_pool = std::min(a.in_pool, b.in_pool);
  const std::size_t in_all = std::min(a.in_pool + a.in_storage, b.in_pool + b.in_storage);
  return {in_pool, in_all - in_pool, a.is_asking || b.is_asking};
}

}  // namespace

Result<Prefetched> prefetch(Session& session, std::span<const BlockHash> hashes,
                            std::uint64_t wait_ns, std::size_t least_blocks) {
  CACHALOT_TRY(session.check_usable());
  const Deadline deadline = Deadline::after(wait_ns), end = end_of(wait_ns);
  CACHALOT_TRY_ASSIGN(const Begun begun, begin(session, hashes, least_blocks, end));
  session.prompts().ask(hashes, begun.found);
  if (wait_ns == 0) return begun.found;
  std::size_t stored = 0;
  Result<Prefetched> found = wait_for(session, hashes, begun, deadline, end, stored);
  session.prompts().ask(hashes, {begun.found.in_pool, stored});
  return found;
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
  Prefetched first{hashes.size(), 0};  // what was there when it was asked for
  for (std::uint32_t i = 0; i < groups.count; ++i) {
    std::size_t stored = 0;
    CACHALOT_TRY_ASSIGN(const Prefetched found,
                        wait_for(session, names[i].get(), all[i], deadline, end, stored));
    least = least_of(least, found);
    first = least_of(first, {all[i].found.in_pool, stored});
  }
  session.prompts().ask(hashes, first);
  return least;
}

Result<bool> is_fetching(Session& session, std::span<const BlockHash> stored) {
  CACHALOT_TRY(session.check_usable());
  if (stored.empty()) return false;
  // The portions that prefetch() asked for come one after the other.
  const std::size_t portions = (stored.size() - 1) / pool::kMaxStorageHashes;
  CACHALOT_TRY_ASSIGN(const pool::StorageAnswer answer,
                      session.ask_storage(stored.subspan(portions * pool::kMaxStorageHashes), 0));
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
