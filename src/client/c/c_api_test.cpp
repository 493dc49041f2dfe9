// Wrong calls from C. The examples show correct ones.

#include <cachalot/c.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "testing/client/c_cache.h"

namespace {

class CApiTest : public ::testing::Test {
 protected:
  CApiTest() {
    path_ = "/dev/shm/cachalot_c_api_test." + std::to_string(getpid());
    serve_.struct_size = sizeof serve_;
    serve_.pool = path_.c_str();
    serve_.block_bytes = 4096;
    serve_.capacity_blocks = 16;
    EXPECT_EQ(cachalot_keeper_start(&serve_, &keeper_), CACHALOT_OK) << cachalot_last_message();
    options_ = cachalot::client::small_c_options(path_.c_str());
  }
  ~CApiTest() override {
    EXPECT_EQ(cachalot_keeper_stop(keeper_), CACHALOT_OK) << cachalot_last_message();
  }
  cachalot_client* attach() {
    cachalot_client* client = nullptr;
    EXPECT_EQ(cachalot_attach(&options_, &client), CACHALOT_OK) << cachalot_last_message();
    return client;
  }

  std::string path_;
  cachalot_keeper_options serve_{};
  cachalot_keeper* keeper_ = nullptr;
  cachalot_client_options options_{};
};

TEST_F(CApiTest, NullIsRefusedWhereSomethingIsNeeded) {
  size_t blocks = 0;
  EXPECT_EQ(cachalot_attach(nullptr, nullptr), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_lookup(nullptr, nullptr, 0, &blocks), CACHALOT_INVALID_ARGUMENT);
  EXPECT_STRNE(cachalot_last_message(), "");
  EXPECT_EQ(cachalot_detach(nullptr), CACHALOT_OK);
  EXPECT_EQ(cachalot_keeper_stop(nullptr), CACHALOT_OK);
  cachalot_end_load(nullptr);
  EXPECT_EQ(cachalot_end_store(nullptr, 1, nullptr), CACHALOT_OK);
  cachalot_client* const client = attach();
  EXPECT_EQ(cachalot_lookup(client, nullptr, 3, &blocks), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_register_cache(client, nullptr, nullptr), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_load(client, 7, nullptr, 0, nullptr, 0, CACHALOT_NO_TIMEOUT, &blocks),
            CACHALOT_NOT_FOUND);
  EXPECT_EQ(cachalot_poll(client, 1, nullptr, nullptr), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_load(client, 7, nullptr, 6, nullptr, 6, CACHALOT_NO_TIMEOUT, &blocks),
            CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_put(client, {nullptr, 5}, nullptr, 0, nullptr), CACHALOT_INVALID_ARGUMENT);
  cachalot_buffer tensor{&blocks, sizeof blocks};
  cachalot_cache cache{};
  cache.struct_size = sizeof cache;
  cache.layout = "vllm_bknhc";
  cache.tensors = &tensor;
  cache.tensor_count = (std::size_t{1} << 60) + 2;  // multiplied by 16 bytes it overflows
  EXPECT_EQ(cachalot_register_cache(client, &cache, nullptr), CACHALOT_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(cachalot_last_message(), "1152921504606846978"), nullptr);
  EXPECT_EQ(cachalot_detach(client), CACHALOT_OK);
}

TEST_F(CApiTest, ACallerThatKnowsLessOfAStructIsServedAndOneThatKnowsMoreIsAsked) {
  cachalot_statistics statistics{};
  statistics.struct_size = offsetof(cachalot_statistics, loads);
  statistics.loads = 77;
  cachalot_client* const client = attach();
  ASSERT_EQ(cachalot_get_statistics(client, &statistics), CACHALOT_OK);
  EXPECT_EQ(statistics.loads, 77u);  // after the caller's struct
  EXPECT_EQ(cachalot_detach(client), CACHALOT_OK);
  struct {
    cachalot_keeper_options known;
    std::uint64_t more;
  } newer{serve_, 0};
  newer.known.struct_size = sizeof newer;
  cachalot_keeper* second = nullptr;
  // A newer struct is accepted
  EXPECT_EQ(cachalot_keeper_start(&newer.known, &second), CACHALOT_BUSY);
  newer.more = 1;
  EXPECT_EQ(cachalot_keeper_start(&newer.known, &second), CACHALOT_UNSUPPORTED);
  newer.known.struct_size = 0;
  EXPECT_EQ(cachalot_keeper_start(&newer.known, &second), CACHALOT_INVALID_ARGUMENT);
}

TEST_F(CApiTest, RanksOfAnyTensorParallelismShareHeadGroups) {
  options_.geometry.kv_heads = 2;
  options_.geometry.head_dim = 32;
  cachalot_client* const off = attach();
  EXPECT_EQ(cachalot_block_bytes(off), 2048u);
  options_.share_tp = 2;
  cachalot_client* const whole = attach();
  EXPECT_EQ(cachalot_block_bytes(whole), 1024u);
  const std::uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  cachalot_block_hash hashes[2];
  size_t count = 0;
  ASSERT_EQ(cachalot_hash_tokens(whole, tokens, 8, hashes, 2, &count), CACHALOT_OK);
  ASSERT_EQ(count, 2u);
  // Both heads of all four pages: as bytes (layer, page, K or V, token, head, 64).
  std::vector<unsigned char> memory[2] = {std::vector<unsigned char>(4096),
                                          std::vector<unsigned char>(4096)};
  for (std::size_t i = 0; i < 4096; ++i)
    memory[0][i] = memory[1][i] = static_cast<unsigned char>(i * 37 % 251);
  const cachalot_buffer tensors[2] = {{memory[0].data(), 4096}, {memory[1].data(), 4096}};
  const cachalot_cache cache = cachalot::client::small_c_cache(tensors);
  uint32_t number = 0;
  ASSERT_EQ(cachalot_register_cache(whole, &cache, &number), CACHALOT_OK);
  const uint32_t pages[2] = {3, 1};
  size_t blocks = 0;
  ASSERT_EQ(
      cachalot_store(whole, number, nullptr, hashes, 2, pages, 2, CACHALOT_NO_TIMEOUT, &blocks),
      CACHALOT_OK)
      << cachalot_last_message();
  EXPECT_EQ(blocks, 2u);
  EXPECT_EQ(cachalot_lookup(off, hashes, 2, &blocks), CACHALOT_OK);
  EXPECT_EQ(blocks, 0u);

  options_.geometry.kv_heads = 1;
  options_.geometry.tp_rank = 1;
  options_.geometry.tp_size = 2;
  cachalot_client* const half = attach();
  std::vector<unsigned char> second[2] = {std::vector<unsigned char>(2048),
                                          std::vector<unsigned char>(2048)};
  const cachalot_buffer half_tensors[2] = {{second[0].data(), 2048}, {second[1].data(), 2048}};
  const cachalot_cache half_cache = cachalot::client::small_c_cache(half_tensors);
  ASSERT_EQ(cachalot_register_cache(half, &half_cache, &number), CACHALOT_OK)
      << cachalot_last_message();
  ASSERT_EQ(cachalot_load(half, number, hashes, 2, pages, 2, CACHALOT_NO_TIMEOUT, &blocks),
            CACHALOT_OK);
  EXPECT_EQ(blocks, 2u);
  for (const uint32_t page : pages) {
    for (std::size_t row = 0; row < 8; ++row) {  // K or V, token
      for (std::size_t layer = 0; layer < 2; ++layer) {
        EXPECT_EQ(std::memcmp(&second[layer][page * 512 + row * 64],
                              &memory[layer][page * 1024 + row * 128 + 64], 64),
                  0);
      }
    }
  }
  options_.share_tp = 3;
  cachalot_client* none = nullptr;
  EXPECT_EQ(cachalot_attach(&options_, &none), CACHALOT_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(cachalot_last_message(), "share_tp: is 3, expected a divisor of the 2"),
            nullptr);
  // A caller that was compiled before the field was there does not set it.
  options_.struct_size = offsetof(cachalot_client_options, share_tp);
  cachalot_client* const before = attach();
  EXPECT_EQ(cachalot_block_bytes(before), 1024u);
  EXPECT_EQ(cachalot_lookup(before, hashes, 2, &blocks), CACHALOT_OK);
  EXPECT_EQ(blocks, 0u);
  for (cachalot_client* const client : {off, whole, half, before})
    EXPECT_EQ(cachalot_detach(client), CACHALOT_OK);
}

TEST_F(CApiTest, APromptCountsOnceHoweverItIsCounted) {
  std::vector<unsigned char> memory[2] = {std::vector<unsigned char>(4096),
                                          std::vector<unsigned char>(4096)};
  const cachalot_buffer tensors[2] = {{memory[0].data(), 4096}, {memory[1].data(), 4096}};
  const cachalot_cache cache = cachalot::client::small_c_cache(tensors);
  const std::uint32_t tokens[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  const uint32_t pages[2] = {0, 1};
  const auto counts = [](cachalot_client* client) {
    cachalot_statistics now{};
    now.struct_size = sizeof now;
    EXPECT_EQ(cachalot_get_statistics(client, &now), CACHALOT_OK);
    return std::vector<uint64_t>{now.prompts, now.prompt_blocks, now.used_pool_blocks,
                                 now.used_peer_blocks, now.used_storage_blocks};
  };
  cachalot_client* client = attach();
  cachalot_block_hash hashes[4];
  size_t count = 0, blocks = 0;
  uint32_t number = 0;
  ASSERT_EQ(cachalot_hash_tokens(client, tokens, 16, hashes, 4, &count), CACHALOT_OK);
  ASSERT_EQ(cachalot_register_cache(client, &cache, &number), CACHALOT_OK);
  ASSERT_EQ(
      cachalot_store(client, number, nullptr, hashes, 2, pages, 2, CACHALOT_NO_TIMEOUT, &blocks),
      CACHALOT_OK);
  ASSERT_EQ(cachalot_lookup(client, hashes, 4, &blocks), CACHALOT_OK);
  ASSERT_EQ(cachalot_load(client, number, hashes, 2, pages, 2, CACHALOT_NO_TIMEOUT, &blocks),
            CACHALOT_OK);
  EXPECT_EQ(counts(client), (std::vector<uint64_t>{1, 4, 2, 0, 0}));
  EXPECT_EQ(cachalot_count_prompt(client, 4, 2, 0, 0), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_detach(client), CACHALOT_OK);
  options_.counts_prompts = 1;
  client = attach();
  EXPECT_EQ(cachalot_lookup(client, hashes, 4, &blocks), CACHALOT_OK);
  EXPECT_EQ(cachalot_count_prompt(client, 9, 2, 3, 4), CACHALOT_OK);
  EXPECT_EQ(cachalot_count_prompt(client, 8, 2, 3, 4), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_count_prompt(nullptr, 1, 0, 0, 0), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(counts(client), (std::vector<uint64_t>{1, 9, 2, 3, 4}));
  EXPECT_EQ(cachalot_detach(client), CACHALOT_OK);
}

// A struct_size that ends inside a field is an error.
TEST_F(CApiTest, ASizeThatCutsAFieldIsRefusedAndSaysWhatIsExpected) {
  cachalot_client* client = attach();
  cachalot_statistics statistics{};
  std::size_t taken = 0;
  for (std::uint32_t size = 0; size <= sizeof statistics; ++size) {
    statistics.struct_size = size;
    const bool ends_field = size == 4 || (size != 0 && size % 8 == 0);
    EXPECT_EQ(cachalot_get_statistics(client, &statistics),
              ends_field ? CACHALOT_OK : CACHALOT_INVALID_ARGUMENT)
        << size;
    taken += ends_field;
  }
  EXPECT_EQ(taken, 1 + sizeof statistics / 8);
  const auto refused = [](cachalot_code code, const char* words) {
    EXPECT_EQ(code, CACHALOT_INVALID_ARGUMENT);
    EXPECT_NE(std::strstr(cachalot_last_message(), words), nullptr) << cachalot_last_message();
  };
  statistics.struct_size = 3;
  refused(cachalot_get_statistics(client, &statistics),
          "statistics: struct_size 3, expected 192, ");
  EXPECT_EQ(cachalot_detach(client), CACHALOT_OK);
  const auto attach_with = [&](std::uint32_t size) {
    options_.struct_size = size;
    return cachalot_attach(&options_, &client);
  };
  refused(attach_with(13),
          "client options: struct_size 13 ends within the field of bytes 8 to 15, expected 184");
  refused(attach_with(41),
          "client options: struct_size 41 ends within the field of bytes 40 to 95");
  refused(attach_with(159), "ends within the field of bytes 156 to 159");
  refused(attach_with(186),
          "client options: struct_size 186, expected 184, or of a later version a multiple of 8 up "
          "to 4096");
  refused(attach_with(4104), "client options: struct_size 4104");
  refused(attach_with(UINT32_MAX), "client options: struct_size 4294967295");
  options_.struct_size = sizeof options_;
  // The geometry is inside another struct: the bytes after it belong to that struct.
  for (const std::uint32_t size : {60u, 64u, 4096u}) {
    options_.geometry.struct_size = size;
    refused(cachalot_attach(&options_, &client),
            ("geometry: struct_size " + std::to_string(size)).c_str());
  }
  options_.geometry.struct_size = 38;
  refused(cachalot_attach(&options_, &client),
          "geometry: struct_size 38 ends within the field of bytes 36 to 39, expected 56");
  options_.geometry.struct_size = offsetof(cachalot_geometry, tp_rank);
  EXPECT_EQ(cachalot_attach(&options_, &client), CACHALOT_OK) << cachalot_last_message();
  cachalot_cache cache{};
  cache.struct_size = 45;
  refused(cachalot_register_cache(client, &cache, nullptr),
          "cache: struct_size 45 ends within the field of bytes 40 to 47");
  EXPECT_EQ(cachalot_detach(client), CACHALOT_OK);
  serve_.struct_size = 20;
  cachalot_keeper* second = nullptr;
  refused(cachalot_keeper_start(&serve_, &second),
          "keeper options: struct_size 20 ends within the field of bytes 16 to 23");
}

TEST_F(CApiTest, NullWithACountIsNamed) {
  cachalot_client* const client = attach();
  const auto refused = [](cachalot_code code, const char* words) {
    EXPECT_EQ(code, CACHALOT_INVALID_ARGUMENT);
    EXPECT_STREQ(cachalot_last_message(), words);
  };
  const cachalot_block_hash hash{1, 2};
  const std::uint32_t page = 0;
  std::uint64_t token = 0;
  cachalot_cache cache{};
  cache.struct_size = sizeof cache;
  cache.layout = "vllm_bknhc";
  cache.tensor_count = 2;
  refused(cachalot_register_cache(client, &cache, nullptr), "cache: tensors: is null");
  refused(cachalot_load(client, 1, &hash, 1, nullptr, 1, 0, nullptr), "pages: is null");
  refused(cachalot_store_async(client, 1, nullptr, &hash, 1, nullptr, SIZE_MAX, 0, &token),
          "pages: is null");
  cachalot_layer_load* load = nullptr;
  refused(cachalot_begin_load(client, 1, &hash, 1, nullptr, 1, &load, nullptr), "pages: is null");
  refused(cachalot_begin_load(client, 1, nullptr, 1, &page, 1, &load, nullptr), "hashes: is null");
  // Null ranges with a count do not mean "all tokens".
  const cachalot_token_ranges ranges{nullptr, 3};
  refused(cachalot_load_tokens(client, 1, &hash, 1, &page, 1, &ranges, 0, nullptr),
          "tokens: ranges: is null");
  refused(cachalot_put(client, {"k", 1}, nullptr, 1, nullptr), "parts: is null");
  refused(cachalot_get(client, {"k", 1}, nullptr, SIZE_MAX, nullptr), "parts: is null");
  EXPECT_EQ(cachalot_detach(client), CACHALOT_OK);
}

// Fields added later count as zero for callers with an older struct, whatever bytes follow it.
TEST_F(CApiTest, ACacheOfACallerThatKnowsNoGpuIsInItsMemory) {
  cachalot_client_options old = options_;
  old.struct_size = offsetof(cachalot_client_options, pool_bypasses_caches);
  old.pool_bypasses_caches = 0xffffffff;
  cachalot_client* client = nullptr;
  ASSERT_EQ(cachalot_attach(&old, &client), CACHALOT_OK) << cachalot_last_message();
  const cachalot::client::SmallTensors tensors;
  cachalot_cache cache = tensors.cache();
  cache.struct_size = offsetof(cachalot_cache, memory);
  cache.memory = 77;
  cache.device = 88;
  cache.stream = &cache;
  uint32_t id = 0;
  EXPECT_EQ(cachalot_register_cache(client, &cache, &id), CACHALOT_OK) << cachalot_last_message();
  cache.struct_size = sizeof cache;
  const auto refused = [&](const char* words) {
    EXPECT_EQ(cachalot_register_cache(client, &cache, &id), CACHALOT_INVALID_ARGUMENT);
    EXPECT_NE(std::strstr(cachalot_last_message(), words), nullptr) << cachalot_last_message();
  };
  refused("memory 77");
  cache.memory = CACHALOT_HOST_MEMORY;
  refused("device 88");
  cache.device = 0;
  refused("no device");
  cache.stream = nullptr;
  EXPECT_EQ(cachalot_register_cache(client, &cache, &id), CACHALOT_OK) << cachalot_last_message();
  cache.memory = CACHALOT_CUDA_MEMORY;
  cache.device = UINT32_MAX;
  refused("device 4294967295");
  EXPECT_EQ(cachalot_detach(client), CACHALOT_OK);
}

// Two layers, one head of 128 bytes, pages of 4 tokens: K and V of a token with 64 bytes of other data after them.
TEST_F(CApiTest, ACacheOfStridesHoldsWhatANamedLayoutStored) {
  cachalot_client* const client = attach();
  std::vector<unsigned char> named[2], strided(4 * 2560, 0x5a);
  for (unsigned layer = 0; layer < 2; ++layer) {
    for (unsigned i = 0; i < 4096; ++i)
      named[layer].push_back(static_cast<unsigned char>(i * 7 + layer));
  }
  const cachalot_buffer layers[2] = {{named[0].data(), 4096}, {named[1].data(), 4096}};
  cachalot_cache cache = cachalot::client::small_c_cache(layers);
  uint32_t from = 0, into = 0;
  ASSERT_EQ(cachalot_register_cache(client, &cache, &from), CACHALOT_OK) << cachalot_last_message();
  const cachalot_buffer whole = {strided.data(), strided.size()};
  cachalot_part_strides parts[2] = {{0, 0, 0, 1280, 2560, 0, 320}, {0, 0, 128, 1280, 2560, 0, 320}};
  cache.layout = nullptr;
  cache.tensors = &whole;
  cache.tensor_count = 1;
  cache.strides = parts;
  ASSERT_EQ(cachalot_register_cache(client, &cache, &into), CACHALOT_OK) << cachalot_last_message();
  const uint32_t tokens[8] = {1, 2, 3}, pages[2] = {3, 1};
  cachalot_block_hash hashes[2];
  size_t blocks = 0;
  ASSERT_EQ(cachalot_hash_tokens(client, tokens, 8, hashes, 2, nullptr), CACHALOT_OK);
  ASSERT_EQ(
      cachalot_store(client, from, nullptr, hashes, 2, pages, 2, CACHALOT_NO_TIMEOUT, &blocks),
      CACHALOT_OK);
  ASSERT_EQ(cachalot_load(client, into, hashes, 2, pages, 2, CACHALOT_NO_TIMEOUT, &blocks),
            CACHALOT_OK);
  ASSERT_EQ(blocks, 2u);
  std::vector<unsigned char> wanted(strided.size(), 0x5a);
  for (const unsigned page : pages) {
    for (unsigned i = 0; i < 16; ++i) {  // part, layer, token
      const unsigned part = i / 8, layer = i / 4 % 2, token = i % 4;
      std::memcpy(&wanted[page * 2560 + part * 128 + layer * 1280 + token * 320],
                  &named[layer][((page * 2 + part) * 4 + token) * 128], 128);
    }
  }
  EXPECT_EQ(strided, wanted);

  const auto refused = [&](const char* words) {
    EXPECT_EQ(cachalot_register_cache(client, &cache, &into), CACHALOT_INVALID_ARGUMENT);
    EXPECT_NE(std::strstr(cachalot_last_message(), words), nullptr) << cachalot_last_message();
  };
  parts[1].token = 100;
  refused("part 1: token is 100, expected a stride that keeps apart");
  parts[1].token = UINT64_MAX - 1;
  refused("token is 18446744073709551614");
  parts[1].token = 320;
  cache.layout = "vllm_bknhc";
  refused("layout is vllm_bknhc and strides are given");
  cache.struct_size = offsetof(cachalot_cache, strides);  // an older caller without strides
  refused("1 tensors, expected 2");
  EXPECT_EQ(cachalot_detach(client), CACHALOT_OK);
}

TEST_F(CApiTest, APinnedLoadIsForClientsThatSaidSo) {
  for (const std::uint32_t pins : {0u, 1u}) {
    options_.pinned_reads = pins;
    cachalot_client* const client = attach();
    const cachalot::client::SmallTensors tensors;
    cachalot_cache cache = tensors.cache();
    uint32_t id = 0;
    ASSERT_EQ(cachalot_register_cache(client, &cache, &id), CACHALOT_OK) << cachalot_last_message();
    const uint32_t tokens[4] = {}, page = 0;
    cachalot_block_hash hash;
    ASSERT_EQ(cachalot_hash_tokens(client, tokens, 4, &hash, 1, nullptr), CACHALOT_OK);
    size_t blocks = 0;
    ASSERT_EQ(cachalot_store(client, id, nullptr, &hash, 1, &page, 1, CACHALOT_NO_TIMEOUT, &blocks),
              CACHALOT_OK);
    cachalot_layer_load* load = nullptr;
    EXPECT_EQ(cachalot_begin_pinned_load(client, id, nullptr, 1, &page, 1, &load, nullptr),
              CACHALOT_INVALID_ARGUMENT);
    const cachalot_code begun =
        cachalot_begin_pinned_load(client, id, &hash, 1, &page, 1, &load, &blocks);
    EXPECT_EQ(begun, pins != 0 ? CACHALOT_OK : CACHALOT_UNSUPPORTED) << cachalot_last_message();
    if (pins != 0) {
      EXPECT_EQ(cachalot_load_layer(load, 0, &blocks), CACHALOT_OK);
      EXPECT_EQ(blocks, 1u);
    }
    cachalot_end_load(load);
    EXPECT_EQ(cachalot_detach(client), CACHALOT_OK);
  }
}

// Counts that do not match are rejected before the arrays are read.
TEST_F(CApiTest, CountsThatDoNotAgreeAreRefusedByEveryCall) {
  const std::string file = path_ + ".requests";
  options_.record_requests = file.c_str();
  options_.record_loads = 1;
  cachalot_client* const client = attach();
  const cachalot::client::SmallTensors tensors;
  cachalot_cache cache = tensors.cache();
  cache.pages = 8;
  cache.page_tokens = 2;  // two pages per block
  uint32_t id = 0;
  ASSERT_EQ(cachalot_register_cache(client, &cache, &id), CACHALOT_OK) << cachalot_last_message();
  const cachalot_block_hash hash{1, 2};
  const uint32_t pages[2] = {0, 1};
  const size_t counts[][2] = {{1, 1},
                              {1, 3},
                              {0, 2},
                              {1, SIZE_MAX},
                              {size_t{1} << 32, 2},
                              {size_t{1} << 63, 0},
                              {(size_t{1} << 63) + 1, 2},
                              {SIZE_MAX, 2},
                              {SIZE_MAX, SIZE_MAX - 1}};
  for (const auto& [count, page_count] : counts) {
    SCOPED_TRACE(std::to_string(count) + " blocks, " + std::to_string(page_count) + " pages");
    const auto refused = [](cachalot_code code) {
      EXPECT_EQ(code, CACHALOT_INVALID_ARGUMENT);
      EXPECT_NE(std::strstr(cachalot_last_message(), "expected 2 page(s) each"), nullptr)
          << cachalot_last_message();
    };
    size_t blocks = 0;
    uint64_t token = 0;
    cachalot_layer_load* load = nullptr;
    cachalot_layer_store* store = nullptr;
    refused(
        cachalot_load(client, id, &hash, count, pages, page_count, CACHALOT_NO_TIMEOUT, &blocks));
    refused(cachalot_store(client, id, nullptr, &hash, count, pages, page_count,
                           CACHALOT_NO_TIMEOUT, &blocks));
    refused(cachalot_load_async(client, id, &hash, count, pages, page_count, CACHALOT_NO_TIMEOUT,
                                &token));
    refused(cachalot_store_async(client, id, nullptr, &hash, count, pages, page_count,
                                 CACHALOT_NO_TIMEOUT, &token));
    refused(cachalot_begin_load(client, id, &hash, count, pages, page_count, &load, &blocks));
    refused(cachalot_begin_store(client, id, nullptr, &hash, count, pages, page_count, &store));
  }
  EXPECT_EQ(cachalot_detach(client), CACHALOT_OK);
  std::ifstream in(file);
  std::string line;
  EXPECT_FALSE(std::getline(in, line)) << "what is refused is no request: " << line;
  std::remove(file.c_str());
}

TEST_F(CApiTest, NumbersThatAreNoneAreNamed) {
  cachalot_client* client = nullptr;
  options_.geometry.dtype = 99;
  EXPECT_EQ(cachalot_attach(&options_, &client), CACHALOT_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(cachalot_last_message(), "99"), nullptr);
  EXPECT_EQ(client, nullptr);
  EXPECT_STREQ(cachalot_code_name(CACHALOT_NO_KEEPER), "no_keeper");
  EXPECT_STREQ(cachalot_code_name(static_cast<cachalot_code>(31)), "unknown");
}

TEST_F(CApiTest, NumbersBeyondReasonAreRefusedWithTheirBound) {
  cachalot_client* client = nullptr;
  for (std::uint32_t cachalot_client_options::*option :
       {&cachalot_client_options::copy_threads, &cachalot_client_options::workers,
        &cachalot_client_options::grant_blocks}) {
    options_.*option = 1'000'000'000;
    EXPECT_EQ(cachalot_attach(&options_, &client), CACHALOT_INVALID_ARGUMENT);
    EXPECT_NE(std::strstr(cachalot_last_message(), "1000000000 is not within 1 to 256"), nullptr)
        << cachalot_last_message();
    options_.*option = 0;
  }
  client = attach();
  unsigned char byte = 0;
  for (const std::uint64_t bytes :
       {std::uint64_t{0}, std::uint64_t{1} << 57, std::uint64_t{1} << 63, UINT64_MAX}) {
    EXPECT_EQ(cachalot_register_buffer(client, &byte, bytes), CACHALOT_INVALID_ARGUMENT) << bytes;
    EXPECT_NE(std::strstr(cachalot_last_message(), std::to_string(bytes).c_str()), nullptr)
        << cachalot_last_message();
  }
  EXPECT_EQ(cachalot_register_buffer(client, &byte, 1), CACHALOT_OK);
  EXPECT_EQ(cachalot_detach(client), CACHALOT_OK);
}

TEST_F(CApiTest, TheCpusOfCopiesAreRead) {
  cachalot_client* client = nullptr;
  options_.copy_cpus = "none";
  EXPECT_EQ(cachalot_attach(&options_, &client), CACHALOT_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(cachalot_last_message(), "copy_cpus: 'none': expected"), nullptr)
      << cachalot_last_message();
  // A caller that was compiled before the field was there does not set it.
  options_.struct_size = offsetof(cachalot_client_options, copy_cpus);
  EXPECT_EQ(cachalot_detach(attach()), CACHALOT_OK);
  options_.struct_size = sizeof options_;
  options_.copy_cpus = "0=0";
  EXPECT_EQ(cachalot_detach(attach()), CACHALOT_OK);
}

TEST_F(CApiTest, RecordsTheRequestsThatAreLookedUp) {
  const std::string file = path_ + ".jsonl";
  options_.record_requests = file.c_str();
  cachalot_client* const client = attach();
  const cachalot_block_hash hashes[2] = {{1, 2}, {3, 4}};
  size_t blocks = 9;
  EXPECT_EQ(cachalot_lookup(client, hashes, 2, &blocks), CACHALOT_OK);
  EXPECT_EQ(cachalot_detach(client), CACHALOT_OK);
  std::ifstream in(file);
  std::string line;
  EXPECT_TRUE(std::getline(in, line));
  EXPECT_NE(line.find("\"input_length\": 8, \"output_length\": 0, \"hash_ids\": [2, 4]}"),
            std::string::npos)
      << line;
  std::remove(file.c_str());
}

TEST_F(CApiTest, AShortStoreHasAReason) {
  cachalot_client* const client = attach();
  const cachalot::client::SmallTensors tensors;
  cachalot_cache cache = tensors.cache();
  uint32_t id = 0;
  ASSERT_EQ(cachalot_register_cache(client, &cache, &id), CACHALOT_OK) << cachalot_last_message();
  const uint32_t tokens[8] = {}, pages[2] = {0, 1};
  cachalot_block_hash hashes[2];
  ASSERT_EQ(cachalot_hash_tokens(client, tokens, 8, hashes, 2, nullptr), CACHALOT_OK);
  size_t blocks = 9;
  const auto store = [&](const cachalot_block_hash* parent, const cachalot_block_hash* first,
                         size_t count) {
    return cachalot_store(client, id, parent, first, count, pages, count, CACHALOT_NO_TIMEOUT,
                          &blocks);
  };
  ASSERT_EQ(store(&hashes[0], &hashes[1], 1), CACHALOT_OK) << cachalot_last_message();
  EXPECT_EQ(blocks, 0u);
  EXPECT_EQ(cachalot_last_reason(), CACHALOT_REFUSED);
  blocks = 9;
  EXPECT_EQ(store(nullptr, nullptr, 1), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_last_reason(), CACHALOT_OK);
  EXPECT_EQ(blocks, 0u);
  ASSERT_EQ(store(nullptr, hashes, 1), CACHALOT_OK) << cachalot_last_message();
  EXPECT_EQ(blocks, 1u);
  EXPECT_EQ(cachalot_last_reason(), CACHALOT_OK);
  const cachalot_block_hash unknown{1, 2};
  uint64_t token = 0;
  ASSERT_EQ(cachalot_store_async(client, id, &unknown, &hashes[1], 1, pages, 1, CACHALOT_NO_TIMEOUT,
                                 &token),
            CACHALOT_OK);
  ASSERT_EQ(cachalot_wait(client, token, CACHALOT_NO_TIMEOUT, &blocks), CACHALOT_OK)
      << cachalot_last_message();
  EXPECT_EQ(cachalot_last_reason(), CACHALOT_REFUSED);
  EXPECT_EQ(cachalot_detach(client), CACHALOT_OK);
}

TEST_F(CApiTest, TokensOfAStoreAreThoseOfItsBlocks) {
  cachalot_client* const client = attach();
  const cachalot::client::SmallTensors tensors;
  cachalot_cache cache = tensors.cache();
  uint32_t id = 0;
  ASSERT_EQ(cachalot_register_cache(client, &cache, &id), CACHALOT_OK) << cachalot_last_message();
  const uint32_t tokens[8] = {1, 2, 3}, pages[2] = {0, 1};
  cachalot_block_hash hashes[2];
  ASSERT_EQ(cachalot_hash_tokens(client, tokens, 8, hashes, 2, nullptr), CACHALOT_OK);
  size_t blocks = 0;
  const auto store = [&](const uint32_t* given, size_t count) {
    return cachalot_store_with_tokens(client, id, nullptr, hashes, 2, pages, 2, given, count,
                                      CACHALOT_NO_TIMEOUT, &blocks);
  };
  EXPECT_EQ(store(tokens, 7), CACHALOT_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(cachalot_last_message(), "tokens: 7, expected 4 for each of 2 blocks"),
            nullptr)
      << cachalot_last_message();
  EXPECT_EQ(store(nullptr, 8), CACHALOT_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(cachalot_last_message(), "tokens"), nullptr);
  EXPECT_EQ(store(tokens, 8), CACHALOT_OK) << cachalot_last_message();
  EXPECT_EQ(blocks, 2u);
  EXPECT_EQ(cachalot_detach(client), CACHALOT_OK);
}

TEST_F(CApiTest, WhatWasBegunMayEndAfterItsClient) {
  cachalot_client* const client = attach();
  const cachalot::client::SmallTensors tensors;
  cachalot_cache cache = tensors.cache();
  std::uint32_t id = 0;
  ASSERT_EQ(cachalot_register_cache(client, &cache, &id), CACHALOT_OK) << cachalot_last_message();
  const std::uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8}, pages[2] = {0, 1}, twice[2] = {1, 1};
  cachalot_block_hash hashes[2], others[2];
  ASSERT_EQ(cachalot_hash_tokens(client, tokens, 8, hashes, 2, nullptr), CACHALOT_OK);
  ASSERT_EQ(cachalot_hash_tokens(client, tokens + 1, 7, others, 1, nullptr), CACHALOT_OK);
  size_t blocks = 0;
  ASSERT_EQ(cachalot_store(client, id, nullptr, hashes, 2, pages, 2, CACHALOT_NO_TIMEOUT, &blocks),
            CACHALOT_OK);
  EXPECT_EQ(blocks, 2u);
  // The time is over at the start, so no block was finished.
  EXPECT_EQ(cachalot_load(client, id, hashes, 2, pages, 2, 0, &blocks), CACHALOT_TIMEOUT);
  EXPECT_EQ(blocks, 0u);
  EXPECT_EQ(cachalot_load(client, id, hashes, 2, twice, 2, CACHALOT_NO_TIMEOUT, &blocks),
            CACHALOT_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(cachalot_last_message(), "both page 1"), nullptr)
      << cachalot_last_message();
  cachalot_layer_load* load = nullptr;
  cachalot_layer_store* store = nullptr;
  ASSERT_EQ(cachalot_begin_load(client, id, hashes, 2, pages, 2, &load, nullptr), CACHALOT_OK);
  ASSERT_EQ(cachalot_begin_store(client, id, nullptr, others, 1, pages, 1, &store), CACHALOT_OK)
      << cachalot_last_message();
  EXPECT_EQ(cachalot_detach(client), CACHALOT_OK) << cachalot_last_message();
  EXPECT_EQ(cachalot_load_layer(load, 0, &blocks), CACHALOT_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(cachalot_last_message(), "detached"), nullptr) << cachalot_last_message();
  EXPECT_EQ(cachalot_store_layer(store, 0), CACHALOT_INVALID_ARGUMENT);
  cachalot_end_load(load);
  EXPECT_EQ(cachalot_end_store(store, 1, &blocks), CACHALOT_INVALID_ARGUMENT);
}

TEST_F(CApiTest, AMessageIsOneLineWhateverThePathIs) {
  cachalot_client_options options = options_;
  options.pool = "/dev/shm/no\nsuch\rpool";
  cachalot_client* client = nullptr;
  EXPECT_NE(cachalot_attach(&options, &client), CACHALOT_OK);
  EXPECT_EQ(std::strpbrk(cachalot_last_message(), "\n\r"), nullptr) << cachalot_last_message();
}

TEST_F(CApiTest, AKeyThatIsNullIsRefusedByItsNumber) {
  cachalot_client* const client = attach();
  const cachalot_key keys[] = {{"k", 1}, {nullptr, 5}};
  uint8_t present[2] = {7, 7};
  EXPECT_EQ(cachalot_exists(client, keys, 2, present), CACHALOT_INVALID_ARGUMENT);
  EXPECT_STREQ(cachalot_last_message(),
               "keys: number 1 is null, expected the address of its 5 bytes");
  EXPECT_EQ(present[0], 7);
  const cachalot_key empty[] = {{nullptr, 0}};
  EXPECT_EQ(cachalot_exists(client, empty, 1, present), CACHALOT_OK) << cachalot_last_message();
  EXPECT_EQ(cachalot_exists(client, nullptr, 2, present), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_exists(client, nullptr, 0, nullptr), CACHALOT_OK) << cachalot_last_message();
  EXPECT_EQ(cachalot_detach(client), CACHALOT_OK);
}

TEST_F(CApiTest, KeysAndListsOfAddresses) {
  cachalot_client* const client = attach();
  unsigned char from[300], to[300] = {};
  for (int i = 0; i < 300; ++i) from[i] = static_cast<unsigned char>(i);
  ASSERT_EQ(cachalot_register_buffer(client, from, sizeof from), CACHALOT_OK);
  ASSERT_EQ(cachalot_register_buffer(client, to, sizeof to), CACHALOT_OK);
  const cachalot_key key{"k\0y", 3};
  const cachalot_buffer in[] = {{from + 7, 100}, {from + 200, 33}}, out[] = {{to, 133}};
  std::uint64_t bytes = 0;
  ASSERT_EQ(cachalot_put(client, key, in, 2, &bytes), CACHALOT_OK) << cachalot_last_message();
  EXPECT_EQ(bytes, 133u);
  uint8_t present[2];
  const cachalot_key keys[] = {{"k", 1}, key};
  ASSERT_EQ(cachalot_exists(client, keys, 2, present), CACHALOT_OK);
  EXPECT_EQ(present[0], 0);
  EXPECT_EQ(present[1], 1);
  ASSERT_EQ(cachalot_get(client, key, out, 1, &bytes), CACHALOT_OK) << cachalot_last_message();
  EXPECT_EQ(std::memcmp(to, from + 7, 100), 0);
  EXPECT_EQ(std::memcmp(to + 100, from + 200, 33), 0);
  EXPECT_EQ(cachalot_detach(client), CACHALOT_OK);
}

}  // namespace
