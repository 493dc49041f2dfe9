"""The connector's counters in SGLang's Prometheus endpoint, as sglang:cachalot_*, with --enable-metrics.

SGLang's server gathers what prometheus_client counts in each of its processes.
"""

import functools
from typing import Any, Dict

from cachalot.connectors.access.attachment import Attachment
from cachalot.connectors.sglang.namespace import Place

#: All of them count up. A rank counts its own blocks.
COUNTERS = {
    "prompts": "Prompts that asked the pool for blocks; each once",
    "prompt_blocks": "Blocks that these prompts asked for: whole ones that the engine did not have itself",
    "used_pool_blocks": "Blocks of them that were loaded, and that the pool had when the prompt came",
    "used_storage_blocks": "Blocks of them that were loaded, and that storage brought into the pool for the prompt",
    "lookups": "Lookups in the pool; a prompt that waits is looked up more than once",
    "lookup_seconds": "Time of these lookups",
    "found_blocks": "Blocks that these lookups found",
    "loads": "Loads from the pool",
    "loaded_blocks": "Blocks that were loaded",
    "loaded_bytes": "Bytes of these blocks",
    "load_seconds": "Time of these loads",
    "failed_loads": "Loads of which not all blocks were right; the rest was computed",
    "stores": "Stores into the pool",
    "stored_blocks": "Blocks of these stores that are in the pool, whichever engine wrote them",
    "stored_bytes": "Bytes of these blocks",
    "store_seconds": "Time of these stores, in the background, until SGLang takes the result",
    "failed_stores": "Stores of which not all blocks are in the pool",
    "skipped_stores": "Stores that were put off because unfinished ones held too many slots",
}
#: As Client.statistics has them.
_PROMPTS = ("prompts", "prompt_blocks", "used_pool_blocks", "used_storage_blocks")


@functools.lru_cache
def _counters() -> Dict[str, Any]:
    """prometheus_client takes a name once a process. SGLang has set its directory by the time of the first call."""
    from prometheus_client import Counter

    return {name: Counter(f"sglang:cachalot_{name}", text, ["tp_rank", "pp_rank"]) for name, text in COUNTERS.items()}


class Metrics:
    """Of one rank. Without --enable-metrics it counts nothing. Threads: any."""

    def __init__(self, is_enabled: bool, place: Place, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._of_rank = {name: counter.labels(place.tp_rank, place.pp_rank)
                         for name, counter in (_counters() if is_enabled else {}).items()}

    def _add(self, **values: float) -> None:
        for name, value in values.items():
            if name in self._of_rank:
                self._of_rank[name].inc(value)

    def count_prompts(self, attachment: Attachment) -> None:
        """Adds what the client has counted since the last call: the pool's hit rate has the same numbers."""
        if self._of_rank:
            self._add(**attachment.take_counts(_PROMPTS))

    def looked_up(self, found: int, seconds: float) -> None:
        self._add(lookups=1, lookup_seconds=seconds, found_blocks=found)

    def loaded(self, blocks: int, asked: int, seconds: float) -> None:
        self._add(loads=1, loaded_blocks=blocks, loaded_bytes=blocks * self._block_bytes, load_seconds=seconds,
                  failed_loads=int(blocks < asked))

    def stored(self, blocks: int, asked: int, seconds: float) -> None:
        self._add(stores=1, stored_blocks=blocks, stored_bytes=blocks * self._block_bytes, store_seconds=seconds,
                  failed_stores=int(blocks < asked))

    def skipped_store(self) -> None:
        self._add(skipped_stores=1)
