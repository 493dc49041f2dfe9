#include "node/archive/finder.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "base/clock.h"

namespace cachalot::node {
namespace {

using storage::ObjectKey;

constexpr std::size_t kFirstStep = 8;
// For the rest of a row: a client that is alive sends it at once.
constexpr auto kRow = std::chrono::milliseconds(5);
constexpr std::size_t kMostAbsent = 65536;
// Of one call. A server that takes longer answers no prompt in time.
constexpr std::uint64_t kCallNs = 2'000'000'000;

}  // namespace

Finder::Finder(Sources& sources, Fetcher& fetcher, std::size_t most_questions)
    : sources_(sources), fetcher_(fetcher), most_questions_(most_questions) {
  if (sources_.is_asked()) thread_ = std::thread([this] { run(); });
}

Finder::~Finder() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

bool Finder::is_absent(const ObjectKey& key, std::uint64_t now_ns) {
  while (!absent_order_.empty() &&
         (absent_order_.front().first <= now_ns || absent_order_.size() > kMostAbsent)) {
    const auto at = absent_.find(absent_order_.front().second);
    if (at != absent_.end() && at->second == absent_order_.front().first) absent_.erase(at);
    absent_order_.pop_front();
  }
  return absent_.contains(key);
}

bool Finder::ask(const Question& question) {
  if (!thread_.joinable()) return false;
  bool is_asked = false;
  {
    const std::lock_guard lock(mutex_);
    is_asked = queue(question);
    has_end_ = has_end_ || (!question.goes_on && !queue_.empty());
  }
  wake_.notify_one();
  return is_asked;
}

// @return whether its answer is still to come
bool Finder::queue(const Question& question) {
  if (question.known == question.hashes.size()) return false;
  const ObjectKey next{question.space, question.hashes[question.known]};
  if (is_absent(next, base::SteadyClock::read())) return false;
  const bool fetches = question.fetches && question.namespace_id != 0;
  const auto [at, is_new] = asked_.try_emplace({question.space, question.hashes.back()}, fetches);
  at->second = at->second || fetches;
  if (!is_new) return true;
  if (asked_.size() > most_questions_) {
    asked_.erase(at);
    return false;
  }
  queue_.push_back({question.namespace_id,
                    question.space,
                    {question.hashes.begin(), question.hashes.end()},
                    question.known,
                    question.is_sure ? question.hashes.size() : kFirstStep});
  return true;
}

void Finder::take_new(std::vector<Search>& searches) {
  std::unique_lock lock(mutex_);
  if (searches.empty()) {
    step_ns_.store(0, std::memory_order_relaxed);
    wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    (void)wake_.wait_for(lock, kRow, [this] { return stop_ || has_end_; });
  }
  has_end_ = false;
  for (; !queue_.empty(); queue_.pop_front()) searches.push_back(std::move(queue_.front()));
  if (stop_) searches.clear();
  step_ns_.store(base::SteadyClock::read(), std::memory_order_relaxed);
}

void Finder::run() {
  std::vector<Search> searches;
  for (;;) {
    take_new(searches);
    if (searches.empty()) return;
    step(searches);
    for (const Search& search : searches) {
      if (search.is_over) end(search);
    }
    std::erase_if(searches, [](const Search& search) { return search.is_over; });
  }
}

// Asks for the next blocks of all chains in one call.
void Finder::step(std::vector<Search>& searches) {
  std::vector<ObjectKey> keys;
  for (Search& search : searches) {
    search.step = std::min(search.step, search.hashes.size() - search.at);
    for (std::size_t i = 0; i < search.step; ++i)
      keys.push_back({search.space, search.hashes[search.at + i]});
  }
  const auto is_there = std::make_unique<bool[]>(keys.size());
  const Status learned =
      sources_.learn(keys, {is_there.get(), keys.size()}, base::SteadyClock::read() + kCallNs);
  const bool* answers = is_there.get();
  for (Search& search : searches) {
    const bool* const absent = std::find(answers, answers + search.step, false);
    const auto found = static_cast<std::size_t>(absent - answers);
    answers += search.step;
    search.at += found;
    search.is_over = !learned || found < search.step || search.at == search.hashes.size();
    search.step *= 2;
  }
}

void Finder::end(const Search& search) {
  bool fetches = false;
  {
    const std::lock_guard lock(mutex_);
    if (search.at < search.hashes.size()) {
      const ObjectKey absent{search.space, search.hashes[search.at]};
      const std::uint64_t until_ns = base::SteadyClock::read() + kAbsentNs;
      absent_[absent] = until_ns;
      absent_order_.emplace_back(until_ns, absent);
    }
    fetches = asked_[search.name()] && search.namespace_id != 0 && search.at != 0;
  }
  // Before the question ends, so that a client sees one of them in work until the blocks have come.
  if (fetches) {
    fetcher_.ask(search.namespace_id, search.space, std::span(search.hashes).first(search.at));
  }
  const std::lock_guard lock(mutex_);
  asked_.erase(search.name());
}

}  // namespace cachalot::node
