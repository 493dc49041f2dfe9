"""CachalotTier: vLLM's SecondaryTierManager over a pool."""

import os
import threading
import time
from collections import OrderedDict
from typing import Any, Dict, Iterable, List, Optional, Set

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingMetricMetadata,
    ReqContext,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from cachalot import Client, Error, PartStrides
from cachalot.connectors.access.attachment import Attachment
from cachalot.connectors.access.keeper import SharedKeeper
from cachalot.connectors.access.log import RateLimitedLog
from cachalot.connectors.access.group import UnsupportedCacheError
from cachalot.connectors.vllm import weight_updates
from cachalot.connectors.vllm.options import Options, parse
from cachalot.connectors.vllm.tier.jobs import Job, JobThreads
from cachalot.connectors.vllm.tier.names import Asked, Order, group_of, hashes_of
from cachalot.errors import InvalidArgumentError, TimeoutError

logger = init_logger("vllm.cachalot")

#: How long an engine waits for its pool when it starts; after that it serves without one and goes on trying.
_START_WAIT_S = 5.0
#: The most keys that are remembered after a failed load.
_MOST_FAILED = 1 << 16

_PREFIX = "vllm:cachalot_tier_"
#: All of them count up.
COUNTERS = {
    "loaded_chunks": "Chunks that were copied from the pool into the primary tier",
    "stored_chunks": "Chunks that this engine wrote into the pool",
    "failed_loads": "Chunks that were found in the pool and could not be loaded: they are computed",
    "failed_stores": "Chunks that did not get into the pool",
    "skipped_stores": "Chunks that were not stored because unfinished stores held too much of the primary tier",
}


def _options_of(given: Dict[str, Any]) -> Options:
    """Raises InvalidArgumentError."""
    name = "secondary_tiers: CachalotTier"
    if "load" in given:
        raise InvalidArgumentError(f"{name}: unknown option 'load': this tier's loads are always asynchronous")
    if "share_tp" in given:
        raise InvalidArgumentError(f"{name}: unknown option 'share_tp': a chunk has the heads of all ranks")
    try:
        return parse(given)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(str(error).replace("kv_connector_extra_config", name)) from None


def _locality_of(given: Optional[str]) -> Optional[Locality]:
    names = [locality.value for locality in Locality]
    if given is not None and given not in names:
        raise InvalidArgumentError(f"secondary_tiers: CachalotTier: locality: {given!r}, expected {' or '.join(names)}")
    return None if given is None else Locality(given)


