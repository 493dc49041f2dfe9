// The namespaces of a pool: the id that stands in entries for each digest of a fingerprint.
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
#include "pool/keeper/reign.h"

namespace cachalot::pool {

class Namespaces {
 public:
  // in the place of a namespace whose line was damaged
  static constexpr BlockHash kNoDigest{};

  Namespaces(const Access& access, const Reign& reign) : access_(access), reign_(reign) {}

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

 private:
  void write_name(std::uint32_t id, std::string_view name);

  const Access& access_;
  const Reign& reign_;
  std::vector<BlockHash> digests_;  // id - 1
};

}  // namespace cachalot::pool
