"""What the scheduler's side of a transfer tells the workers in each step, and what they answer."""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Set

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)


@dataclass
class WorkerAddress(KVConnectorHandshakeMetadata):
    """Where a worker can be reached. The scheduler has those of all workers before the first request."""

    addresses: List[str]


@dataclass
class Offer:
    """Pages that the decode engine may take. The scheduler holds them until every worker has answered."""

    job: int
    id: str
    pages: List[int]
    tokens: int
    keys: bytes  # of each page
    standing_s: float = 0.0  # so long, any number of engines may take them; 0: one engine, once


@dataclass
class Ask:
    request: str
    reference: Dict[str, Any]
    pages: List[int]  # from the page of first_token on
    first_token: int
    tokens: int  # of the reference, from its first one on
    key: bytes  # of the last page of these
    instance: List[List[str]] = field(default_factory=list)  # addresses of each rank that asks; none: they do not copy


@dataclass
class TransferStep(KVConnectorMetadata):
    loads: List[Ask] = field(default_factory=list)
    offers: List[Offer] = field(default_factory=list)
    declines: List[Dict[str, Any]] = field(default_factory=list)  # references that are not needed
    withdraws: bool = False  # all offers that are open
    voids_loads: bool = False  # those that have begun in earlier steps bring what is of no use any more


@dataclass
class TransferAnswer(KVConnectorWorkerMetadata):
    """Of one worker, or of several."""

    finished_jobs: Dict[int, int] = field(default_factory=dict)  # job: by how many workers
    failed_asks: Set[str] = field(default_factory=set)  # requests

    def aggregate(self, other: "TransferAnswer") -> "TransferAnswer":
        self.failed_asks |= other.failed_asks
        for job, workers in other.finished_jobs.items():
            self.finished_jobs[job] = self.finished_jobs.get(job, 0) + workers
        return self

    def is_empty(self) -> bool:
        return not (self.finished_jobs or self.failed_asks)