class CachalotTier(SecondaryTierManager):
    """Keeps the chunks of vLLM's primary tier in a pool, for all engines that hold the same bytes.

    A failure of the pool never fails a request: its chunks are computed. After a failed load lookup() says MISS for
    the chunk until this engine has stored it again: else vLLM would promote it for ever.

    Threads: vLLM's scheduler, which never waits, and the threads of `JobThreads`.
    Raises InvalidArgumentError and the pool's other errors when the engine starts, as CachalotConnector.
    """

    medium = Medium.CPU

    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str,
                 backpressure_detector: Any = None, locality: Optional[str] = None, **given: Any) -> None:
        since_0_31 = {} if backpressure_detector is None else {"backpressure_detector": backpressure_detector}
        super().__init__(offloading_spec, primary_kv_view, tier_type, **since_0_31)
        self.locality = _locality_of(locality)
        self._options = _options_of(given)
        self._log = RateLimitedLog(logger)
        self._lock = threading.Lock()
        self._done: List[JobResult] = []
        self._stats = OffloadingConnectorStats()
        # Key: only a store that writes the block ends the MISS, because the block in the pool is damaged.
        self._failed: "OrderedDict[bytes, bool]" = OrderedDict()
        self._orders: Dict[str, Order] = {}
        self._asked: Dict[str, Asked] = {}  # of each request
        self._held = 0  # chunks that unfinished stores read
        self._era = b""  # after drain_jobs(): random
        self._rows: Optional[np.ndarray] = np.asarray(primary_kv_view)
        self._row_bytes = self._rows.shape[1]
        self._chunk_tokens = {
            group.group_id.to_bytes(4, "big"): group.tokens_per_block * offloading_spec.blocks_per_chunk
            for group in offloading_spec.config.groups
        }
        self._updates = weight_updates.count()
        self._keeper: Optional[SharedKeeper] = None
        self._attachment: Optional[Attachment] = None
        self._loads = JobThreads("cachalot-tier-load", self._options.workers, self._run_load)
        self._stores = JobThreads("cachalot-tier-store", 1, self._run_store)  # a parent before its children
        try:
            self._start(offloading_spec)
        except UnsupportedCacheError as error:
            self._log.info("nothing is shared by the tier, all is computed: %s is not supported yet", error)
        except BaseException:
            self.shutdown()
            raise

    def _start(self, offloading_spec: Any) -> None:
        chunks = group_of(offloading_spec, self._row_bytes, self._options)
        if self._options.create is not None:
            self._keeper = SharedKeeper(self._options, self._options.create, [chunks], self._log)
        self._attachment = Attachment(self._options, chunks, self._log, self._register)
        self._attachment.attach(_START_WAIT_S)
        self._log.info("namespace of the tier: %s; chunks of %d bytes", chunks.model, self._row_bytes)

    def _register(self, client: Client) -> Any:
        half = self._row_bytes // 2
        parts = [PartStrides(tensor=0, layer_tensors=0, offset=at, page=2 * half, head=half, token=half)
                 for at in (0, half)]
        return client.register_cache(layout=None, tensors=[self._rows], pages=self._rows.shape[0], strides=parts)

    # --- Scheduler ---------------------------------------------------------------------------------

    def _client(self) -> Optional[Client]:
        """None: there is no pool now; or the weights were updated. The primary tier may keep chunks of before, and gives
        them to this one like others, so after an update the tier has nothing any more."""
        if self._attachment is None:
            return None
        if self._updates != weight_updates.count():
            self._attachment.end(f"the weights were updated ({weight_updates.last()})")
        return self._attachment.get()

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._orders.pop(req_context.req_id, None)
        with self._lock:
            asked = self._asked.pop(req_context.req_id, None)
        client = self._client()
        if asked is None or client is None:
            return
        try:
            client.count_prompt(asked.chunks(), from_pool=asked.loaded())
        except Error as error:
            self._lost(client, "count", error)

    def lookup(self, key: bytes, req_context: ReqContext) -> LookupResult:
        client = self._client()
        with self._lock:
            asked = self._asked.get(req_context.req_id)
            if asked is None:
                asked = self._asked[req_context.req_id] = Asked(getattr(req_context, "_offload_key_positions", {}))
            asked.add(key)
        if client is None or key in self._failed:
            return LookupResult.MISS
        try:
            return LookupResult.HIT if client.lookup(hashes_of([key], self._era)) == 1 else LookupResult.MISS
        except Error as error:
            self._lost(client, "lookup", error)
            return LookupResult.MISS

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._client()
        self._loads.put(self._job_of(job_metadata))

    def submit_store(self, job_metadata: TransferJob) -> None:
        job = self._job_of(job_metadata)
        count = len(job.keys)
        with self._lock:
            # One job alone always has: a long prompt can be more than the share.
            has_room = self._held == 0 or self._held + count <= self._options.store_held * self._rows.shape[0]
            self._held += count
        if self._client() is None:
            self._store_ends(job, 0, count)
        elif not has_room:
            self._count("skipped_stores", count)
            self._log.warning("held", "stores are skipped: unfinished ones hold %d chunks", self._held - count)
            self._store_ends(job, 0, 0, is_complete=False)
        else:
            job.chains = self._chains_of(job, job_metadata.req_context)
            self._stores.put(job)

    def _job_of(self, given: TransferJob) -> Job:
        keys = list(given.keys)
        return Job(given.job_id, keys, hashes_of(keys, self._era), [int(chunk) for chunk in given.chunk_ids],
                   request=given.req_context.req_id)

    def _chains_of(self, job: Job, req_context: ReqContext) -> List[Any]:
        """Sorts the job's chunks into chains, each with the block before it."""
        order = self._orders.setdefault(req_context.req_id, Order())
        positions = getattr(req_context, "_offload_key_positions", {})  # since 0.31; of the whole prompt
        order.update(positions)
        ends = [positions.get(key) for key in job.keys]
        sorted_by_place = sorted(range(len(ends)), key=lambda i: (job.keys[i][-4:], ends[i] or 0))
        job.keys = [job.keys[i] for i in sorted_by_place]
        job.pages = [job.pages[i] for i in sorted_by_place]
        job.hashes = job.hashes[sorted_by_place]
        before = [order.before(key, ends[i], self._chunk_tokens) for key, i in zip(job.keys, sorted_by_place)]
        chains = []
        for i, key in enumerate(before):
            if i > 0 and key == job.keys[i - 1]:
                first, _, parent = chains[-1]
                chains[-1] = (first, i + 1, parent)
            else:
                chains.append((i, i + 1, None if key is None else hashes_of([key], self._era)[0]))
        return chains

    def get_finished_jobs(self) -> Iterable[JobResult]:
        with self._lock:
            done, self._done = self._done, []
        return done

    # --- Threads -----------------------------------------------------------------------------------

    def _run_load(self, job: Job) -> None:
        good: Set[int] = set()
        try:
            self._load(job, good)
        except Exception as error:  # the job must be answered: its slots are reserved
            self._log.warning("load", "a load failed, its chunks are computed: %s", error)
        if self._updates != weight_updates.count():
            good.clear()  # chunks of before
        bad = [i for i in range(len(job.keys)) if i not in good]
        with self._lock:
            asked = self._asked.get(job.request)
            if asked is not None:
                asked.add_loaded(job.keys[i] for i in good)
        self._mark_failed(job, bad)
        self._count("loaded_chunks", len(good))
        self._count("failed_loads", len(bad))
        self._answer(job, not bad, tuple(job.keys[i] for i in sorted(good)) if bad else None, len(good))

    def _load(self, job: Job, good: Set[int]) -> None:
        until = time.monotonic() + self._options.load_timeout
        client, cache = self._attachment.get_with()
        at = 0
        while client is not None and at < len(job.keys):
            try:
                loaded = client.load(cache, job.hashes[at:], job.pages[at:],
                                     timeout=max(0.0, until - time.monotonic()))
            except Error as error:
                if isinstance(error, TimeoutError):
                    good.update(range(at, at + (error.detail or 0)))
                self._lost(client, "load", error)
                return
            good.update(range(at, at + loaded))
            if at + loaded < len(job.keys):
                self._log.warning("load", "a chunk was evicted or damaged before its load; it is computed")
            at += loaded + 1  # without this one: the chunks after it may be of use, too

    def _mark_failed(self, job: Job, bad: List[int]) -> None:
        client = self._attachment.get() if bad else None
        for i in bad:
            try:
                is_there = client is not None and client.lookup(job.hashes[i : i + 1]) == 1
            except Error:
                is_there = False
            with self._lock:
                self._failed[job.keys[i]] = is_there
                if len(self._failed) > _MOST_FAILED:
                    self._failed.popitem(last=False)

    def _run_store(self, job: Job) -> None:
        stored = 0
        try:
            stored = self._store(job)
        except Exception as error:  # the job must be answered: its slots are held
            self._log.warning("store", "a store failed, its chunks are not shared: %s", error)
        self._store_ends(job, stored, len(job.keys) - stored)

    def _store(self, job: Job) -> int:
        until = time.monotonic() + self._options.store_timeout
        stored = 0
        for first, last, parent in job.chains:
            while first < last:
                client, cache = self._attachment.get_with()
                if client is None:
                    return stored
                try:
                    result = client.store(cache, job.hashes[first:last], job.pages[first:last], parent=parent,
                                          timeout=max(0.0, until - time.monotonic()))
                except Error as error:
                    self._lost(client, "store", error)
                    return stored
                self._count("stored_chunks", result.written)
                self._unmark(job.keys[first : first + result.blocks], result.written == result.blocks)
                stored += result.blocks
                first += result.blocks
                if first < last and parent is None:
                    self._log.warning("store", "the pool did not take all chunks: %s", result.reason)
                    return stored
                # Without the evicted parent: the chunk is found all the same.
                parent = None
        return stored

    def _unmark(self, keys: List[bytes], all_written: bool) -> None:
        with self._lock:
            for key in keys if self._failed else ():
                if all_written or not self._failed.get(key, True):
                    self._failed.pop(key, None)

    def _store_ends(self, job: Job, stored: int, failed: int, is_complete: Optional[bool] = None) -> None:
        with self._lock:
            self._held -= len(job.keys)
        self._count("failed_stores", failed)
        self._answer(job, failed == 0 if is_complete is None else is_complete, None, stored)

    def _answer(self, job: Job, success: bool, successful: Any, chunks: int) -> None:
        result = JobResult(job_id=job.number, success=success, successful_keys=successful,
                           transfer_time=time.monotonic() - job.queued)
        result.transfer_bytes = chunks * self._row_bytes  # since 0.31
        with self._lock:
            self._done.append(result)

    def _lost(self, client: Client, call: str, error: Error) -> None:
        self._attachment.failed(client, error)
        self._log.warning(call, "a %s of the tier failed: %s", call, error)

    # --- Metrics and end ---------------------------------------------------------------------------

    def _count(self, name: str, value: int) -> None:
        if value:
            with self._lock:
                self._stats.increase_counter(_PREFIX + name, value)

    @classmethod
    def build_metric_definitions(cls, extra_config: Dict[str, Any]) -> Dict[str, OffloadingMetricMetadata]:
        return {_PREFIX + name: OffloadingCounterMetadata(documentation=text) for name, text in COUNTERS.items()}

    def get_stats(self) -> Optional[OffloadingConnectorStats]:
        with self._lock:
            stats, self._stats = self._stats, OffloadingConnectorStats()
        return None if stats.is_empty() else stats

    def drain_jobs(self) -> None:
        """vLLM resets its caches, perhaps because the engine's weights are others now. It does not say so, and leaves
        this tier as it is: so the tier finds nothing of before from now on, and shares with no other engine."""
        for job in self._loads.take_queued():
            self._answer(job, False, None, 0)
        for job in self._stores.take_queued():
            self._store_ends(job, 0, len(job.keys))
        self._loads.wait_idle()
        self._stores.wait_idle()
        self._era = os.urandom(16)
        self._log.info("the engine's caches were reset: until it starts again, its tier shares with no other engine")

    def shutdown(self) -> None:
        """Raises RuntimeError: a copy has not ended; vLLM then keeps the primary tier's memory."""
        for job in self._loads.take_queued() + self._stores.take_queued():
            self._answer(job, False, None, 0)
        have_ended = self._loads.close(self._options.load_timeout + 1)
        have_ended &= self._stores.close(self._options.store_timeout + 1)
        if self._attachment is not None:
            self._attachment.close()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
        if not have_ended:
            raise RuntimeError("CachalotTier: copies between the primary tier and the pool are still in flight")
        self._attachment = self._rows = None
