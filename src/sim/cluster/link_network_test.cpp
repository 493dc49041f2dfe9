#include "sim/cluster/link_network.h"

#include <gtest/gtest.h>

#include <vector>

namespace cachalot::sim {
namespace {

// (time, tag) of each end, in order.
std::vector<std::pair<double, std::uint64_t>> run(LinkNetwork& network) {
  std::vector<std::pair<double, std::uint64_t>> ends;
  while (network.next_s() < 1e300) {
    const double now_s = network.next_s();
    while (const auto tag = network.pop(now_s)) ends.emplace_back(now_s, *tag);
  }
  return ends;
}

TEST(LinkNetwork, ATransferAloneTakesBytesOverBandwidthAndTheLatencyOnce) {
  LinkNetwork network;
  const LinkId link = network.add_link(100);
  network.start(1, {.links = {link}, .link_count = 1, .bytes = 200, .latency_s = 0.5, .tag = 7});
  const auto ends = run(network);
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_DOUBLE_EQ(ends[0].first, 3.5);
  EXPECT_EQ(ends[0].second, 7u);
  EXPECT_DOUBLE_EQ(network.bytes(link), 200);
}

TEST(LinkNetwork, TransfersShareALinkAndTheRestIsFreeAgainAfterTheFirstEnds) {
  LinkNetwork network;
  const LinkId link = network.add_link(100);
  network.start(0, {.links = {link}, .link_count = 1, .bytes = 100, .tag = 1});
  network.start(0, {.links = {link}, .link_count = 1, .bytes = 300, .tag = 2});
  // 50 each: the first ends at 2 s; the second has 200 left, which take 2 s.
  const auto ends = run(network);
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_DOUBLE_EQ(ends[0].first, 2);
  EXPECT_DOUBLE_EQ(ends[1].first, 4);
}

TEST(LinkNetwork, AMessageTakesItsLatencyWhateverIsSent) {
  LinkNetwork network;
  const LinkId link = network.add_link(100);
  network.start(1, {.links = {link}, .link_count = 1, .bytes = 200, .tag = 7});
  network.start(1, {.latency_s = 0.5, .tag = 8});
  const TransferId other = network.start(1, {.latency_s = 0.75, .tag = 9});
  EXPECT_DOUBLE_EQ(network.cancel(1, other), 0);
  EXPECT_EQ(run(network), (std::vector<std::pair<double, std::uint64_t>>{{1.5, 8}, {3, 7}}));
}

TEST(LinkNetwork, RatesAreMaxMinFair) {
  // a: link 0 (10) and 1 (100); b: link 0; c: link 1. a and b get 5 each, c what a leaves: 95.
  LinkNetwork network;
  const LinkId narrow = network.add_link(10), wide = network.add_link(100);
  const TransferId a = network.start(0, {.links = {narrow, wide}, .link_count = 2, .bytes = 1e6});
  const TransferId b = network.start(0, {.links = {narrow}, .link_count = 1, .bytes = 1e6});
  const TransferId c = network.start(0, {.links = {wide}, .link_count = 1, .bytes = 1e6});
  EXPECT_DOUBLE_EQ(network.rate(a), 5);
  EXPECT_DOUBLE_EQ(network.rate(b), 5);
  EXPECT_DOUBLE_EQ(network.rate(c), 95);
  // One that cannot use its share gives the rest to the others: 2 of 10, so a and b share 8.
  network.start(0, {.links = {narrow}, .link_count = 1, .bytes = 1e6, .most_bytes_per_s = 2});
  EXPECT_DOUBLE_EQ(network.rate(a), 4);
  EXPECT_DOUBLE_EQ(network.rate(c), 96);
}

TEST(LinkNetwork, ACancelledTransferCountsItsBytesSoFarAndIsNotReported) {
  LinkNetwork network;
  const LinkId link = network.add_link(100);
  const TransferId id = network.start(0, {.links = {link}, .link_count = 1, .bytes = 1000});
  network.cancel(3, id);
  EXPECT_TRUE(run(network).empty());
  EXPECT_DOUBLE_EQ(network.bytes(link), 300);
  EXPECT_EQ(network.in_flight(link), 0u);
}

}  // namespace
}  // namespace cachalot::sim
