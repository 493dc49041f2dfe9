#include "node/metrics/storage_metrics.h"

namespace cachalot::node {
namespace {

using enum MetricType;

template <class Figures>
struct Figure {
  std::uint64_t Figures::*value;
  MetricFamily family;
};

constexpr MetricFamily kUp = {"cachalot_storage_up", kGauge, "",
                              "1 while the storage is in use, 0 during an outage."};

constexpr Figure<StorageFigures> kFigures[] = {
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
    {&StorageFigures::asked_blocks,
     {"cachalot_storage_asked_blocks", kCounter, "blocks",
      "Blocks that storage of several hosts was asked for, because they were not known here."}},
    {&StorageFigures::learned_blocks,
     {"cachalot_storage_learned_blocks", kCounter, "blocks", "Those of them that were there."}},
    {&StorageFigures::failed_reads,
     {"cachalot_storage_failed_reads", kCounter, "", "Reads of blocks that failed."}},
    {&StorageFigures::failed_writes,
     {"cachalot_storage_failed_writes", kCounter, "", "Writes of blocks that failed, each try."}},
    {&StorageFigures::outages,
     {"cachalot_storage_outages", kCounter, "", "How often the storage was taken out of use."}},
};

constexpr Figure<PeerFigures> kPeerFigures[] = {
    {&PeerFigures::peers,
     {"cachalot_peers", kGauge, "", "Hosts whose pools this one reads, connected now."}},
    {&PeerFigures::known_blocks,
     {"cachalot_peers_known_blocks", kGauge, "blocks",
      "Blocks that other hosts have, each counted once."}},
    {&PeerFigures::followers,
     {"cachalot_peers_followers", kGauge, "", "Hosts that this one tells what its pool has."}},
    {&PeerFigures::got_blocks,
     {"cachalot_peers_got_blocks", kCounter, "blocks", "Blocks read from other hosts."}},
    {&PeerFigures::got_bytes,
     {"cachalot_peers_got_bytes", kCounter, "bytes", "Bytes of these blocks."}},
    {&PeerFigures::absent_blocks,
     {"cachalot_peers_absent_blocks", kCounter, "blocks",
      "Blocks that a host had told of and had no more when it was asked."}},
    {&PeerFigures::failed_requests,
     {"cachalot_peers_failed_requests", kCounter, "",
      "Requests that a host refused, did not answer in time, or answered wrongly."}},
    {&PeerFigures::served_blocks,
     {"cachalot_peers_served_blocks", kCounter, "blocks", "Blocks that other hosts have read."}},
    {&PeerFigures::served_bytes,
     {"cachalot_peers_served_bytes", kCounter, "bytes", "Bytes of these blocks."}},
    {&PeerFigures::refused_requests,
     {"cachalot_peers_refused_requests", kCounter, "",
      "Requests of other hosts that this one has refused: it sends as much as it may."}},
    {&PeerFigures::told_changes,
     {"cachalot_peers_told_changes", kCounter, "",
      "Changes of this pool, each counted for each host that was told."}},
};

}  // namespace

void write_peer_metrics(Exposition& exposition, const PeerFigures& figures) {
  for (const auto& figure : kPeerFigures) exposition.single(figure.family, figures.*figure.value);
}

void write_storage_metrics(Exposition& exposition, const StorageFigures& figures) {
  exposition.single(kUp, figures.is_up);
  for (const auto& figure : kFigures) exposition.single(figure.family, figures.*figure.value);
}

}  // namespace cachalot::node
