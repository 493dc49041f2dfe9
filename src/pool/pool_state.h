// What the keeper and the clients of a pool last published about themselves, read now.
#pragma once

#include <cachalot/result.h>

#include <optional>
#include <vector>

#include "os/shared_file.h"
#include "pool/expansion/expansion_table.h"
#include "pool/format/access.h"
#include "pool/format/context_lines.h"
#include "pool/format/namespace_counters.h"
#include "pool/format/namespace_names.h"
#include "pool/format/statistics.h"
#include "pool/format/storage_state.h"
#include "pool/reader/directory.h"

namespace cachalot::pool {

// What is known of the keeper that rules, or ruled last.
enum class KeeperLife {
  kNone,       // the pool has never had one
  kHere,       // a process of this machine holds the lock of its area
  kElsewhere,  // it is on another machine, and nothing says that it has ended
  kEnded,
};

class PoolState {
 public:
  PoolState(const Access& access, const os::SharedFile& first_file)
      : access_(&access), file_(&first_file) {}

  KeeperView read_keepers() const { return DirectoryReader(*access_).read_keepers(); }
  // Of a keeper on another machine: its own word, or its host's agent's, says that it has ended; silence does not.
  // Where locks cannot be read, as if there were none.
  KeeperLife find_keeper() const;
  // A keeper serves, or may: here or elsewhere.
  bool may_have_keeper() const;

  // Of the ruling keeper. @return false: there is none, or it wrote none that can be read
  bool read_keeper_line(KeeperLine& line) const;
  bool read_keeper_counters(KeeperCounters& counters) const;
  bool read_keeper_info(KeeperInfoLine& info) const;
  // How often it published its counters: stands still if its thread hangs.
  bool read_publications(std::uint32_t& count) const;
  std::vector<NamespaceName> read_namespaces() const;
  // What the ruling keeper has counted of a namespace of read_namespaces().
  NamespaceCounters read_namespace_counters(std::uint32_t id) const;
  std::vector<ContextLine> read_contexts() const;
  // What a growable pool has beyond its first device. Nothing: it cannot grow, or the table cannot be read.
  std::optional<ExpansionTable> read_expansions() const;
  // As in DirectoryReader.
  std::uint32_t blocks() const { return DirectoryReader(*access_).blocks(); }
  std::uint32_t capacity_blocks() const { return DirectoryReader(*access_).capacity_blocks(); }
  // Nothing: the ruling keeper has no storage.
  std::optional<StorageState> read_storage() const;
  // What the ruling keeper says of a slot: held means that its last client is not served any more, and that
  // nothing proves that it stores no more. Zeros where it says nothing.
  ViewLine read_view(std::uint32_t slot) const;
  // What all clients have counted since the pool was made.
  ClientCounters read_totals() const;

 private:
  const Access* access_;
  const os::SharedFile* file_;
};

}  // namespace cachalot::pool
