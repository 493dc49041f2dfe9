// Objects: keys and address lists, for connectors without pages and layouts. An object is the
// concatenation of its parts and lies in one block.
//
// @threads any
#pragma once

#include <cachalot/client.h>

#include <map>
#include <shared_mutex>

#include "block_hash/block_hash.h"
#include "client/hit_rate/counters.h"
#include "client/session.h"

namespace cachalot::client {

// The registered buffers. Parts must lie inside them.
class BufferTable {
 public:
  // @errors kInvalidArgument: null, empty, past the end of memory, or overlap with a registered buffer
  Status add(void* data, std::uint64_t bytes);
  // @errors kNotFound: no buffer begins there
  Status remove(void* data);
  // Locks the table, so that no buffer is unregistered while it is in use.
  std::shared_lock<std::shared_mutex> hold() const { return std::shared_lock(mutex_); }
  // Call it under hold(). @return bytes of all parts @errors kInvalidArgument: a part outside all buffers
  Result<std::uint64_t> check(std::span<const Buffer> parts) const;

 private:
  mutable std::shared_mutex mutex_;
  std::map<std::uintptr_t, std::uint64_t> buffers_;  // begin -> bytes
};

class Objects {
 public:
  Objects(Session& session, Counters& counters, const block_hash::NamespaceId& space)
      : session_(session), counters_(counters), space_(space) {}

  BufferTable& buffers() { return buffers_; }
  Status exists(std::span<const std::string_view> keys, std::span<bool> present) const;
  Result<std::uint64_t> put(std::string_view key, std::span<const Buffer> parts);
  Result<std::uint64_t> get(std::string_view key, std::span<const Buffer> parts);

 private:
  Result<std::uint64_t> get_once(const BlockHash& name, std::span<const Buffer> parts,
                                 std::uint64_t bytes);

  Session& session_;
  Counters& counters_;
  const block_hash::NamespaceId space_;
  BufferTable buffers_;
};

}  // namespace cachalot::client
