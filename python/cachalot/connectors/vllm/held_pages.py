"""Pages of the engine that must keep their bytes for a while after their request."""

from typing import Any, Dict, List, Tuple

_MOST_ALONE = 0.5


class HeldPages:
    """Pages that unfinished stores or transfers read. vLLM does not reuse them meanwhile."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._pool: Any = None
        self._jobs: Dict[int, Tuple[int, List[Any]]] = {}  # job: workers to wait for, blocks
        self._count = 0

    def bind(self, block_pool: Any) -> None:
        self._pool = block_pool

    def room(self, share: float) -> int:
        """How many pages more may be held, if unfinished stores may hold this share of all. One store alone may hold half:
        a long prompt can be more than the share of a small cache."""
        if self._pool is None:
            return 0
        most = share if self._jobs else max(share, _MOST_ALONE)
        return max(int(most * self._pool.num_gpu_blocks) - self._count, 0)

    def has_room(self, pages: int, share: float) -> bool:
        """Whether so many more may be held, if no more than this share of all may be."""
        return self._pool is not None and self._count + pages <= share * self._pool.num_gpu_blocks

    def hold_pages(self, job: int, pages: List[int]) -> None:
        """Until every worker has finished the job. Page 0 is none."""
        blocks = [self._pool.blocks[page] for page in pages if page != 0]
        self._pool.touch(blocks)
        self._jobs[job] = (self._workers, blocks)
        self._count += len(blocks)

    def finished(self, job: int, workers: int) -> None:
        if job not in self._jobs:
            return
        left, blocks = self._jobs[job]
        if left > workers:
            self._jobs[job] = (left - workers, blocks)
            return
        del self._jobs[job]
        self._count -= len(blocks)
        self._pool.free_blocks(reversed(blocks))

    def is_cache_empty(self) -> bool:
        """Whether vLLM has no page in use, and none that a prompt could find. Page 0 is in use always."""
        return (self._pool is not None and len(self._pool.cached_block_hash_to_block) == 0 and
                self._pool.get_num_free_blocks() == self._pool.num_gpu_blocks - 1)

    def __bool__(self) -> bool:
        return bool(self._jobs)
