// The names of a pool's namespaces, as a keeper wrote them: text for operators and logs, never for decisions.
#pragma once

#include <cachalot/hash.h>

#include <cstdint>
#include <string>
#include <vector>

#include "pool/format/access.h"

namespace cachalot::pool {

struct NamespaceName {
  std::uint32_t id;
  BlockHash digest;
  std::string name;  // empty: the client gave none, or its lines are damaged
};

// Text of the pool for a terminal: bytes that are not printable ASCII are replaced by '?'.
std::string printable(std::string text);

// The name of a namespace in a keeper's area, written under this epoch. Bytes that are not printable ASCII are
// replaced by '?'.
std::string read_name(const Access& access, std::uint32_t area, std::uint32_t epoch,
                      std::uint32_t id);

// All namespaces of the keeper that rules with this epoch in this area.
std::vector<NamespaceName> read_namespaces(const Access& access, std::uint32_t area,
                                           std::uint32_t epoch);

}  // namespace cachalot::pool
