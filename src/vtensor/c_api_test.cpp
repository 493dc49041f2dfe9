// What a C caller can get wrong with include/cachalot/vmm.h. That C can call at all, the examples show.

#include <cachalot/vmm.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <cstring>
#include <string>

namespace {

class VmmCApiTest : public testing::Test {
 protected:
  VmmCApiTest() {
    options_.struct_size = sizeof options_;
    options_.layers = 2;
    options_.part_bytes[0] = options_.part_bytes[1] = 1 << 19;  // a token is a chunk, folded
    options_.max_tokens = 64;
    options_.device = "model";
  }
  ~VmmCApiTest() override {
    EXPECT_EQ(cachalot_vmm_close(vmm_), CACHALOT_OK);
    unlink(path_.c_str());
  }
  void open() {
    ASSERT_EQ(cachalot_vmm_open(&options_, &vmm_), CACHALOT_OK) << cachalot_last_message();
  }
  cachalot_code opened() {
    cachalot_vmm* vmm = nullptr;
    const cachalot_code code = cachalot_vmm_open(&options_, &vmm);
    EXPECT_EQ(vmm != nullptr, code == CACHALOT_OK);
    cachalot_vmm_close(vmm);
    return code;
  }
  cachalot_vmm_range* reserve(uint64_t tokens) {
    cachalot_vmm_range* range = nullptr;
    EXPECT_EQ(cachalot_vmm_reserve(vmm_, tokens, 64, &range, nullptr), CACHALOT_OK)
        << cachalot_last_message();
    return range;
  }
  cachalot_vmm_statistics statistics() {
    cachalot_vmm_statistics now{};
    now.struct_size = sizeof now;
    EXPECT_EQ(cachalot_vmm_get_statistics(vmm_, &now), CACHALOT_OK);
    return now;
  }

