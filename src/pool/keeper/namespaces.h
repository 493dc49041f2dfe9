// The namespaces of a pool: the id that stands in entries for each digest of a fingerprint, what the keeper counts of each,
// and their quotas.
//
// An id is given out once and stays what it is, also under later keepers.
//
// @threads  one; is_known(): any, while nothing is added
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "block_hash/block_hash.h"
#include "pool/format/access.h"
#include "pool/format/namespace_counters.h"
#include "pool/keeper/keeper_options.h"
#include "pool/keeper/reign.h"

namespace cachalot::pool {

class Namespaces {
 public:
  // in the place of a namespace whose line was damaged
  static constexpr BlockHash kNoDigest{};

  // `options` outlive it.
  Namespaces(const Access& access, const KeeperOptions& options, const Reign& reign)
      : access_(access), options_(options), reign_(reign), books_(kMaxNamespaces + 1) {}

  std::uint32_t count() const { return static_cast<std::uint32_t>(digests_.size()); }
  bool is_known(std::uint32_t id) const {
    return id >= 1 && id <= digests_.size() && digests_[id - 1] != kNoDigest;
  }
  // Of a known id.
  const BlockHash& digest_of(std::uint32_t id) const { return digests_[id - 1]; }
  // The id of a digest; 0: there is none.
  std::uint32_t find(const BlockHash& digest) const;
  // Gives out the next id and writes its name and its line, ordered. count() must be below kMaxNamespaces.
  // @param name  what is longer than kMaxNameBytes is cut off
  std::uint32_t add(const BlockHash& digest, std::string_view name = {});

  // Takes the predecessor's namespaces over into this keeper's area.
  void adopt();

  // Counts of an id.
  void add_live(std::uint32_t id) { change(id).live_blocks += 1; }
  void add_commit(std::uint32_t id) { change(id).committed_blocks += 1; }
  void add_eviction(std::uint32_t id) {
    NamespaceCounters& counters = change(id);
    counters.live_blocks -= 1;
    counters.evicted_blocks += 1;
  }
  // Writes into the pool what has changed.
  void publish_counters();

  // An index of the options' quotas, or their number: it has none.
  std::uint32_t quota_of(std::uint32_t id) const;
  std::uint64_t quota_blocks(std::uint32_t quota) const {
    return options_.quotas[quota].bytes / access_.geometry.block_bytes;
  }

 private:
  struct Book {
    NamespaceCounters counters;
    bool has_changed = false;
  };
  NamespaceCounters& change(std::uint32_t id) {
    books_[id].has_changed = true;
    return books_[id].counters;
  }
  void write_name(std::uint32_t id, std::string_view name);

  const Access& access_;
  const KeeperOptions& options_;
  const Reign& reign_;
  std::vector<BlockHash> digests_;  // id - 1
  std::vector<Book> books_;         // by id
  std::uint32_t published_ = 0;     // namespaces whose quota was
};

}  // namespace cachalot::pool
