"""The connector's counters in vLLM's log and in its Prometheus endpoint, as vllm:cachalot_*."""

from dataclasses import dataclass
from typing import Any, Dict, List

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

#: All of them count up. Seconds are sums over calls; calls of several threads overlap.
COUNTERS = {
    "prompts": "Prompts that asked the pool, or other engines, for blocks; each once",
    "prompt_blocks": "Blocks that these prompts asked for: whole ones that the engine did not have itself",
    "used_pool_blocks": "Blocks of them that were used, and that the pool had when the prompt came",
    "used_peer_blocks": "Blocks of them that were used, from another engine by a transfer",
    "used_storage_blocks": "Blocks of them that were used, and that storage brought into the pool for the prompt",
    "lookups": "Lookups in the pool; a prompt that waits is looked up more than once",
    "lookup_seconds": "Time of these lookups, in the scheduler",
    "storage_waits": "Prompts that waited for blocks from the storage behind the pool",
    "loads": "Loads from the pool",
    "loaded_blocks": "Blocks that were loaded, of each group and rank",
    "loaded_bytes": "Bytes of these blocks",
    "load_seconds": "Time from the start of a load to its result",
    "stores": "Stores into the pool",
    "stored_blocks": "Blocks that were written by this engine, of each group and rank",
    "stored_bytes": "Bytes of these blocks",
    "store_seconds": "Time of these stores, in the background",
    "failed_loads": "Loads of which not all blocks were right; the rest was computed",
    "failed_stores": "Stores of which not all blocks are in the pool",
    "transfers": "Prompts whose KV was taken over from another engine, or should have been",
    "transferred_blocks": "Blocks that came so, on each rank",
    "transferred_bytes": "Bytes of these blocks",
    "sent_bytes": "Bytes that workers gave to those of other engines, or to others of this engine on their machine",
    "transfer_seconds": "Time from the start of a transfer to its result",
    "failed_transfers": "Transfers that failed: their blocks were loaded from the pool, or computed",
    "gpu_registrations": "Registrations of the pool with a GPU: one for each attachment of a worker with its KV cache there",
    "gpu_registration_seconds": "Time of these registrations: the first one page-locks the pool",
    "gpu_threads_bytes": "Bytes that a kernel's loads and stores copied from and to the GPU's KV cache",
    "gpu_bulk_bytes": "Bytes that a kernel's bulk transfers copied",
    "gpu_batch_bytes": "Bytes that the driver copied in batches",
    "gpu_copy_engine_bytes": "Bytes that the driver copied one by one",
    "ended_sharing": "Workers that share nothing any more: the GPU failed, or cannot use the pool",
    "skipped_stores": "Stores that were put off because unfinished ones held too many blocks",
}
#: As Client.statistics has them.
GPU_BYTES = tuple(name for name in COUNTERS if name.startswith("gpu_") and name.endswith("_bytes"))


@dataclass
class ConnectorStats(KVConnectorStats):
    """What one step or one interval has added to the counters."""

    def add(self, name: str, value: float) -> None:
        if value:
            self.data[name] = self.data.get(name, 0) + value

    def add_prompt(self, asked: int, from_pool: int = 0, from_peers: int = 0, from_storage: int = 0) -> None:
        self.add("prompts", 1)
        self.add("prompt_blocks", asked)
        self.add("used_pool_blocks", from_pool)
        self.add("used_peer_blocks", from_peers)
        self.add("used_storage_blocks", from_storage)

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> "ConnectorStats":
        for name, value in other.data.items():
            self.add(name, value)
        return self

    def reduce(self) -> Dict[str, Any]:
        return {name: round(value, 3) for name, value in sorted(self.data.items())}

    def is_empty(self) -> bool:
        return not self.data


class PromMetrics(KVConnectorPromMetrics):
    def __init__(self, vllm_config: Any, metric_types: Dict[Any, Any], labelnames: List[str],
                 per_engine_labelvalues: Dict[int, List[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._of_engine: Dict[str, Dict[int, Any]] = {}
        for name, text in COUNTERS.items():
            counter = self._counter_cls(name=f"vllm:cachalot_{name}", documentation=text, labelnames=labelnames)
            self._of_engine[name] = {
                index: counter.labels(*values)
                for index, values in per_engine_labelvalues.items()
            }

    def observe(self, transfer_stats_data: Dict[str, Any], engine_idx: int = 0) -> None:
        for name, value in transfer_stats_data.items():
            if name in self._of_engine:
                self._of_engine[name][engine_idx].inc(value)
