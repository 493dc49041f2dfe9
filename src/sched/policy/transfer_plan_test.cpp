#include "sched/policy/transfer_plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "sched/policy/test_timing.h"

namespace cachalot::sched {
namespace {

TEST(TransferPlan, ATransferTakesLatencyAndItsShareOfTheLink) {
  const LinkSpeed link{.latency_s = 0.5, .bytes_per_s = 100};
  EXPECT_DOUBLE_EQ(transfer_seconds(link, 200, 0), 2.5);  // 0.5 + 200 / 100
  EXPECT_DOUBLE_EQ(transfer_seconds(link, 200, 3), 8.5);  // 0.5 + 200 / 25
  EXPECT_DOUBLE_EQ(transfer_seconds(link, 0, 3), 0);
  // Small operations reach 10 bytes/s at most, however free the link is: 0.5 + 200 / 10.
  EXPECT_DOUBLE_EQ(transfer_seconds({0.5, 100, 10}, 200, 0), 20.5);
}

TEST(TransferPlan, ARequestThatIsCachedWholeComputesItsLastToken) {
  EXPECT_DOUBLE_EQ(prefill_seconds(TestTiming(), 1000, 1000), 0.001);
  EXPECT_DOUBLE_EQ(prefill_seconds(TestTiming(), 1000, 400), 0.6);
  EXPECT_DOUBLE_EQ(prefill_seconds(TestTiming(), 0, 0), 0);
}

TEST(TransferPlan, ThePoolIsReadWhereThatTakesLessThanComputing) {
  const TestTiming timing;
  const std::vector<PrefillView> views = {{.hit_tokens = 200, .held_tokens = 200}};
  const RequestView request{.input_tokens = 1000, .pool_hit_tokens = 600};
  ClusterView cluster{.prefill = views,
                      .timing = &timing,
                      .kv_bytes_per_token = 1,
                      .link = {},
                      .pool = {.latency_s = 0, .bytes_per_s = 4000}};
  // 400 tokens take 400 / 4000 = 0.1 s by the link and 0.4 s to compute.
  const KvPlan fast = plan_with_pool(request, cluster, 0);
  EXPECT_EQ(fast.source, KvSource::kPool);
  EXPECT_EQ(fast.transfer_tokens, 400u);
  EXPECT_EQ(fast.hit_tokens, 600u);
  EXPECT_DOUBLE_EQ(fast.cost_s(), 0.1 + 0.4);
  // 400 / 500 = 0.8 s by the link: computing is faster.
  cluster.pool.bytes_per_s = 500;
  const KvPlan slow = plan_with_pool(request, cluster, 0);
  EXPECT_EQ(slow.source, KvSource::kOwn);
  EXPECT_EQ(slow.transfer_tokens, 0u);
  EXPECT_DOUBLE_EQ(slow.cost_s(), 0.8);
}

TEST(TransferPlan, TheStorageBringsMoreWhereThatTakesLessThanComputing) {
  const TestTiming timing;
  const std::vector<PrefillView> views = {{.hit_tokens = 100, .held_tokens = 100}};
  const RequestView request{
      .input_tokens = 1000, .pool_hit_tokens = 600, .storage_hit_tokens = 800};
  ClusterView cluster{.prefill = views,
                      .timing = &timing,
                      .kv_bytes_per_token = 1,
                      .link = {},
                      .pool = {.latency_s = 0, .bytes_per_s = 7000},
                      .storage = {.latency_s = 0.05, .bytes_per_s = 4000},
                      .storage_reads = 1};
  // 200 tokens to the pool: 0.05 + 200 / 2000 = 0.15 s, with the other reader; 700 to the instance: 0.1 s; 200 to
  // compute: 0.2 s. Without the storage 500 / 7000 + 0.4 s, which is more.
  const KvPlan plan = plan_with_pool(request, cluster, 0);
  EXPECT_EQ(plan.source, KvSource::kPool);
  EXPECT_EQ(plan.fetch_tokens, 200u);
  EXPECT_EQ(plan.transfer_tokens, 700u);
  EXPECT_DOUBLE_EQ(plan.cost_s(), 0.15 + 0.1 + 0.2);
  // With another reader it takes 0.2 s: then what the pool has is enough.
  cluster.storage_reads = 2;
  const KvPlan from_pool = plan_with_pool(request, cluster, 0);
  EXPECT_EQ(from_pool.fetch_tokens, 0u);
  EXPECT_EQ(from_pool.hit_tokens, 600u);
}

}  // namespace
}  // namespace cachalot::sched
