// For tests: a pool with a keeper in this process, and engines with small caches.
#pragma once

#include <cachalot/client.h>
#include <cachalot/keeper.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <vector>

#include "base/rng.h"

namespace cachalot::client {

// 4 tokens, 3 layers, 2 heads of 32 numbers: 3,072 bytes a block, 1,024 a layer.
inline KvGeometry small_geometry() {
  KvGeometry geometry;
  geometry.layers = 3;
  geometry.kv_heads = 2;
  geometry.head_dim = 32;
  geometry.block_tokens = 4;
  return geometry;
}

inline std::vector<std::uint32_t> tokens_of(std::uint64_t prompt, std::size_t count) {
  base::Rng rng(prompt);
  std::vector<std::uint32_t> tokens(count);
  for (std::uint32_t& token : tokens) token = static_cast<std::uint32_t>(rng.below(50'000));
  return tokens;
}

class Cluster {
 public:
  explicit Cluster(std::uint64_t block_bytes = small_geometry().block_bytes(),
                   std::uint64_t capacity = 64, const char* domain = "noncoherent") {
    static std::atomic<int> count{0};
    options_.pool =
        "/dev/shm/cachalot_engine_test." + std::to_string(getpid()) + "." + std::to_string(count++);
    options_.block_bytes = block_bytes;
    options_.capacity_blocks = capacity;
    options_.domain = domain;
    start_keeper();
  }
  void start_keeper() {
    Result<EmbeddedKeeper> keeper = EmbeddedKeeper::start(options_);
    EXPECT_TRUE(keeper) << (keeper ? "" : keeper.error().message);
    if (keeper) keeper_ = std::make_unique<EmbeddedKeeper>(*std::move(keeper));
  }
  const std::string& path() const { return options_.pool; }
  EmbeddedKeeper& keeper() { return *keeper_; }

  ClientOptions client_options() const {
    ClientOptions options;
    options.pool = {options_.pool};
    options.model = "test-model@1";
    options.geometry = small_geometry();
    options.keeper_timeout_ns = 2'000'000'000;
    return options;
  }

 private:
  KeeperOptions options_;
  std::unique_ptr<EmbeddedKeeper> keeper_;
};

// An engine: a client and a paged cache, with the tensors of its layout.
struct Engine {
  explicit Engine(const ClientOptions& options, const char* layout = "vllm_bknhc",
                  std::uint32_t pages = 16)
      : page_count(pages), client(attach(options)) {
    const std::uint64_t tensor_bytes = pages * options.geometry.layer_bytes();
    memory.resize(options.geometry.layers);
    PagedCache description;
    description.layout = layout;
    description.pages = pages;
    for (auto& tensor : memory) {
      tensor.resize(tensor_bytes);
      description.tensors.push_back({tensor.data(), tensor_bytes});
    }
    const Result<CacheId> registered = client.register_cache(description);
    EXPECT_TRUE(registered) << (registered ? "" : registered.error().message);
    if (registered) cache = *registered;
  }
  static Client attach(const ClientOptions& options) {
    Result<Client> client = Client::attach(options);
    EXPECT_TRUE(client) << (client ? "" : client.error().message);
    return *std::move(client);
  }
  // "Computes" a block: its bytes follow from its hash.
  void compute(const BlockHash& hash, PageId page) {
    for (std::size_t layer = 0; layer < memory.size(); ++layer) {
      base::Rng rng(hash.low + layer);
      for (std::size_t i = 0; i < page_bytes(); ++i)
        memory[layer][page * page_bytes() + i] = static_cast<std::byte>(rng.next());
    }
  }
  bool holds(const BlockHash& hash, PageId page, std::size_t first_layer = 0,
             std::size_t layers = ~0ull) const {
    for (std::size_t layer = first_layer; layer < memory.size() && layer - first_layer < layers;
         ++layer) {
      base::Rng rng(hash.low + layer);
      for (std::size_t i = 0; i < page_bytes(); ++i) {
        if (memory[layer][page * page_bytes() + i] != static_cast<std::byte>(rng.next()))
          return false;
      }
    }
    return true;
  }
  void clear() {
    for (auto& tensor : memory) std::fill(tensor.begin(), tensor.end(), std::byte{0});
  }
  std::size_t page_bytes() const { return memory[0].size() / page_count; }

  std::uint32_t page_count;
  std::vector<std::vector<std::byte>> memory;
  CacheId cache{};
  Client client;  // destroyed first: it carries out what was begun, into `memory`
};

}  // namespace cachalot::client
