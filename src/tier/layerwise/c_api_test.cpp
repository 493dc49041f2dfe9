// What a C caller can get wrong with include/cachalot/layerwise.h.

#include <cachalot/layerwise.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace {

class LayerwiseCApiTest : public testing::Test {
 protected:
  LayerwiseCApiTest() {
    options_.struct_size = sizeof options_;
    options_.layers = 4;
    options_.part_bytes[0] = options_.part_bytes[1] = 1 << 20;
    options_.max_tokens = 8;
  }
  ~LayerwiseCApiTest() override { EXPECT_EQ(cachalot_layerwise_close(kv_), CACHALOT_OK); }
  void open() {
    ASSERT_EQ(cachalot_layerwise_open(&options_, &kv_), CACHALOT_OK) << cachalot_last_message();
  }
  std::string refused() {
    cachalot_layerwise* kv = nullptr;
    const cachalot_code code = cachalot_layerwise_open(&options_, &kv);
    EXPECT_EQ(kv != nullptr, code == CACHALOT_OK);
    cachalot_layerwise_close(kv);
    return code == CACHALOT_INVALID_ARGUMENT ? cachalot_last_message() : "";
  }

  cachalot_layerwise_options options_{};
  cachalot_layerwise* kv_ = nullptr;
};

#define EXPECT_SAYS(call, words)                                                   \
  do {                                                                             \
    EXPECT_EQ(call, CACHALOT_INVALID_ARGUMENT);                                    \
    EXPECT_NE(std::string(cachalot_last_message()).find(words), std::string::npos) \
        << cachalot_last_message();                                                \
  } while (false)

TEST_F(LayerwiseCApiTest, ARowComesBackAfterItsLayerWasOffloaded) {
  open();
  cachalot_layerwise_request* request = nullptr;
  uint64_t bases[4] = {}, offset = 0, stride = 0;
  ASSERT_EQ(cachalot_layerwise_add(kv_, 8, &request, bases), CACHALOT_OK);
  ASSERT_EQ(cachalot_layerwise_view(kv_, 1, &offset, &stride), CACHALOT_OK);
  EXPECT_EQ(stride, uint64_t{1} << 20);
  for (uint64_t token = 0; token < 3; ++token) {
    const uint64_t one = 1;
    ASSERT_EQ(cachalot_layerwise_begin(kv_, &request, &one, 1), CACHALOT_OK);
    for (uint32_t layer = 0; layer < 4; ++layer) {
      ASSERT_EQ(cachalot_layerwise_acquire(kv_, layer), CACHALOT_OK) << cachalot_last_message();
      auto* const rows = reinterpret_cast<char*>(bases[layer] + offset);
      std::memset(rows + token * stride, static_cast<int>(10 * layer + token), stride);
      for (uint64_t t = 0; t <= token; ++t) {
        EXPECT_EQ(rows[(t + 1) * stride - 1], static_cast<char>(10 * layer + t));
      }
      ASSERT_EQ(cachalot_layerwise_release(kv_, layer), CACHALOT_OK);
    }
  }
  cachalot_layerwise_statistics now{};
  now.struct_size = sizeof now;
  ASSERT_EQ(cachalot_layerwise_get_statistics(kv_, &now), CACHALOT_OK);
  EXPECT_EQ(now.requests, 1u);
  EXPECT_EQ(now.peak_device_bytes * 4, now.all_bytes * 2);
  EXPECT_GE(now.loaded_bytes, uint64_t{4} << 21);
  EXPECT_EQ(cachalot_layerwise_set_resident(kv_, 4), CACHALOT_OK);
  EXPECT_EQ(cachalot_layerwise_remove(kv_, request), CACHALOT_OK);
}

TEST_F(LayerwiseCApiTest, SaysWhichOptionIsWrong) {
  options_.layers = 0;
  EXPECT_NE(refused().find("layers"), std::string::npos);
  options_.layers = 4;
  options_.device = "disk";
  EXPECT_NE(refused().find("\"disk\""), std::string::npos);
  options_.device = nullptr;
  options_.layout = "flat";
  EXPECT_NE(refused().find("flat"), std::string::npos);
  options_.layout = "folded";
  options_.limit_bytes = 5;
  EXPECT_NE(refused().find("limit_bytes 5"), std::string::npos);
  options_.limit_bytes = 0;
  options_.host_bytes = 5;
  EXPECT_NE(refused().find("host_bytes 5"), std::string::npos);
  options_.host_bytes = 0;
  options_.struct_size = 3;
  EXPECT_NE(refused().find("layerwise options"), std::string::npos);
}

TEST_F(LayerwiseCApiTest, RefusesNullAndCallsOutOfOrder) {
  EXPECT_SAYS(cachalot_layerwise_open(nullptr, &kv_), "null");
  EXPECT_SAYS(cachalot_layerwise_open(&options_, nullptr), "layerwise: is null");
  EXPECT_SAYS(cachalot_layerwise_acquire(nullptr, 0), "layerwise: is null");
  open();
  EXPECT_SAYS(cachalot_layerwise_add(kv_, 8, nullptr, nullptr), "request: is null");
  cachalot_layerwise_request* request = nullptr;
  EXPECT_SAYS(cachalot_layerwise_add(kv_, 9, &request, nullptr), "9 tokens");
  EXPECT_EQ(request, nullptr);
  EXPECT_SAYS(cachalot_layerwise_remove(kv_, nullptr), "no such request");
  EXPECT_SAYS(cachalot_layerwise_begin(kv_, nullptr, nullptr, 1), "requests: is null");
  EXPECT_SAYS(cachalot_layerwise_begin(kv_, &request, nullptr, 1), "tokens: is null");
  EXPECT_SAYS(cachalot_layerwise_view(kv_, 2, nullptr, nullptr), "part 2, expected one of 2");
  EXPECT_SAYS(cachalot_layerwise_cancel(kv_), "no step");
  EXPECT_SAYS(cachalot_layerwise_release(kv_, 0), "layer 0");
  EXPECT_SAYS(cachalot_layerwise_get_statistics(kv_, nullptr), "null");
  EXPECT_SAYS(cachalot_layerwise_fewest_resident(4, 1, 1, -1, nullptr), "resident: is null");
  uint64_t resident = 7;
  EXPECT_SAYS(cachalot_layerwise_fewest_resident(4, 1, 1, -1, &resident), "bytes_per_second");
  EXPECT_EQ(cachalot_layerwise_fewest_resident(12, 1000, 9'500'000, 1e6, &resident), CACHALOT_OK);
  EXPECT_EQ(resident, 3u);
}

TEST_F(LayerwiseCApiTest, AnErrorOfTheCallersCopyReachesTheNextCall) {
  options_.copy = [](void*, uint64_t, uint64_t, uint64_t) -> cachalot_code { return CACHALOT_IO; };
  open();
  cachalot_layerwise_request* request = nullptr;
  ASSERT_EQ(cachalot_layerwise_add(kv_, 8, &request, nullptr), CACHALOT_OK);
  const uint64_t one = 1;
  ASSERT_EQ(cachalot_layerwise_begin(kv_, &request, &one, 1), CACHALOT_OK);
  cachalot_code code = CACHALOT_OK;
  for (uint32_t layer = 0; layer < 4 && code == CACHALOT_OK; ++layer) {
    code = cachalot_layerwise_acquire(kv_, layer);
    if (code == CACHALOT_OK) code = cachalot_layerwise_release(kv_, layer);
  }
  EXPECT_EQ(code, CACHALOT_IO);
}

}  // namespace
