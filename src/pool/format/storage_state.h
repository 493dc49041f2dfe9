// What the ruling keeper says of the storage behind its pool: for `cachalot pool info`, never for decisions.
//
// The line and the text of the last error are lines 40 to 43 of the keeper's page.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "pool/format/access.h"

namespace cachalot::pool {

struct StorageState {
  std::string kind;  // "file", "redis", …
  bool is_up = false;
  std::uint64_t objects = 0, bytes = 0;
  std::uint64_t queued_blocks = 0;  // wait to be written
  std::uint64_t outages = 0;
  std::optional<std::uint32_t> peers = {};  // that it reads from now; nothing: it has no peers
  std::string last_error;                   // empty: none since the keeper has the storage

  bool operator==(const StorageState&) const = default;
};

// Text that does not fit is cut.
void publish_storage_state(const Access& access, std::uint32_t area, std::uint32_t epoch,
                           const StorageState& state);

// Of the keeper that rules with this epoch in this area; nothing: it has no storage. Bytes that are not printable ASCII
// are replaced by '?'.
std::optional<StorageState> read_storage_state(const Access& access, std::uint32_t area,
                                               std::uint32_t epoch);

}  // namespace cachalot::pool