  const std::string path_ = "/dev/shm/cachalot_vmm_c_api_test." + std::to_string(getpid());
  cachalot_vmm_options options_{};
  cachalot_vmm* vmm_ = nullptr;
};

constexpr uint64_t kMiB = 1 << 20;

TEST_F(VmmCApiTest, CommitsDecommitsAndSharesChunks) {
  open();
  cachalot_vmm_range* const from = reserve(10);
  EXPECT_EQ(statistics().used_bytes, 20 * kMiB);
  ASSERT_EQ(cachalot_vmm_commit(from, 12), CACHALOT_OK);
  EXPECT_EQ(statistics().waits, 1u);
  cachalot_vmm_range* const to = reserve(0);
  uint64_t shared = 0;
  ASSERT_EQ(cachalot_vmm_alias(to, from, 5, &shared), CACHALOT_OK) << cachalot_last_message();
  EXPECT_EQ(shared, 5u);
  EXPECT_EQ(statistics().shared_bytes, 10 * kMiB);
  EXPECT_EQ(statistics().used_bytes, 24 * kMiB);
  EXPECT_EQ(cachalot_vmm_decommit(from, 4), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_vmm_decommit(from, 5), CACHALOT_OK);
  EXPECT_EQ(statistics().used_bytes, 10 * kMiB);
  cachalot_vmm_release(from);
  ASSERT_EQ(cachalot_vmm_commit(to, 6), CACHALOT_OK);
  EXPECT_EQ(statistics().ranges, 1u);
}

TEST_F(VmmCApiTest, SaysWhereATokenLies) {
  open();
  uint64_t offset = 0, stride = 0;
  ASSERT_EQ(cachalot_vmm_view(vmm_, 1, 1, &offset, &stride), CACHALOT_OK);
  EXPECT_EQ(offset, 3 * kMiB / 2);
  EXPECT_EQ(stride, 2 * kMiB);
  EXPECT_EQ(cachalot_vmm_view(vmm_, 2, 0, &offset, &stride), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_vmm_view(vmm_, 0, 2, &offset, &stride), CACHALOT_INVALID_ARGUMENT);
}

TEST_F(VmmCApiTest, NullIsRefusedWhereSomethingIsNeeded) {
  EXPECT_EQ(cachalot_vmm_open(nullptr, &vmm_), CACHALOT_INVALID_ARGUMENT);
  EXPECT_STRNE(cachalot_last_message(), "");
  EXPECT_EQ(cachalot_vmm_open(&options_, nullptr), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_vmm_close(nullptr), CACHALOT_OK);
  cachalot_vmm_release(nullptr);
  open();
  cachalot_vmm_range* const range = reserve(1);
  EXPECT_EQ(cachalot_vmm_reserve(nullptr, 1, 1, nullptr, nullptr), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_vmm_reserve(vmm_, 1, 1, nullptr, nullptr), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_vmm_commit(nullptr, 1), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_vmm_prepare(nullptr, 1), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_vmm_decommit(nullptr, 1), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_vmm_alias(nullptr, range, 1, nullptr), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_vmm_alias(range, nullptr, 1, nullptr), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_vmm_view(nullptr, 0, 0, nullptr, nullptr), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_vmm_get_statistics(vmm_, nullptr), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_vmm_notify(vmm_, nullptr), CACHALOT_INVALID_ARGUMENT);
}

TEST_F(VmmCApiTest, RefusesOptionsThatMakeNoSense) {
  const cachalot_vmm_options good = options_;
  const auto expect_refused = [&](cachalot_code code, const char* word) {
    EXPECT_EQ(opened(), code);
    EXPECT_NE(std::strstr(cachalot_last_message(), word), nullptr) << cachalot_last_message();
    options_ = good;
  };
  options_.device = "cuda";
  expect_refused(CACHALOT_INVALID_ARGUMENT, "cuda:N");
  options_.device = "cuda:4x";
  expect_refused(CACHALOT_INVALID_ARGUMENT, "cuda:4x");
  options_.layout = "diagonal";
  expect_refused(CACHALOT_INVALID_ARGUMENT, "folded_parts");
  options_.layers = 0;
  expect_refused(CACHALOT_INVALID_ARGUMENT, "layers");
  options_.layers = UINT32_MAX;
  options_.part_bytes[0] = options_.part_bytes[1] = 1;
  options_.layout = "per_layer";
  expect_refused(CACHALOT_INVALID_ARGUMENT, "layers");
  options_.part_bytes[0] = UINT64_MAX;
  expect_refused(CACHALOT_INVALID_ARGUMENT, "2^40");
  options_.max_tokens = UINT64_MAX;
  expect_refused(CACHALOT_INVALID_ARGUMENT, "2^56");
  options_.chunk_bytes = UINT64_MAX;
  expect_refused(CACHALOT_INVALID_ARGUMENT, "multiple");
  options_.chunk_bytes = 1;  // of which a budget would need four billion
  options_.limit_bytes = 4096 * kMiB;
  options_.budget = path_.c_str();
  expect_refused(CACHALOT_INVALID_ARGUMENT, "multiple");
  options_.max_tokens = 0;
  expect_refused(CACHALOT_INVALID_ARGUMENT, "tokens");
  options_.chunk_bytes = kMiB;
  expect_refused(CACHALOT_INVALID_ARGUMENT, "multiple");
  options_.limit_bytes = kMiB;
  expect_refused(CACHALOT_INVALID_ARGUMENT, "limit_bytes");
  options_.guaranteed_bytes = 2 * kMiB;
  expect_refused(CACHALOT_INVALID_ARGUMENT, "guaranteed_bytes");
  options_.budget = path_.c_str();  // of what size?
  expect_refused(CACHALOT_NOT_FOUND, path_.c_str());
  options_.struct_size = 1;
  expect_refused(CACHALOT_INVALID_ARGUMENT, "struct_size");
  options_.struct_size = 16;  // half of part_bytes
  expect_refused(
      CACHALOT_INVALID_ARGUMENT,
      "vmm options: struct_size 16 ends within the field of bytes 8 to 23, expected 112");
  options_.struct_size = sizeof options_ - 4;
  expect_refused(CACHALOT_INVALID_ARGUMENT, "vmm options: struct_size 108 ends within");
}

TEST_F(VmmCApiTest, ACallerThatKnowsLessOfAStructIsServed) {
  options_.struct_size = offsetof(cachalot_vmm_options, device);  // and it is not there: memfd
  open();
  cachalot_vmm_statistics less{};
  less.struct_size = offsetof(cachalot_vmm_statistics, idle_bytes);
  less.idle_bytes = 77;
  cachalot_vmm_range* const range = reserve(1);
  ASSERT_EQ(cachalot_vmm_get_statistics(vmm_, &less), CACHALOT_OK);
  EXPECT_EQ(less.used_bytes, 2 * kMiB);
  EXPECT_EQ(less.idle_bytes, 77u);
  cachalot_vmm_release(range);
}

TEST_F(VmmCApiTest, NumbersBeyondTheRangeAreRefusedOrDoNothing) {
  open();
  cachalot_vmm_range* const range = reserve(10);
  cachalot_vmm_range* const empty = reserve(0);
  for (const uint64_t tokens : {uint64_t{65}, uint64_t{1} << 43, uint64_t{1} << 63, UINT64_MAX}) {
    SCOPED_TRACE(tokens);
    EXPECT_EQ(cachalot_vmm_commit(range, tokens), CACHALOT_INVALID_ARGUMENT);
    EXPECT_EQ(cachalot_vmm_decommit(range, tokens), CACHALOT_OK);
    EXPECT_EQ(cachalot_vmm_alias(empty, range, tokens, nullptr), CACHALOT_INVALID_ARGUMENT);
    cachalot_vmm_range* none = range;
    EXPECT_EQ(cachalot_vmm_reserve(vmm_, 1, tokens, &none, nullptr), CACHALOT_INVALID_ARGUMENT);
    EXPECT_EQ(none, nullptr);
    EXPECT_EQ(statistics().used_bytes, 20 * kMiB);
  }
  EXPECT_EQ(cachalot_vmm_alias(range, range, 1, nullptr), CACHALOT_INVALID_ARGUMENT);
  EXPECT_EQ(cachalot_vmm_prepare(range, UINT64_MAX), CACHALOT_OK);
  EXPECT_EQ(cachalot_vmm_commit(range, 64), CACHALOT_OK);
}

TEST_F(VmmCApiTest, NoSpaceIsAnAnswer) {
  options_.limit_bytes = 20 * kMiB;
  open();
  cachalot_vmm_range* const range = reserve(10);
  EXPECT_EQ(cachalot_vmm_commit(range, 11), CACHALOT_NO_SPACE);
  cachalot_vmm_range* other = nullptr;
  EXPECT_EQ(cachalot_vmm_reserve(vmm_, 1, 1, &other, nullptr), CACHALOT_NO_SPACE);
  cachalot_vmm_release(range);
  EXPECT_NE(reserve(8), nullptr);
}

TEST_F(VmmCApiTest, ACopyOfTheCallersIsAskedForTails) {
  struct Calls {
    int count = 0;
    cachalot_code answer = CACHALOT_OK;
  } calls;
  options_.part_bytes[0] = options_.part_bytes[1] = 1 << 17;  // four tokens a chunk
  options_.copy_context = &calls;
  options_.copy = [](void* context, uint64_t, uint64_t, uint64_t bytes) {
    auto& seen = *static_cast<Calls*>(context);
    seen.count += bytes == 2 * 4 * (1 << 17) ? 1 : 100;
    return seen.answer;
  };
  open();
  cachalot_vmm_range* const from = reserve(10);
  cachalot_vmm_range* const to = reserve(0);
  calls.answer = CACHALOT_IO;
  EXPECT_EQ(cachalot_vmm_alias(to, from, 6, nullptr), CACHALOT_IO);
  calls.answer = CACHALOT_OK;
  EXPECT_EQ(cachalot_vmm_alias(to, from, 6, nullptr), CACHALOT_OK) << cachalot_last_message();
  EXPECT_EQ(calls.count, 2);
}

// Two of one budget: the borrower is told, and its idle ranges were released before.
TEST_F(VmmCApiTest, NotifiesWhatOthersAskFor) {
  options_.budget = path_.c_str();
  options_.limit_bytes = 20 * kMiB;
  options_.guaranteed_bytes = 6 * kMiB;
  open();
  int fd = -1;
  ASSERT_EQ(cachalot_vmm_notify(vmm_, &fd), CACHALOT_OK);
  cachalot_vmm_range* const running = reserve(8);
  cachalot_vmm_release(reserve(2));
  cachalot_vmm* other = nullptr;
  ASSERT_EQ(cachalot_vmm_open(&options_, &other), CACHALOT_OK) << cachalot_last_message();
  cachalot_vmm_range* asking = nullptr;
  EXPECT_EQ(cachalot_vmm_reserve(other, 3, 3, &asking, nullptr), CACHALOT_NO_SPACE);
  pollfd readable{.fd = fd, .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&readable, 1, -1), 1);
  uint64_t bytes = 0;
  ASSERT_EQ(read(fd, &bytes, sizeof bytes), static_cast<ssize_t>(sizeof bytes));
  EXPECT_EQ(bytes, 2 * kMiB);  // 6 are asked for, 4 were idle
  EXPECT_EQ(statistics().asked_bytes, 2 * kMiB);
  EXPECT_EQ(cachalot_vmm_decommit(running, 7), CACHALOT_OK);
  while (cachalot_vmm_reserve(other, 3, 3, &asking, nullptr) != CACHALOT_OK) {
  }
  EXPECT_EQ(cachalot_vmm_close(other), CACHALOT_OK);
}

}  // namespace
