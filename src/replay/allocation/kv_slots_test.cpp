#include "replay/allocation/kv_slots.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <unistd.h>
#include <fstream>

#include "base/rng.h"
#include "replay/allocation/kv_formula.h"
#include "replay/allocation/vtensor_memory.h"

namespace cachalot::replay {
namespace {

constexpr std::uint64_t kChunk = 64;

// A trace of Mooncake's format with blocks of 4 tokens: each line is input, output, ids.
class KvSlotsTest : public testing::Test {
 protected:
  void add(std::uint64_t input, std::uint64_t output, const std::string& ids, double ms = 0) {
    text_ += "{\"timestamp\": " + std::to_string(ms) +
             ", \"input_length\": " + std::to_string(input) +
             ", \"output_length\": " + std::to_string(output) + ", \"hash_ids\": [" + ids + "]}\n";
  }
  KvRequests read() {
    const std::string path = testing::TempDir() + "kv_slots." + std::to_string(getpid());
    std::ofstream(path) << text_;
    auto trace = trace::RequestTrace::open(path, {.block_tokens = 4});
    unlink(path.c_str());
    EXPECT_TRUE(trace);
    auto requests = KvRequests::read(*trace, true, 0);
    EXPECT_TRUE(requests) << requests.error().message;
    return *std::move(requests);
  }

