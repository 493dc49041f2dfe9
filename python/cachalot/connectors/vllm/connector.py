"""CachalotConnector: vLLM's KVConnectorBase_V1 over a pool, a transfer, or both."""

from typing import Any, Dict, Iterable, List, Optional, Set, Tuple, Union

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.logger import init_logger

from cachalot import IoError, NoSpaceError, PermissionError, TransferRank, UnsupportedError
from cachalot.connectors.access.attachment import Attachment
from cachalot.connectors.access.keeper import SharedKeeper
from cachalot.connectors.vllm import weight_updates
from cachalot.connectors.vllm.layout import Cache, describe
from cachalot.connectors.access.log import RateLimitedLog
from cachalot.connectors.vllm.messages import NoStep, StepMetadata
from cachalot.connectors.vllm.metrics import ConnectorStats, PromMetrics
from cachalot.connectors.access.group import Group, UnsupportedCacheError
from cachalot.connectors.vllm.namespace import Identity, Rank
from cachalot.connectors.access.options import parse_bytes
from cachalot.connectors.vllm.options import parse
from cachalot.connectors.vllm.scheduler import SchedulerSide
from cachalot.connectors.vllm.streams import streams_of
from cachalot.connectors.vllm.transfer.messages import TransferStep, WorkerAddress
from cachalot.connectors.vllm.transfer.scheduler import TransferScheduler
from cachalot.connectors.vllm.transfer.with_pool import PooledStep, PooledTransferScheduler, PooledTransferWorker
from cachalot.connectors.vllm.transfer.worker import TransferWorker, machines_of
from cachalot.connectors.vllm.worker import WorkerSide

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
except ImportError:  # before 0.32
    CacheHitSource = None

logger = init_logger("vllm.cachalot")

#: How long an engine waits for its pool when it starts; after that it serves without one and goes on trying.
_START_WAIT_S = 5.0
#: What ends hand-overs where the KV cache is on a GPU: no kernels, no memory that may be page-locked, a GPU that fails.
_OF_A_GPU = (IoError, NoSpaceError, PermissionError, UnsupportedError)


