#include "transfer/pair/geometry_pair.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "testing/transfer/test_instance.h"

namespace cachalot::transfer {
namespace {

struct Case {
  std::vector<Rank> sources, destinations;
  PairOptions options;
};

Case any_case(base::Rng& rng) {
  const Attention attention = rng.chance(0.3) ? Attention::kLatent : Attention::kGrouped;
  const std::uint32_t layers = static_cast<std::uint32_t>(2 + rng.below(6));
  const KvGeometry model = any_model(attention, 1u << rng.below(4), layers, rng);
  const auto any_instance = [&] {
    std::vector<Rank> ranks =
        any_ranks(model, 1u << rng.below(4), static_cast<std::uint32_t>(1 + rng.below(2)),
                  static_cast<std::uint32_t>(1 + rng.below(3)), rng);
    // Stages and ranks may come in any order.
    for (std::size_t i = ranks.size(); i > 1; --i) std::swap(ranks[i - 1], ranks[rng.below(i)]);
    return ranks;
  };
  return {any_instance(), any_instance(), {rng.chance(0.5), rng.below(20)}};
}

// How often each (destination, layer, head) is written.
std::map<std::vector<std::uint32_t>, int> written(const Case& of, const PairPlan& plan) {
  std::map<std::vector<std::uint32_t>, int> count;
  for (const auto fetches : {plan.fetches(), plan.copies()}) {
    for (const Fetch& fetch : fetches) {
      const Rank& rank = of.destinations[fetch.destination];
      const RankBox box = *box_of(rank);
      RC_ASSERT(fetch.token_bytes ==
                std::uint64_t{fetch.layers.count()} * fetch.heads.count() *
                    (rank.geometry.content_bytes(0) + rank.geometry.content_bytes(1)));
      for (std::uint32_t l = 0; l < fetch.layers.count(); ++l) {
        for (std::uint32_t h = 0; h < fetch.heads.count(); ++h) {
          // The same cell in all three numberings.
          RC_ASSERT(fetch.layers.first + l ==
                    box.layers.first + fetch.destination_layers.first + l);
          RC_ASSERT(fetch.heads.first + h == box.heads.first + fetch.destination_heads.first + h);
          ++count[{fetch.destination, fetch.layers.first + l, fetch.heads.first + h}];
        }
      }
    }
  }
  return count;
}

RC_GTEST_PROP(GeometryPair, EveryByteOfADestinationIsWrittenOnce, ()) {
  base::Rng rng(any_seed());
  const Case of = any_case(rng);
  const auto plan = plan_pair(of.sources, of.destinations, of.options);
  RC_ASSERT(plan.ok());
  auto count = written(of, *plan);
  for (std::uint32_t rank = 0; rank < of.destinations.size(); ++rank) {
    const RankBox box = *box_of(of.destinations[rank]);
    for (std::uint32_t layer = box.layers.first; layer < box.layers.last; ++layer) {
      for (std::uint32_t head = box.heads.first; head < box.heads.last; ++head) {
        RC_ASSERT((count[{rank, layer, head}] == 1));
        count.erase({rank, layer, head});
      }
    }
  }
  RC_ASSERT(count.empty());
  for (const Fetch& fetch : plan->fetches()) {
    const RankBox box = *box_of(of.sources[fetch.source]);
    RC_ASSERT(fetch.layers.first == box.layers.first + fetch.source_layers.first);
    RC_ASSERT(fetch.layers.last == box.layers.first + fetch.source_layers.last);
    RC_ASSERT(fetch.heads.first == box.heads.first + fetch.source_heads.first);
    RC_ASSERT(fetch.heads.last == box.heads.first + fetch.source_heads.last);
    RC_ASSERT(fetch.layers.last <= box.layers.last && fetch.heads.last <= box.heads.last);
  }
}

RC_GTEST_PROP(GeometryPair, ExpectedTransfersAddUpToTheFetches, ()) {
  base::Rng rng(any_seed());
  const Case of = any_case(rng);
  const auto plan = plan_pair(of.sources, of.destinations, of.options);
  RC_ASSERT(plan.ok());
  std::uint64_t expected = 0, fetched = 0, bytes_sent = 0, bytes_fetched = 0;
  for (std::uint32_t rank = 0; rank < of.sources.size(); ++rank) {
    expected += plan->expected_transfers(rank);
    bytes_sent += plan->token_bytes_from(rank);
  }
  for (std::uint32_t rank = 0; rank < of.destinations.size(); ++rank) {
    fetched += plan->fetches_of(rank).size();
    for (const Fetch& fetch : plan->fetches_of(rank)) {
      RC_ASSERT(fetch.destination == rank);
      bytes_fetched += fetch.token_bytes;
    }
  }
  RC_ASSERT(expected == plan->fetches().size());
  RC_ASSERT(fetched == plan->fetches().size());
  RC_ASSERT(bytes_sent == bytes_fetched);
}

RC_GTEST_PROP(GeometryPair, EqualSourcesServeEquallyMuch, ()) {
  base::Rng rng(any_seed());
  const Case of = any_case(rng);
  const auto plan = plan_pair(of.sources, of.destinations, of.options);
  RC_ASSERT(plan.ok());
  std::uint64_t largest = 0;
  for (const Fetch& fetch : plan->fetches()) largest = std::max(largest, fetch.token_bytes);
  for (std::uint32_t a = 0; a < of.sources.size(); ++a) {
    for (std::uint32_t b = 0; b < of.sources.size(); ++b) {
      const RankBox x = *box_of(of.sources[a]), y = *box_of(of.sources[b]);
      if (x != y) continue;
      RC_ASSERT(plan->token_bytes_from(a) <= plan->token_bytes_from(b) + largest);
    }
  }
}

RC_GTEST_PROP(GeometryPair, OnceAMachineMeansOneFetchOfEachByteAMachine, ()) {
  base::Rng rng(any_seed());
  Case of = any_case(rng);
  of.options.once_per_machine = true;
  const auto plan = plan_pair(of.sources, of.destinations, of.options);
  RC_ASSERT(plan.ok());
  std::map<std::vector<std::uint64_t>, int> fetched;  // machine, layer, head
  for (const Fetch& fetch : plan->fetches()) {
    for (std::uint32_t layer = fetch.layers.first; layer < fetch.layers.last; ++layer) {
      for (std::uint32_t head = fetch.heads.first; head < fetch.heads.last; ++head) {
        const std::uint64_t machine = of.destinations[fetch.destination].machine;
        RC_ASSERT((++fetched[{machine, layer, head}] == 1));
      }
    }
  }
  for (const Fetch& copy : plan->copies()) {
    RC_ASSERT(copy.source != copy.destination);
    RC_ASSERT(of.destinations[copy.source].machine == of.destinations[copy.destination].machine);
    RC_ASSERT(!plan->fetches_of(copy.source).empty());
    RC_ASSERT(plan->fetches_of(copy.destination).empty());
    RC_ASSERT(plan->copies_of(copy.destination).size() == 1);
  }
}

RC_GTEST_PROP(GeometryPair, InTheLongRunAllEqualSourcesServeTheSame, ()) {
  base::Rng rng(any_seed());
  const Case of = any_case(rng);
  std::vector<std::uint64_t> bytes(of.sources.size());
  for (std::uint64_t turn = 0; turn < 24; ++turn) {  // a multiple of any number of replicas
    const auto plan = plan_pair(of.sources, of.destinations, {of.options.once_per_machine, turn});
    RC_ASSERT(plan.ok());
    for (std::uint32_t rank = 0; rank < bytes.size(); ++rank)
      bytes[rank] += plan->token_bytes_from(rank);
  }
  for (std::uint32_t a = 0; a < bytes.size(); ++a) {
    for (std::uint32_t b = 0; b < bytes.size(); ++b) {
      if (*box_of(of.sources[a]) == *box_of(of.sources[b])) RC_ASSERT(bytes[a] == bytes[b]);
    }
  }
}

KvGeometry latent_model() {
  KvGeometry g;
  g.layers = 61;
  g.attention = Attention::kLatent;
  g.kv_lora_rank = 512;
  g.qk_rope_head_dim = 64;
  g.block_tokens = 16;
  return g;
}

KvGeometry grouped_model(std::uint32_t heads) {
  KvGeometry g;
  g.layers = 64;
  g.kv_heads = heads;
  g.head_dim = 128;
  g.block_tokens = 16;
  return g;
}

std::vector<Rank> tp(const KvGeometry& model, std::uint32_t size) {
  base::Rng rng(1);
  return any_ranks(model, size, 1, 1, rng);
}

std::vector<std::uint32_t> counts(const std::vector<Rank>& sources,
                                  const std::vector<Rank>& destinations) {
  const auto plan = plan_pair(sources, destinations);
  if (!plan) {
    ADD_FAILURE() << plan.error().message;
    return {};
  }
  std::vector<std::uint32_t> counts;
  for (std::uint32_t rank = 0; rank < sources.size(); ++rank)
    counts.push_back(plan->expected_transfers(rank));
  return counts;
}

using Counts = std::vector<std::uint32_t>;

TEST(GeometryPair, FourSourcesAndTwoDestinationsOfALatentAreTwoTransfers) {
  // Counted from the world size, sources would wait for four.
  EXPECT_EQ(counts(tp(latent_model(), 4), tp(latent_model(), 2)), (Counts{1, 1, 0, 0}));
}

TEST(GeometryPair, FourDestinationsTakeALatentFromTwoSourcesInPairs) {
  EXPECT_EQ(counts(tp(latent_model(), 2), tp(latent_model(), 4)), (Counts{2, 2}));
}

TEST(GeometryPair, HeadsSplitAndMerge) {
  EXPECT_EQ(counts(tp(grouped_model(8), 2), tp(grouped_model(8), 8)), (Counts{4, 4}));
  EXPECT_EQ(counts(tp(grouped_model(8), 4), tp(grouped_model(8), 1)), (Counts{1, 1, 1, 1}));
  // Two heads on eight ranks: four of them have the same.
  EXPECT_EQ(counts(tp(grouped_model(2), 8), tp(grouped_model(2), 2)),
            (Counts{1, 0, 0, 0, 1, 0, 0, 0}));
  EXPECT_EQ(counts(tp(grouped_model(2), 8), tp(grouped_model(2), 1)),
            (Counts{1, 0, 0, 0, 1, 0, 0, 0}));
  EXPECT_EQ(counts(tp(grouped_model(2), 1), tp(grouped_model(2), 8)), (Counts{8}));
}

TEST(GeometryPair, OnceAMachineALatentOfEightRanksOnTwoMachinesIsTwoTransfers) {
  const std::vector<Rank> sources = tp(latent_model(), 1);
  std::vector<Rank> destinations = tp(latent_model(), 8);
  for (std::uint32_t rank = 0; rank < 8; ++rank) destinations[rank].machine = rank / 4;
  const auto plan = plan_pair(sources, destinations, {.once_per_machine = true, .turn = 5});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->expected_transfers(0), 2u);
  ASSERT_EQ(plan->fetches().size(), 2u);
  EXPECT_EQ(plan->fetches()[0].destination, 1u);
  EXPECT_EQ(plan->fetches()[1].destination, 5u);
  EXPECT_EQ(plan->copies().size(), 6u);
  EXPECT_EQ(plan->copies_of(7)[0].source, 5u);
  EXPECT_EQ(plan->copies_of(0)[0].source, 1u);
  EXPECT_EQ(plan->copies_of(1).size(), 0u);
}

TEST(GeometryPair, StagesMayHaveUnlikeNumbersOfLayers) {
  std::vector<Rank> sources(2, Rank{latent_model(), {}, 0});
  sources[0].geometry.layers = 31;
  sources[0].layers = {0, 31};
  sources[1].geometry.layers = 30;
  sources[1].layers = {31, 61};
  const auto plan = plan_pair(sources, tp(latent_model(), 1));
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  ASSERT_EQ(plan->fetches().size(), 2u);
  EXPECT_EQ(plan->fetches()[1].source, 1u);
  EXPECT_EQ(plan->fetches()[1].source_layers, (Range{0, 30}));
  EXPECT_EQ(plan->fetches()[1].destination_layers, (Range{31, 61}));
  EXPECT_EQ(plan->fetches()[1].token_bytes, 30u * 576 * 2);
}

std::string refusal(const std::vector<Rank>& sources, const std::vector<Rank>& destinations) {
  const auto plan = plan_pair(sources, destinations);
  return plan.ok() ? std::string("not refused") : std::string(plan.error().message);
}

TEST(GeometryPair, UnlikeModelsAreRefusedWithBothValues) {
  const std::vector<Rank> ours = tp(grouped_model(8), 2);
  const auto refused = [&](auto change) {
    KvGeometry other = grouped_model(8);
    change(other);
    return refusal(ours, tp(other, 4));
  };
  const std::string where = " in source rank 0 and ";
  EXPECT_EQ(refused([](KvGeometry& g) { g.kv_heads = 4; }),
            "geometry pair: the number of KV heads is 8 in source rank 0 and 4 in destination rank "
            "0, expected one model");
  EXPECT_NE(refused([](KvGeometry& g) { g.head_dim = 64; }).find("head_dim is 128" + where + "64"),
            std::string::npos);
  EXPECT_NE(refused([](KvGeometry& g) {
              g.layers = 32;
            }).find("the number of layers is 64" + where + "32"),
            std::string::npos);
  EXPECT_NE(
      refused([](KvGeometry& g) { g.dtype = DType::kF8; }).find("dtype is bf16" + where + "f8"),
      std::string::npos);
  EXPECT_NE(refusal(ours, tp(latent_model(), 1)).find("attention is grouped" + where + "latent"),
            std::string::npos);
  KvGeometry rope = latent_model();
  rope.qk_rope_head_dim = 32;
  EXPECT_NE(
      refusal(tp(latent_model(), 2), tp(rope, 2)).find("qk_rope_head_dim is 64" + where + "32"),
      std::string::npos);
  KvGeometry lora = latent_model();
  lora.kv_lora_rank = 256;
  EXPECT_NE(refusal(tp(latent_model(), 2), tp(lora, 2)).find("kv_lora_rank is 512" + where + "256"),
            std::string::npos);
  std::vector<Rank> mixed = tp(grouped_model(8), 2);
  mixed[1].geometry.head_dim = 64;
  EXPECT_NE(refusal(mixed, ours).find("head_dim is 128 in source rank 0 and 64 in source rank 1"),
            std::string::npos);
}

TEST(GeometryPair, RanksThatDoNotMakeAModelAreRefused) {
  const std::vector<Rank> all = tp(grouped_model(8), 4);
  std::vector<Rank> missing = all;
  missing.pop_back();
  EXPECT_NE(refusal(missing, all).find("destination rank 3 has layers [0, 64) and heads [6, 8)"),
            std::string::npos);
  EXPECT_NE(refusal({}, all).find("0 source ranks"), std::string::npos);
  EXPECT_NE(refusal(all, {}).find("0 destination ranks"), std::string::npos);
  std::vector<Rank> overlapping = all;
  overlapping[1].layers = {1, 65};
  overlapping[1].geometry.tp_rank = 0;
  EXPECT_NE(refusal(overlapping, all).find("expected the same ones or others"), std::string::npos);
  std::vector<Rank> other_count = all;
  other_count[2].layers = {0, 63};
  EXPECT_NE(refusal(other_count, all).find("layers [0, 63) of a rank, expected the 64"),
            std::string::npos);
  other_count[2].layers = {9, 5};
  EXPECT_NE(refusal(other_count, all).find("layers [9, 5) of a rank"), std::string::npos);
  std::vector<Rank> no_rank = all;
  no_rank[1].geometry.tp_rank = 4;
  EXPECT_NE(refusal(no_rank, all).find("tp_rank is 4"), std::string::npos);
  std::vector<Rank> huge = all;
  huge[0].geometry.tp_size = 1u << 31;
  EXPECT_NE(refusal(huge, all).find("expected below 2^32"), std::string::npos);
  huge = all;
  huge[0].geometry.pp_size = 1u << 31;
  huge[0].geometry.pp_rank = (1u << 31) - 1;
  EXPECT_NE(refusal(huge, all).find("expected below 2^32"), std::string::npos);
}

}  // namespace
}  // namespace cachalot::transfer
