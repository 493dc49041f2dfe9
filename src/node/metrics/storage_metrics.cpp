#include "node/metrics/storage_metrics.h"

namespace cachalot::node {
namespace {

using enum MetricType;

struct Figure {
  std::uint64_t StorageFigures::*value;
  MetricFamily family;
};

constexpr MetricFamily kUp = {"cachalot_storage_up", kGauge, "",
                              "1 while the storage is in use, 0 during an outage."};

constexpr Figure kFigures[] = {
    {&StorageFigures::objects,
     {"cachalot_storage_objects", kGauge, "", "Blocks that the storage has."}},
    {&StorageFigures::bytes,
     {"cachalot_storage_stored_bytes", kGauge, "bytes", "Bytes of these blocks."}},
    {&StorageFigures::queued_blocks,
     {"cachalot_storage_queued_blocks", kGauge, "blocks",
      "Blocks of the pool that wait to be written."}},
    {&StorageFigures::queued_fetches,
     {"cachalot_storage_queued_fetches", kGauge, "",
      "Requests for blocks that are queued or in work."}},
    {&StorageFigures::written_blocks,
     {"cachalot_storage_written_blocks", kCounter, "blocks",
      "Writes of blocks; a block that is written again counts again."}},
    {&StorageFigures::written_bytes,
     {"cachalot_storage_written_bytes", kCounter, "bytes", "Bytes of these writes."}},
    {&StorageFigures::fetched_blocks,
     {"cachalot_storage_fetched_blocks", kCounter, "blocks",
      "Blocks that came back into the pool."}},
    {&StorageFigures::fetched_bytes,
     {"cachalot_storage_fetched_bytes", kCounter, "bytes", "Bytes of these blocks."}},
    {&StorageFigures::read_bytes,
     {"cachalot_storage_read_bytes", kCounter, "bytes",
      "Bytes read from storage; more than what came back where an engine was faster."}},
    {&StorageFigures::unused_blocks,
     {"cachalot_storage_unused_blocks", kCounter, "blocks",
      "Blocks that came back and were evicted before a use was reported; clients report at their "
      "next "
      "commit."}},
    {&StorageFigures::evicted_blocks,
     {"cachalot_storage_evicted_blocks", kCounter, "blocks",
      "Blocks that the storage's limit removed."}},
    {&StorageFigures::lost_blocks,
     {"cachalot_storage_lost_blocks", kCounter, "blocks",
      "Blocks that the pool evicted before they were written."}},
    {&StorageFigures::skipped_blocks,
     {"cachalot_storage_skipped_blocks", kCounter, "blocks",
      "Blocks that were not written because the queue was full."}},
    {&StorageFigures::over_budget_blocks,
     {"cachalot_storage_over_budget_blocks", kCounter, "blocks",
      "Blocks that were not written because the write budget was spent."}},
    {&StorageFigures::missing_blocks,
     {"cachalot_storage_missing_blocks", kCounter, "blocks",
      "Blocks that were stored and are there no more."}},
    {&StorageFigures::damaged_blocks,
     {"cachalot_storage_damaged_blocks", kCounter, "blocks",
      "Blocks with other bytes than were stored."}},
    {&StorageFigures::failed_reads,
     {"cachalot_storage_failed_reads", kCounter, "", "Reads of blocks that failed."}},
    {&StorageFigures::failed_writes,
     {"cachalot_storage_failed_writes", kCounter, "", "Writes of blocks that failed, each try."}},
    {&StorageFigures::outages,
     {"cachalot_storage_outages", kCounter, "", "How often the storage was taken out of use."}},
};

}  // namespace

void write_storage_metrics(Exposition& exposition, const StorageFigures& figures) {
  exposition.single(kUp, figures.is_up);
  for (const Figure& figure : kFigures) exposition.single(figure.family, figures.*figure.value);
}

}  // namespace cachalot::node
