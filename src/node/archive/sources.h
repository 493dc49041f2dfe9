// Where blocks may come from: stores in the order in which they were given. To those that ask it is one store.
//
// A block that several have comes from the one that was fastest lately; a store that has not been used yet comes in its
// turn. If that one fails, the next one is asked.
//
// @threads any
#pragma once

#include <atomic>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "storage/store.h"

namespace cachalot::node {

class Sources {
 public:
  // @param stores  outlive it; at least one
  explicit Sources(std::span<storage::Store* const> stores);

  // How many leading blocks of a chain some store has.
  std::size_t count_prefix(const BlockHash& space, std::span<const BlockHash> blocks) const;
  std::optional<storage::ObjectHead> find(const storage::ObjectKey& key) const;
  bool has_space(const BlockHash& space) const;
  // Whether any is in use.
  bool is_up() const;
  // Whether any has objects that it is only known to have after it was asked, which takes time.
  bool is_asked() const;
  // Learns what stores have of a chain that answer at once. @cost a look into a catalogue for each block
  void learn_at_once(const BlockHash& space, std::span<const BlockHash> blocks);

  // See Store::learn. A store is asked for what none before it has.
  Status learn(std::span<const storage::ObjectKey> keys, std::span<bool> is_there,
               std::uint64_t deadline_ns);
  // See Store::get.
  void get(std::span<storage::Get> gets, std::uint64_t deadline_ns,
           const storage::Backend::Arrived& arrived);

 private:
  struct Source {
    storage::Store* store = nullptr;
    // Of its last calls, smoothed; 0: none yet. Relaxed: it only orders stores.
    std::atomic<std::uint64_t> ns_per_kib{0};
  };

  Source* choose(const storage::ObjectKey& key, std::uint64_t tried);
  static void get_from(Source& source, std::span<storage::Get> gets, std::uint64_t deadline_ns,
                       const storage::Backend::Arrived& arrived);

  std::deque<Source> sources_;
};

}  // namespace cachalot::node