class CachalotConnector(KVConnectorBase_V1, SupportsHMA):
    """Shares the engine's KV cache with all engines of the pool that hold the same bytes.

    A failure of the pool never fails a request: its blocks are computed. vLLM makes one object in the scheduler's
    process and one in each worker.

    Raises InvalidArgumentError and the pool's other errors when the engine starts: an unknown option, a pool
    without permission or of another format, blocks that are too small.
    """

    _cache_hit_source = CacheHitSource.HOST if CacheHitSource is not None else None

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self._options = parse(transfer.kv_connector_extra_config or {})
        # vLLM's default, "fail", turns every failure of the pool into a failed request.
        transfer.kv_load_failure_policy = "recompute"
        self._log = RateLimitedLog(logger)
        self._scheduler: Union[SchedulerSide, TransferScheduler, PooledTransferScheduler, None] = None
        self._worker: Union[WorkerSide, TransferWorker, PooledTransferWorker, None] = None
        self._keeper: Optional[SharedKeeper] = None
        self._groups: List[Group] = []
        try:
            self._identity = Identity(vllm_config, self._options.weights == "all", self._options.salt,
                                      self._options.share_tp)
            if role == KVConnectorRole.SCHEDULER:
                self._start_scheduler()
            else:
                self._groups = self._identity.groups(kv_cache_config, self._rank())
        except UnsupportedCacheError as error:
            self._groups = []
            self._log.info("nothing is shared, all is computed: %s is not supported yet", error)

    @staticmethod
    def _rank() -> Rank:
        from vllm.distributed.parallel_state import get_pp_group, get_tensor_model_parallel_rank

        return Rank(get_tensor_model_parallel_rank(), get_pp_group().rank_in_group)

    def _start_scheduler(self) -> None:
        weight_updates.watch_workers(self._vllm_config)
        self._updates, self._sleeps = weight_updates.count(), weight_updates.sleeps()
        pool = self._pool_scheduler() if self._options.pool else None
        transfer = self._transfer_scheduler() if self._options.transfer is not None else None
        if pool is not None and transfer is not None:
            self._scheduler = PooledTransferScheduler(pool, transfer)
        else:
            self._scheduler = pool or transfer

    def _pool_scheduler(self) -> SchedulerSide:
        parallel, transfer = self._vllm_config.parallel_config, self._kv_transfer_config
        ranks = [[group.of_all_ranks() for group in self._identity.groups_of(self._kv_cache_config, rank)]
                 for rank in self._identity.ranks()]
        if self._options.create is not None:
            of_all = [group for groups in ranks for group in groups]
            self._keeper = SharedKeeper(self._options, self._options.create, of_all, self._log)
        attachments: Dict[str, Attachment] = {}
        places: Dict[Tuple[str, int], Tuple[Attachment, int]] = {}  # ranks with equal bytes have one place
        for group in (group for groups in ranks for group in groups):
            name = group.namespace
            attachment = attachments.setdefault(name, Attachment(self._options, group, self._log))
            places[name, group.number] = (attachment, group.number)
        wait_s = _START_WAIT_S
        for attachment in attachments.values():
            wait_s = wait_s if attachment.attach(wait_s) else 0.0
        groups = ranks[0]
        self._log.info("namespace: %s; %d group(s), blocks of %d tokens and %d bytes", self._identity.text(),
                       len(groups), groups[0].block_tokens, max(group.pool_block_bytes for group in groups))
        return SchedulerSide(
            self._options, list(places.values()), groups[0].block_tokens, parallel.world_size,
            may_load=transfer.is_kv_consumer, may_store=transfer.is_kv_producer,
            is_async=self._options.load == "async" or len(groups) > 1 or groups[0].window != 0,
            log=self._log, state_groups=frozenset(group.number for group in groups if group.has_state))

    # --- Transfer ----------------------------------------------------------------------------------

    def _can_transfer(self, groups: List[Group]) -> bool:
        if len(groups) == 1 and groups[0].window == 0:
            return True
        if groups:
            self._log.info("nothing is handed over: a transfer of windows, or of several groups of layers, is not supported yet")
        return False

    def _transfer_scheduler(self) -> TransferScheduler:
        parallel, transfer = self._vllm_config.parallel_config, self._kv_transfer_config
        groups = self._identity.groups_of(self._kv_cache_config, Rank(0))
        can = self._can_transfer(groups)
        self._log.info("transfer: %s; blocks of %d tokens", self._identity.text(), groups[0].block_tokens)
        return TransferScheduler(
            self._options.transfer, transfer.engine_id, groups[0].block_tokens, parallel.tensor_parallel_size,
            parallel.pipeline_parallel_size, may_load=can and transfer.is_kv_consumer,
            may_store=can and transfer.is_kv_producer, log=self._log)

    def _transfer_worker(self, described: Optional[List[Cache]]) -> TransferWorker:
        """described: the cache of each group; None: it is not supported."""
        options, made = self._options.transfer, None
        device = described[0].device if described is not None else None
        streams = streams_of(device)
        if described is not None and self._can_transfer(self._groups):
            geometry, takes = self._groups[0].geometry, self._kv_transfer_config.is_kv_consumer
            try:
                made = TransferRank(
                    instance=self._kv_transfer_config.engine_id, model=self._identity.text(), geometry=geometry,
                    machines=machines_of(self._vllm_config.parallel_config, geometry)
                    if takes and options.once_per_machine else None,
                    listen=list(options.listen), cluster_key_file=options.cluster_key_file,
                    checksums=options.checksums, peer_timeout_s=options.peer_timeout,
                    stream=streams.behind(streams.mark()), bounce_bytes=parse_bytes(options.bounce, "bounce"),
                    **described[0].arguments)
            except _OF_A_GPU as error:
                if device is None:
                    raise
                self._log.warning("transfer", "nothing is handed over, all is computed: %s", error)
        return TransferWorker(made, options.deadline, self._log, streams)

    def get_handshake_metadata(self) -> Any:
        has_addresses = isinstance(self._worker, (TransferWorker, PooledTransferWorker))
        return WorkerAddress(self._worker.addresses) if has_addresses else None

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Dict[Tuple[int, int], Any]) -> None:
        if isinstance(self._scheduler, (TransferScheduler, PooledTransferScheduler)):
            # vLLM's MultiConnector gives those of its first connector to all.
            self._scheduler.set_addresses({rank: one.addresses for rank, one in metadata.items()
                                           if isinstance(one, WorkerAddress)})

    # --- Worker ------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: Dict[str, Any]) -> None:
        described: Optional[List[Cache]] = None
        try:
            weight_updates.watch_model(self._vllm_config.model_config)
            described = [describe(group, kv_caches) for group in self._groups] or None
        except UnsupportedCacheError as error:
            self._log.info("nothing is shared, all is computed: %s is not supported yet", error)
        pool = self._pool_worker(described) if self._options.pool else None
        transfer = self._transfer_worker(described) if self._options.transfer is not None else None
        if pool is not None and transfer is not None:
            self._worker = PooledTransferWorker(pool, transfer)
        else:
            self._worker = pool or transfer

    def _pool_worker(self, described: Optional[List[Cache]]) -> WorkerSide:
        """described: the cache of each group; None: it is not supported."""
        if described is None:
            return WorkerSide(self._options, [], False, self._log)
        attachments: Dict[str, Attachment] = {}
        for group in self._groups:
            caches = {other.number: described[other.number].arguments
                      for other in self._groups if other.namespace == group.namespace}
            attachments.setdefault(group.namespace, Attachment(
                self._options, group, self._log, lambda client, caches=caches:
                {number: client.register_cache(**arguments) for number, arguments in caches.items()},
                device=described[group.number].device))
        for attachment in attachments.values():
            attachment.attach(0.0)  # does not wait: the scheduler, which starts later, may make the pool
        # Ranks that hold the same bytes would store them several times.
        is_first = self._groups[0].geometry.is_first_replica
        return WorkerSide(self._options, [attachments[group.namespace] for group in self._groups], is_first, self._log,
                          is_first_rank=self._rank() == Rank(0), caches=described,
                          streams=streams_of(described[0].device),
                          first_kv_group=next(group.number for group in self._groups if not group.has_state))

    def _step(self) -> Any:
        """What the scheduler's side says; None: it has none."""
        metadata = self._get_connector_metadata()
        return metadata if isinstance(metadata, (StepMetadata, TransferStep, PooledStep)) else None

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        of_pool = getattr(connector_metadata, "pool", connector_metadata)
        if self._worker is not None and isinstance(of_pool, StepMetadata):
            self._worker.note_step(bool(of_pool.loads))
        if self._worker is not None and getattr(connector_metadata, "voids_loads", False):
            self._worker.void_loads()
        offers = getattr(connector_metadata, "offers", None)
        if self._worker is not None and offers:
            self._worker.begin_offers(offers)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        step = self._step()
        if self._worker is not None and step is not None:
            self._worker.begin_loads(step.loads)

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        step = self._step()
        if self._worker is None or step is None:
            return
        if stores := getattr(step, "stores", None):
            self._worker.begin_stores(stores)
        if declines := getattr(step, "declines", None):
            self._worker.decline(declines)
        if getattr(step, "withdraws", False):
            self._worker.withdraw_offers()

    def get_transfer_results(self, finished_req_ids: Set[str]) -> Any:
        finished, failed = set(), set()
        if self._worker is not None:
            finished, failed = self._worker.take_results()
            self._worker.forget(finished_req_ids)
        return KVConnectorTransferResults(finished_recving=finished, failed_recving=failed)

    def get_block_ids_with_load_errors(self) -> Set[int]:
        return self._worker.take_bad_pages() if self._worker is not None else set()

    def build_connector_worker_meta(self) -> Any:
        return self._worker.take_answer() if self._worker is not None else None

    # --- Scheduler ---------------------------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    def _note_updates(self) -> None:
        """Of the weights, and sleeps, before the scheduler's side decides what it shares."""
        if self._scheduler is not None and self._updates != weight_updates.count():
            self._updates = weight_updates.count()
            self._scheduler.weights_changed()
        if self._scheduler is not None and self._sleeps != weight_updates.sleeps():
            self._sleeps = weight_updates.sleeps()
            self._scheduler.pages_lost()

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.bind_pages(gpu_block_pool)

    def on_new_request(self, request: Any) -> None:
        self._note_updates()
        if self._scheduler is not None:
            self._scheduler.added(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Tuple[Optional[int], bool]:
        if self._scheduler is None:
            return 0, False
        self._note_updates()
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if self._scheduler is not None:
            self._scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        self._note_updates()
        return self._scheduler.step(scheduler_output) if self._scheduler is not None else NoStep()

    def update_connector_output(self, connector_output: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.answered(connector_output.kv_connector_worker_meta, connector_output.finished_recving)

    def request_finished(self, request: Any, block_ids: List[int]) -> Tuple[bool, Optional[Dict[str, Any]]]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(self, request: Any,
                                    block_ids: Tuple[List[int], ...]) -> Tuple[bool, Optional[Dict[str, Any]]]:
        self._note_updates()
        return False, self._scheduler.finished(request, block_ids) if self._scheduler is not None else None

    def has_pending_push_work(self) -> bool:
        # A step brings the workers' answers, also to an engine without requests: pages must not stay held.
        return self._scheduler is not None and (self._scheduler.has_unsent_stores() or self._scheduler.has_held_pages())

    def reset_cache(self) -> bool:
        self._note_updates()
        if self._scheduler is not None:
            self._scheduler.reset()
        return True

    def has_pending_block_frees(self) -> bool:
        return self._scheduler is not None and self._scheduler.has_held_pages()

    def take_events(self) -> Iterable[Any]:
        return ()

    # --- Metrics -----------------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> Optional[ConnectorStats]:
        side = self._worker if self._worker is not None else self._scheduler
        stats = side.take_stats() if side is not None else None
        return None if stats is None or stats.is_empty() else stats

    @classmethod
    def build_kv_connector_stats(cls, data: Optional[Dict[str, Any]] = None) -> ConnectorStats:
        return ConnectorStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Dict[Any, Any], labelnames: List[str],
                           per_engine_labelvalues: Dict[int, List[object]]) -> PromMetrics:
        return PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()
        if self._scheduler is not None:
            self._scheduler.close()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
