"""A pool and a transfer in one engine: each request takes its blocks from the one that has more of them.

Invariants
  1. A request takes from one of the two at a time. What a failed load leaves is taken from the other one, or computed.
  2. Blocks that a transfer brought are stored into the pool like computed ones: after the load has ended, if it has not failed.
"""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Set, Tuple, Union

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from cachalot.connectors.vllm.messages import Load, StepAnswer, StepMetadata, Store
from cachalot.connectors.vllm.metrics import ConnectorStats
from cachalot.connectors.vllm.scheduler import SchedulerSide
from cachalot.connectors.vllm.transfer.messages import Ask, Offer, TransferAnswer, TransferStep
from cachalot.connectors.vllm.transfer.scheduler import TransferScheduler
from cachalot.connectors.vllm.transfer.worker import TransferWorker
from cachalot.connectors.vllm.worker import WorkerSide


@dataclass
class PooledStep(KVConnectorMetadata):
    pool: StepMetadata = field(default_factory=StepMetadata)
    transfer: TransferStep = field(default_factory=TransferStep)

    @property
    def loads(self) -> Tuple[List[Load], List[Ask]]:
        return self.pool.loads, self.transfer.loads

    @property
    def stores(self) -> List[Store]:
        return self.pool.stores

    @property
    def offers(self) -> List[Offer]:
        return self.transfer.offers

    @property
    def declines(self) -> List[Dict[str, Any]]:
        return self.transfer.declines

    @property
    def withdraws(self) -> bool:
        return self.transfer.withdraws

    @property
    def voids_loads(self) -> bool:
        return self.pool.voids_loads


@dataclass
class PooledAnswer(KVConnectorWorkerMetadata):
    """Of one worker, or of several."""

    pool: StepAnswer = field(default_factory=StepAnswer)
    transfer: TransferAnswer = field(default_factory=TransferAnswer)

    def aggregate(self, other: "PooledAnswer") -> "PooledAnswer":
        self.pool.aggregate(other.pool)
        self.transfer.aggregate(other.transfer)
        return self


class PooledTransferScheduler:
    """Threads: vLLM's scheduler only."""

    def __init__(self, pool: SchedulerSide, transfer: TransferScheduler) -> None:
        self._pool, self._transfer = pool, transfer
        self._sides = (pool, transfer)
        transfer.tell_transferred(pool.transferred)
        self._source: Dict[str, Union[SchedulerSide, TransferScheduler]] = {}  # request: the side with the last plan

    def bind_pages(self, block_pool: Any) -> None:
        for side in self._sides:
            side.bind_pages(block_pool)

    def set_addresses(self, of_ranks: Dict[Tuple[int, int], List[str]]) -> None:
        self._transfer.set_addresses(of_ranks)

    def added(self, request: Any) -> None:
        for side in self._sides:
            side.added(request)

    def matched(self, request: Any, computed_tokens: int) -> Tuple[Optional[int], bool]:
        offered, _ = self._transfer.matched(request, computed_tokens)
        # A request with a reference waits for no store of its prefill engine: the blocks are in that engine already.
        found, is_async = self._pool.matched(request, computed_tokens, may_wait=offered == 0)
        if found is not None and found >= offered:
            self._source[request.request_id] = self._pool
            return found, is_async
        if offered == 0:
            return None, False
        self._source[request.request_id] = self._transfer
        return offered, True

    def allocated(self, request: Any, blocks: Any, external_tokens: int) -> None:
        source = self._source.pop(request.request_id, None)
        if source is self._transfer:
            self._pool.begin_transfer(request)
        if source is not None:
            source.allocated(request, blocks, external_tokens)

    def finished(self, request: Any, tables: Tuple[List[int], ...]) -> Optional[Dict[str, Any]]:
        self._source.pop(request.request_id, None)
        params = [side.finished(request, tables) for side in self._sides]
        return {name: value for one in params if one is not None for name, value in one.items()} or None

    def step(self, output: Any) -> PooledStep:
        return PooledStep(self._pool.step(output), self._transfer.step(output))

    def answered(self, answer: Optional[PooledAnswer], loaded: Any) -> None:
        self._pool.answered(answer.pool if answer is not None else None, loaded)
        self._transfer.answered(answer.transfer if answer is not None else None, loaded)

    def reset(self) -> None:
        for side in self._sides:
            side.reset()

    def pages_lost(self) -> None:
        for side in self._sides:
            side.pages_lost()

    def weights_changed(self) -> None:
        for side in self._sides:
            side.weights_changed()

    def has_unsent_stores(self) -> bool:
        return any(side.has_unsent_stores() for side in self._sides)

    def has_held_pages(self) -> bool:
        return any(side.has_held_pages() for side in self._sides)

    def take_stats(self) -> ConnectorStats:
        return self._pool.take_stats().aggregate(self._transfer.take_stats())

    def close(self) -> None:
        for side in self._sides:
            side.close()


class PooledTransferWorker:
    """Threads: vLLM's worker only."""

    def __init__(self, pool: WorkerSide, transfer: TransferWorker) -> None:
        self._pool, self._transfer = pool, transfer
        self._sides = (pool, transfer)

    @property
    def addresses(self) -> List[str]:
        return self._transfer.addresses

    def note_step(self, has_loads: bool) -> None:
        self._pool.note_step(has_loads)

    def void_loads(self) -> None:
        for side in self._sides:
            side.void_loads()

    def begin_loads(self, loads: Tuple[List[Load], List[Ask]]) -> None:
        for side, of_side in zip(self._sides, loads):
            side.begin_loads(of_side)

    def begin_stores(self, stores: List[Store]) -> None:
        self._pool.begin_stores(stores)

    def begin_offers(self, offers: List[Offer]) -> None:
        self._transfer.begin_offers(offers)

    def decline(self, references: List[Dict[str, Any]]) -> None:
        self._transfer.decline(references)

    def withdraw_offers(self) -> None:
        self._transfer.withdraw_offers()

    def take_results(self) -> Tuple[Set[str], Set[str]]:
        pool, transfer = (side.take_results() for side in self._sides)
        return pool[0] | transfer[0], pool[1] | transfer[1]

    def take_bad_pages(self) -> Set[int]:
        return self._pool.take_bad_pages() | self._transfer.take_bad_pages()

    def take_answer(self) -> Optional[PooledAnswer]:
        pool, transfer = self._pool.take_answer(), self._transfer.take_answer()
        if pool is None and transfer is None:
            return None
        return PooledAnswer(pool or StepAnswer(), transfer or TransferAnswer())

    def take_stats(self) -> ConnectorStats:
        return self._pool.take_stats().aggregate(self._transfer.take_stats())

    def forget(self, requests: Set[str]) -> None:
        for side in self._sides:
            side.forget(requests)

    def close(self) -> None:
        for side in self._sides:
            side.close()
