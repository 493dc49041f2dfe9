"""What the scheduler's side tells the workers in each step, and what they answer."""

import functools
import hashlib
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

#: Bytes of one key: low and high of a cachalot.BlockHash, little-endian.
KEY_BYTES = 16


_WORD = np.dtype("<u8")


def keys_of(hashes: Sequence[bytes]) -> bytes:
    """The first 16 bytes of vLLM's hashes as cachalot.BlockHash lies in memory: low, high, little-endian."""
    digests = b"".join([digest[:KEY_BYTES] for digest in hashes])
    return np.frombuffer(digests, dtype=">u8").reshape(-1, 2)[:, ::-1].astype("<u8").tobytes()


@functools.lru_cache(maxsize=None)
def _mark_of(group: int) -> np.ndarray:
    return np.frombuffer(hashlib.blake2b(b"group %d" % group, digest_size=KEY_BYTES).digest(), _WORD)


def hashes_of(keys: bytes, group: int) -> np.ndarray:
    """Keys as Client takes them. Groups of one geometry share a namespace: their keys differ by a constant, and stay
    as far apart as the hashes they come from. The first group's are as they are. Shape: (blocks, 2)."""
    words = np.frombuffer(keys, _WORD).reshape(-1, 2)
    return words ^ _mark_of(group) if group else words


@dataclass
class Chain:
    """Consecutive blocks of a request, and the pages that hold them in each group; page 0: none."""

    keys: bytes
    pages: Tuple[List[int], ...]  # of each group, as many as keys
    parent: Optional[bytes] = None  # the key before the first one; None: the chain starts a prompt

    def __len__(self) -> int:
        return len(self.keys) // KEY_BYTES

    def from_page(self, group: int) -> int:
        """The first block of which this group has a page. Groups with a window have none at the beginning."""
        pages = self.pages[group]
        first = len(pages)
        while first > 0 and pages[first - 1] != 0:
            first -= 1
        return first

    def has_one_full_table(self) -> bool:
        """Whether page ids can tell vLLM which blocks are wrong. Ids of several groups cannot be told apart, and
        behind a window's first page there is nothing to compute the rest from."""
        return len(self.pages) == 1 and 0 not in self.pages[0]

    def parent_of(self, block: int) -> Optional[bytes]:
        if block == 0:
            return self.parent
        return self.keys[(block - 1) * KEY_BYTES : block * KEY_BYTES]


@dataclass
class Load:
    request: str
    attempt: int  # of this request; a failed load voids the stores of its attempt
    chain: Chain
    is_async: bool
    trace: Optional[Mapping[str, str]] = None  # headers; None: the request has no trace


@dataclass
class Store:
    job: int
    request: str
    attempt: int
    chain: Chain
    tokens: Optional[np.ndarray] = None  # of the chain's blocks; the pool keeps them for its events
    trace: Optional[Mapping[str, str]] = None


@dataclass
class StepMetadata(KVConnectorMetadata):
    loads: List[Load] = field(default_factory=list)
    stores: List[Store] = field(default_factory=list)
    voids_loads: bool = False  # those that have begun in earlier steps bring what is of no use any more


class NoStep(KVConnectorMetadata):
    """Of a scheduler whose cache is not supported."""


@dataclass
class StepAnswer(KVConnectorWorkerMetadata):
    """Of one worker, or of several."""

    finished_jobs: Dict[int, int] = field(default_factory=dict)  # job: by how many workers
    failed_loads: Dict[str, int] = field(default_factory=dict)  # request: attempt
    right_blocks: Dict[str, int] = field(default_factory=dict)  # request with a failed load: its first blocks that are used
    ended_loads: Dict[str, int] = field(default_factory=dict)  # request: by how many workers; synchronous ones only
    incomplete_stores: Set[str] = field(default_factory=set)  # requests of which not all blocks are in the pool
    is_over: bool = False  # a worker loads and stores nothing any more

    def aggregate(self, other: "StepAnswer") -> "StepAnswer":
        for job, workers in other.finished_jobs.items():
            self.finished_jobs[job] = self.finished_jobs.get(job, 0) + workers
        for request, attempt in other.failed_loads.items():
            self.failed_loads[request] = max(attempt, self.failed_loads.get(request, 0))
        for request, blocks in other.right_blocks.items():
            self.right_blocks[request] = min(blocks, self.right_blocks.get(request, blocks))
        for request, workers in other.ended_loads.items():
            self.ended_loads[request] = self.ended_loads.get(request, 0) + workers
        self.incomplete_stores |= other.incomplete_stores
        self.is_over |= other.is_over
        return self

    def is_empty(self) -> bool:
        return not (self.finished_jobs or self.failed_loads or self.ended_loads or self.incomplete_stores or
                    self.is_over)
