// For tests: an instance whose ranks hand KV over, and what its memory must be.
#pragma once

#include <cachalot/transfer.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "testing/client/test_gpu.h"
#include "testing/transfer/second.h"
#include "testing/transfer/test_instance.h"
#include "transfer/handover/open.h"

namespace cachalot::transfer {

inline constexpr std::uint64_t kLong = 20 * kSecond;

// An instance whose ranks listen.
struct LiveInstance {
  LiveInstance(std::string given, const KvGeometry& model, std::uint32_t tp, std::uint32_t pp,
               std::uint64_t tokens, base::Rng& rng, const std::string& listen = "auto",
               std::string weights = "test", std::string registered_in = "",
               std::vector<std::uint32_t> machines = {}, client::GpuMachine* on = nullptr,
               std::string key_file = "")
      : name(std::move(given)),
        gpus(on),
        registry(std::move(registered_in)),
        cluster_key_file(std::move(key_file)),
        shape{tp, pp, {}, std::move(machines)},
        memory(any_ranks(model, tp, pp, 1, rng), tokens, rng) {
    for (std::size_t r = 0; r < memory.size(); ++r) shape.stage_layers.push_back(0);
    shape.stage_layers.resize(pp);
    for (std::size_t r = 0; r < memory.size(); ++r)
      shape.stage_layers[r / tp] = memory.box(r).layers.count();
    for (std::size_t r = 0; r < memory.size(); ++r) start(r, listen, weights);
  }
  void start(std::size_t r, const std::string& listen, const std::string& weights = "test") {
    TestCache& cache = memory.cache(r);
    TransferOptions options;
    options.instance = name;
    options.model = weights;
    options.geometry = cache.view().geometry();
    options.shape = shape;
    options.cache.layout = cache.layout().name;
    options.cache.page_tokens = cache.page_tokens();
    options.cache.pages = cache.view().pages();
    for (auto& tensor : cache.memory())
      options.cache.tensors.push_back({tensor.data(), tensor.size() * 8});
    options.listen = {listen};
    options.registry = registry;
    options.cluster_key_file = cluster_key_file;
    options.peer_timeout_ns = peer_timeout_ns;
    if (gpus != nullptr) {
      options.cache.cuda_device = 0;
      streams.push_back(gpus->make_stream());
      options.cache.cuda_stream = streams.back();
      for (const Buffer& tensor : options.cache.tensors)
        gpus->fake.adopt(tensor.data, tensor.bytes, 0);
    }
    Result<TransferRank> opened =
        gpus == nullptr ? TransferRank::open(options) : open(options, gpus->opener());
    if (!opened) ADD_FAILURE() << opened.error().message;
    if (r < ranks.size()) {
      ranks[r] = *std::move(opened);
    } else {
      ranks.push_back(*std::move(opened));
    }
  }
  KvReference reference(OfferId id, std::uint64_t tokens) const {
    KvReference reference{name, id, tokens, shape, {}, false};
    for (const TransferRank& rank : ranks) reference.addresses.push_back(rank.addresses());
    return reference;
  }
  std::span<const PageId> pages(std::size_t r, std::uint64_t tokens, std::uint64_t first = 0) {
    const std::uint64_t page_tokens = memory.cache(r).page_tokens();
    const auto all = memory.cache(r).pages().subspan(0, (tokens - 1) / page_tokens + 1);
    return all.subspan(first / page_tokens);
  }

