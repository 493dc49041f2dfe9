// An engine whose blocks have the bytes that their hashes say, so that each byte of a load can be checked.
#pragma once

#include <cachalot/opaque_client.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "base/rng.h"

namespace cachalot::node {

inline constexpr std::uint64_t kBlockBytes = 4096;
inline constexpr std::uint64_t kSecond = 1'000'000'000;

inline std::vector<std::byte> bytes_of(const BlockHash& hash) {
  std::vector<std::byte> bytes(kBlockBytes);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(base::mix64(hash.low + i));
  return bytes;
}

class TestEngine {
 public:
  Status attach(const std::string& path) {
    OpaqueOptions options;
    options.pool = {path};
    options.fingerprint = "a model";
    options.block_bytes = kBlockBytes;
    options.block_tokens = 4;
    CACHALOT_TRY_ASSIGN(client_, OpaqueClient::attach(options));
    return {};
  }
  std::vector<BlockHash> chain(std::uint64_t name, std::size_t blocks) const {
    std::vector<std::uint32_t> tokens(blocks * 4);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::uint32_t>(name * 1000 + i);
    return client_->hash_tokens(tokens);
  }
  std::size_t store(std::span<const BlockHash> hashes) {
    std::vector<std::vector<std::byte>> bytes;
    std::vector<const std::byte*> from;
    for (const BlockHash& hash : hashes) bytes.push_back(bytes_of(hash));
    for (const auto& one : bytes) from.push_back(one.data());
    const Result<Stored> stored = client_->store(nullptr, hashes, from);
    EXPECT_TRUE(stored) << stored.error().message;
    return stored ? stored->blocks : 0;
  }
  // Loads what is in the pool, and checks each byte.
  std::size_t load(std::span<const BlockHash> hashes) {
    std::vector<std::vector<std::byte>> bytes(hashes.size(), std::vector<std::byte>(kBlockBytes));
    std::vector<std::byte*> to;
    for (auto& one : bytes) to.push_back(one.data());
    const Result<std::size_t> loaded = client_->load(hashes, to);
    EXPECT_TRUE(loaded) << loaded.error().message;
    for (std::size_t i = 0; loaded && i < *loaded; ++i)
      EXPECT_EQ(bytes[i], bytes_of(hashes[i])) << "block " << i;
    return loaded ? *loaded : 0;
  }
  Prefetched prefetch(std::span<const BlockHash> hashes, std::uint64_t wait_ns = 20 * kSecond) {
    const Result<Prefetched> result = client_->prefetch(hashes, wait_ns);
    EXPECT_TRUE(result) << result.error().message;
    return result ? *result : Prefetched{};
  }

 protected:
  std::optional<OpaqueClient> client_;
};

}  // namespace cachalot::node
