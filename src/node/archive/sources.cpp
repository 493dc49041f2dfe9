#include "node/archive/sources.h"

#include <algorithm>
#include <memory>

#include "base/clock.h"

namespace cachalot::node {

using storage::Get;
using storage::ObjectKey;

Sources::Sources(std::span<storage::Store* const> stores) {
  for (storage::Store* const store : stores) sources_.emplace_back().store = store;
}

std::size_t Sources::count_prefix(const BlockHash& space, std::span<const BlockHash> blocks) const {
  std::size_t count = 0;
  // Chains are long in one store: each takes what it can.
  for (bool grows = true; grows && count < blocks.size();) {
    grows = false;
    for (const Source& source : sources_) {
      if (!source.store->is_up()) continue;
      const std::size_t more = source.store->catalogue().count_prefix(space, blocks.subspan(count));
      count += more;
      grows |= more != 0;
    }
  }
  return count;
}

std::optional<storage::ObjectHead> Sources::find(const ObjectKey& key) const {
  for (const Source& source : sources_) {
    if (!source.store->is_up()) continue;
    if (auto head = source.store->catalogue().find(key)) return head;
  }
  return {};
}

bool Sources::has_space(const BlockHash& space) const {
  return std::any_of(sources_.begin(), sources_.end(), [&](const Source& source) {
    return source.store->catalogue().has_space(space);
  });
}

bool Sources::is_up() const {
  return std::any_of(sources_.begin(), sources_.end(),
                     [](const Source& source) { return source.store->is_up(); });
}

bool Sources::is_asked() const {
  return std::any_of(sources_.begin(), sources_.end(), [](const Source& source) {
    const storage::BackendTraits& traits = source.store->traits();
    return traits.is_shared && !traits.answers_at_once;
  });
}

void Sources::learn_at_once(const BlockHash& space, std::span<const BlockHash> blocks) {
  std::vector<ObjectKey> keys;
  std::unique_ptr<bool[]> is_there;
  for (const Source& source : sources_) {
    if (!source.store->traits().answers_at_once) continue;
    if (keys.empty()) {
      for (const BlockHash& block : blocks) keys.push_back({space, block});
      is_there = std::make_unique<bool[]>(keys.size());
    }
    (void)source.store->learn(keys, {is_there.get(), keys.size()}, 0);
  }
}

// @return the first failure; a store that fails leaves its question to the next one
Status Sources::learn(std::span<const ObjectKey> keys, std::span<bool> is_there,
                      std::uint64_t deadline_ns) {
  std::fill(is_there.begin(), is_there.end(), false);
  Status failure;
  for (const Source& source : sources_) {
    std::vector<ObjectKey> absent;
    std::vector<std::size_t> at;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (is_there[i]) continue;
      absent.push_back(keys[i]);
      at.push_back(i);
    }
    if (absent.empty()) return {};
    const auto found = std::make_unique<bool[]>(absent.size());
    const Status learned = source.store->learn(absent, {found.get(), absent.size()}, deadline_ns);
    if (failure) failure = learned;
    for (std::size_t i = 0; i < absent.size(); ++i) is_there[at[i]] = found[i];
  }
  return failure;
}

// @param tried  bits of stores
Sources::Source* Sources::choose(const ObjectKey& key, std::uint64_t tried) {
  Source* best = nullptr;
  std::uint64_t bit = 1;
  for (Source& source : sources_) {
    const bool is_candidate =
        (tried & bit) == 0 && source.store->is_up() && source.store->catalogue().contains(key);
    bit <<= 1;
    if (!is_candidate) continue;
    const std::uint64_t cost = source.ns_per_kib.load(std::memory_order_relaxed);
    if (best == nullptr || cost < best->ns_per_kib.load(std::memory_order_relaxed)) best = &source;
  }
  return best;
}

void Sources::get_from(Source& source, std::span<Get> gets, std::uint64_t deadline_ns,
                       const storage::Backend::Arrived& arrived) {
  const std::uint64_t begin_ns = base::SteadyClock::read();
  source.store->get(gets, deadline_ns, arrived);
  std::uint64_t kib = 0;
  for (Get& get : gets) {
    get.is_copy = !source.store->traits().is_written;
    if (get.status) kib += (get.head.payload_bytes + 1023) / 1024;
  }
  if (kib == 0) return;
  const std::uint64_t cost = (base::SteadyClock::read() - begin_ns) / kib + 1;
  const std::uint64_t before = source.ns_per_kib.load(std::memory_order_relaxed);
  source.ns_per_kib.store(before == 0 ? cost : (7 * before + cost) / 8, std::memory_order_relaxed);
}

void Sources::get(std::span<Get> gets, std::uint64_t deadline_ns,
                  const storage::Backend::Arrived& arrived) {
  std::vector<std::uint64_t> tried(gets.size());
  std::vector<Source*> chosen(gets.size());
  for (Get& get : gets) get.status = Error::make(Code::kNotFound, "storage: has no such object");
  for (std::size_t round = 0; round < sources_.size(); ++round) {
    bool is_any = false;
    for (std::size_t i = 0; i < gets.size(); ++i) {
      chosen[i] = gets[i].status ? nullptr : choose(gets[i].key, tried[i]);
      is_any |= chosen[i] != nullptr;
    }
    if (!is_any) return;
    for (std::size_t i = 0; i < gets.size();) {
      std::size_t end = i + 1;
      while (end < gets.size() && chosen[end] == chosen[i]) ++end;
      if (chosen[i] != nullptr) {
        const auto at = static_cast<std::size_t>(
            std::find_if(sources_.begin(), sources_.end(),
                         [&](const Source& source) { return &source == chosen[i]; }) -
            sources_.begin());
        for (std::size_t k = i; k < end; ++k) tried[k] |= std::uint64_t{1} << at;
        get_from(*chosen[i], gets.subspan(i, end - i), deadline_ns, arrived);
      }
      i = end;
    }
    if (base::SteadyClock::read() >= deadline_ns) return;
  }
}

}  // namespace cachalot::node