  std::string name;
  client::GpuMachine*
      gpus;  // null: the caches are in this process's memory; else they are adopted by a fake GPU
  std::string registry, cluster_key_file;
  std::uint64_t peer_timeout_ns = 2 * kSecond;
  InstanceShape shape;
  TestInstance memory;
  std::vector<gpu::Stream> streams;  // of each rank's cache on a GPU, in the order of their starts
  std::vector<TransferRank> ranks;
};

// Ends of an offer on one rank. @return none within the time
inline std::optional<EndedOffer> ended(TransferRank& rank, std::uint64_t within_ns = kLong) {
  const std::uint64_t end_ns = base::SteadyClock::read() + within_ns;
  do {
    std::vector<EndedOffer> all = rank.ended_offers();
    if (!all.empty()) return std::move(all.front());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } while (base::SteadyClock::read() < end_ns);
  return std::nullopt;
}

inline KvGeometry small_model(Attention attention = Attention::kGrouped, std::uint32_t heads = 8,
                              std::uint32_t layers = 4) {
  base::Rng rng(3);
  return any_model(attention, heads, layers, rng);
}

// By rank and tensor.
using InstanceMemory = std::vector<std::vector<std::vector<std::uint64_t>>>;
inline InstanceMemory memory_of(LiveInstance& instance) {
  InstanceMemory all;
  for (std::size_t r = 0; r < instance.ranks.size(); ++r)
    all.push_back(instance.memory.cache(r).memory());
  return all;
}

// What the decode instance must have; everything else of its memory must be as before.
inline void expect_model_bytes(LiveInstance& decode, std::uint64_t first, std::uint64_t tokens,
                               const InstanceMemory& before) {
  for (std::size_t r = 0; r < decode.memory.size(); ++r) {
    const auto after = decode.memory.cache(r).memory();
    decode.memory.cache(r).memory() = before[r];
    decode.memory.fill(r, first, tokens - first);
    EXPECT_EQ(after, decode.memory.cache(r).memory()) << "rank " << r;
    decode.memory.cache(r).memory() = after;
  }
}

// Each rank offers its share of so many tokens, as the model fills them.
inline void offer_all(LiveInstance& prefill, OfferId id, std::uint64_t tokens,
                      OfferOptions options = {}) {
  prefill.memory.fill(0, tokens);
  for (std::size_t r = 0; r < prefill.ranks.size(); ++r) {
    options.id = id;
    options.pages = prefill.pages(r, tokens);
    options.tokens = tokens;
    if (options.deadline_ns == 0) options.deadline_ns = kLong;
    const Status offered = prefill.ranks[r].offer(options);
    ASSERT_TRUE(offered.ok()) << offered.error().message;
  }
}

// A whole hand-over, of the tokens from `first` on, between all ranks: the bytes are the model's, and each rank of
// `prefill` is told that its pages are free.
inline void hand_over(LiveInstance& prefill, LiveInstance& decode, std::uint64_t tokens,
                      std::uint64_t first) {
  const OfferId id = *random_offer_id();
  offer_all(prefill, id, tokens);
  const InstanceMemory before = memory_of(decode);
  std::vector<AskId> asks;
  for (std::size_t r = 0; r < decode.ranks.size(); ++r) {
    const Result<AskId> ask = decode.ranks[r].ask(
        prefill.reference(id, tokens),
        {.pages = decode.pages(r, tokens, first), .first_token = first, .deadline_ns = kLong});
    ASSERT_TRUE(ask.ok()) << ask.error().message;
    asks.push_back(*ask);
  }
  for (std::size_t r = 0; r < decode.ranks.size(); ++r) {
    const AskStatus status = *decode.ranks[r].wait(asks[r]);
    ASSERT_EQ(status.state, HandoverState::kDone) << "rank " << r << ": " << status.error.message;
    EXPECT_EQ(status.layers, decode.memory.box(r).layers.count());
    decode.ranks[r].release(asks[r]);
  }
  expect_model_bytes(decode, first, tokens, before);
  // Also the ranks whose bytes were not needed are free again.
  for (TransferRank& rank : prefill.ranks) {
    const auto end = ended(rank);
    ASSERT_TRUE(end.has_value());
    EXPECT_TRUE(end->status.ok()) << end->status.error().message;
    EXPECT_EQ(rank.statistics().open_offers, 0u);
  }
}

}  // namespace cachalot::transfer