  std::string text_;
};

struct Device {
  std::unique_ptr<device_memory::ModelBackend> backend =
      *device_memory::ModelBackend::open({.granularity_bytes = kChunk});
  std::unique_ptr<VTensorMemory> memory;
  std::optional<KvFormula> formula;
};

Device make_device(const vtensor::KvShape& shape, vtensor::KvLayout layout,
                   std::uint64_t block_tokens) {
  Device device;
  device.memory =
      *VTensorMemory::open(*device.backend, device.backend.get(),
                           {.vtensor = {.shape = shape,
                                        .layout = layout,
                                        .chunk_bytes = kChunk,
                                        .max_tokens = 100,
                                        .block_tokens = block_tokens,
                                        .copy = [](device_memory::Address, device_memory::Address,
                                                   std::uint64_t) { return Status(); },
                                        .idle_chunks = 0}});
  KvUnits units{.widths = {}, .unit_bytes = kChunk};
  for (const std::uint64_t bytes : shape.part_bytes) {
    units.widths.push_back({.token_bytes = bytes, .planes = shape.layers});
  }
  if (layout == vtensor::KvLayout::kFolded) units.widths = {{shape.token_bytes(), 1}};
  device.formula.emplace(
      KvFormulaOptions{.units = units, .ahead_tokens = 1, .block_tokens = block_tokens});
  return device;
}

TEST_F(KvSlotsTest, CountsBytesOfEachStep) {
  add(3, 2, "1");  // 32 bytes a token, two tokens a chunk
  add(1, 1, "2");
  const KvRequests requests = read();
  Device device = make_device({.layers = 1, .part_bytes = {32}}, vtensor::KvLayout::kFolded, 0);
  KvTrack track{.measured = device.memory.get(), .expected = &*device.formula};
  const auto run = run_kv(requests, {.slots = 1}, 100, {&track, 1});
  ASSERT_TRUE(run);
  EXPECT_EQ(run->requests, 2u);
  EXPECT_EQ(run->steps, 3u);
  EXPECT_EQ(run->peak_tokens, 5u);
  // After the steps: 4 tokens and one ahead; 5 tokens; 2 tokens.
  EXPECT_EQ(track.byte_steps, (3 + 3 + 1) * 64.0);
  EXPECT_EQ(track.peak_bytes, 3 * kChunk);
  EXPECT_EQ(track.wrong_steps, 0u);
}

TEST_F(KvSlotsTest, RequestsBeginWhenTheyArrive) {
  add(4, 2, "1", 0);
  add(4, 2, "2", 30);
  add(4, 2, "3", 5000);
  const KvRequests requests = read();
  Device device = make_device({.layers = 1, .part_bytes = {32}}, vtensor::KvLayout::kFolded, 0);
  KvTrack track{.measured = device.memory.get()};
  const auto run = run_kv(requests, {.slots = 0, .step_ms = 30}, 100, {&track, 1});
  ASSERT_TRUE(run);
  EXPECT_EQ(run->peak_running, 2u);
  EXPECT_EQ(run->steps, 5u);
}

TEST_F(KvSlotsTest, LeavesOutWhatIsTooLong) {
  add(4, 97, "1");
  add(4, 96, "1");
  Device device = make_device({.layers = 1, .part_bytes = {32}}, vtensor::KvLayout::kFolded, 0);
  KvTrack track{.measured = device.memory.get()};
  const auto run = run_kv(read(), {.slots = 4}, 100, {&track, 1});
  ASSERT_TRUE(run);
  EXPECT_EQ(run->left_out, 1u);
  EXPECT_EQ(run->requests, 1u);
}

// Two prompts of 8 tokens with the same first block, one after the other: chunks of two tokens.
TEST_F(KvSlotsTest, SharingSavesTheFullChunksOfEqualPrefixes) {
  add(8, 1, "1,2");
  add(8, 1, "1,3");
  Device device = make_device({.layers = 3, .part_bytes = {32}}, vtensor::KvLayout::kPerLayer, 4);
  KvTrack track{.measured = device.memory.get(), .expected = &*device.formula};
  const auto run = run_kv(read(), {.slots = 1}, 100, {&track, 1});
  ASSERT_TRUE(run);
  EXPECT_EQ(track.wrong_steps, 0u);
  EXPECT_EQ(device.memory->stats().matched_tokens, 4u);
  EXPECT_EQ(device.memory->stats().borrowed_chunks_total, 3 * 2u);
  EXPECT_EQ(device.formula->shared_units(), 3 * 2u);
  // Both prompts recorded, 6 blocks' worth of tokens; the running one has one chunk a layer more.
  EXPECT_EQ(track.peak_bytes, 3 * (4 + 2 + 1) * kChunk);
}

// The formula knows nothing of chunks that move, the memory nothing of the formula.
RC_GTEST_PROP(KvSlots, MeasureWhatTheFormulaSays, (std::uint64_t seed)) {
  base::Rng rng(seed);
  const vtensor::KvShape shape = {.layers = 1 + rng.below(4), .part_bytes = {1 + rng.below(90)}};
  const auto layout = rng.chance(0.5) ? vtensor::KvLayout::kPerLayer : vtensor::KvLayout::kFolded;
  const bool shares = rng.chance(0.7);
  Device device = make_device(shape, layout, shares ? 4 : 0);
  std::string text;
  std::uint64_t longest = 0;
  for (int i = 0; i < 30; ++i) {
    const std::uint64_t input = 1 + rng.below(40), output = rng.below(12);
    std::string ids;
    std::uint64_t id = 0;
    for (std::uint64_t block = 0; block < (input + 3) / 4; ++block) {
      id = id * 3 + 1 + rng.below(2);  // a tree with two branches
      ids += (ids.empty() ? "" : ",") + std::to_string(id);
    }
    text += "{\"timestamp\": " + std::to_string(i * 40) +
            ", \"input_length\": " + std::to_string(input) +
            ", \"output_length\": " + std::to_string(output) + ", \"hash_ids\": [" + ids + "]}\n";
    longest = std::max(longest, input + output);
  }
  const std::string path = testing::TempDir() + "kv_slots_prop." + std::to_string(getpid());
  std::ofstream(path) << text;
  auto trace = trace::RequestTrace::open(path, {.block_tokens = 4});
  unlink(path.c_str());
  const auto requests = KvRequests::read(*trace, true, 0);
  KvTrack track{.measured = device.memory.get(), .expected = &*device.formula};
  const auto run = run_kv(*requests, {.slots = rng.below(5)}, 100, {&track, 1});
  RC_ASSERT(run.ok());
  RC_ASSERT(run->requests == 30u);
  RC_ASSERT(track.wrong_steps == 0u);
  RC_ASSERT(track.peak_bytes == track.expected_peak_bytes);
  RC_ASSERT(device.memory->stats().borrowed_chunks_total == device.formula->shared_units());
  RC_ASSERT(device.memory->stats().matched_tokens == device.formula->shared_tokens());
  RC_ASSERT(device.memory->stats().waits == 0u);
}

}  // namespace
}  // namespace cachalot::replay
