// Chains of blocks whose names and bytes follow from a number, for tests of a pool's clients.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "pool/client/client.h"

namespace cachalot::pool {

inline BlockHash hash_of(std::uint64_t name) {
  return {base::mix64(name + 1), base::mix64(~name)};
}

inline std::vector<std::byte> payload_of(std::uint64_t name, std::size_t bytes) {
  base::Rng rng(name);
  std::vector<std::byte> out(bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(rng.next());
  return out;
}

// Bytes of the block called `name`: from 1 to all of a block.
inline std::size_t length_of(std::uint64_t name, std::uint64_t block_bytes) {
  return 1 + name * 97 % block_bytes;
}

// Stores the blocks called first, first + 1, …
inline std::vector<Verdict> put_chain(Client& client, std::uint64_t block_bytes,
                                      std::uint64_t first, std::size_t n,
                                      const BlockHash* parent = nullptr) {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<PutItem> items;
  for (std::size_t i = 0; i < n; ++i) {
    bytes.push_back(payload_of(first + i, length_of(first + i, block_bytes)));
  }
  for (std::size_t i = 0; i < n; ++i) items.push_back({hash_of(first + i), bytes[i]});
  std::vector<Verdict> verdicts(n, Verdict::kBadItem);
  const Status status = client.put(parent, items, verdicts);
  EXPECT_TRUE(status) << (status ? "" : status.error().message);
  return verdicts;
}

// Reads them back. @return how many leading blocks were hits; their bytes are checked
inline std::size_t read_chain(Client& client, std::uint64_t block_bytes, std::uint64_t first,
                              std::size_t n) {
  std::vector<BlockHash> hashes;
  for (std::size_t i = 0; i < n; ++i) hashes.push_back(hash_of(first + i));
  std::vector<Found> found(n);
  const std::size_t hits = client.lookup(hashes, found);
  std::vector<std::vector<std::byte>> buffers(hits);
  std::vector<std::byte*> to;
  for (std::size_t i = 0; i < hits; ++i) {
    buffers[i].resize(found[i].entry.length);
    to.push_back(buffers[i].data());
  }
  const std::size_t valid = client.read({found.data(), hits}, to);
  for (std::size_t i = 0; i < valid; ++i) {
    const std::uint64_t name = first + i;
    EXPECT_EQ(buffers[i], payload_of(name, length_of(name, block_bytes))) << "block " << name;
  }
  return valid;
}

}  // namespace cachalot::pool
