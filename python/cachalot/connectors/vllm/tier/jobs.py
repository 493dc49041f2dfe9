"""Background threads of the tier: vLLM's scheduler only queues jobs and collects results."""

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Callable, Deque, List, Optional, Tuple


@dataclass
class Job:
    """Chunks to copy between vLLM's primary tier and the pool."""

    number: int  # vLLM's
    keys: List[bytes]  # vLLM's OffloadKeys
    hashes: Any  # the blocks' names: array of (chunks, 2)
    pages: List[int]  # where the chunks are in the primary tier
    #: of a store: chains [first, last) of chunks, with the block before each; None: unknown, or the chain starts a prompt
    chains: List[Tuple[int, int, Optional[Any]]] = field(default_factory=list)
    request: str = ""
    queued: float = field(default_factory=time.monotonic)


class JobThreads:
    """Runs jobs in the order in which they were queued; with one thread also one after the other.

    Threads: any.
    """

    def __init__(self, name: str, threads: int, run: Callable[[Job], None]) -> None:
        """run: must not raise."""
        self._run = run
        self._changed = threading.Condition()
        self._queued: Deque[Job] = deque()
        self._running = 0
        self._is_closed = False
        self._threads = [threading.Thread(target=self._loop, name=name, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def put(self, job: Job) -> None:
        with self._changed:
            self._queued.append(job)
            self._changed.notify()

    def take_queued(self) -> List[Job]:
        """Takes back all jobs that have not begun."""
        with self._changed:
            taken = list(self._queued)
            self._queued.clear()
        return taken

    def wait_idle(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._queued and self._running == 0)

    def close(self, wait_s: float) -> bool:
        """Ends the threads after the queued jobs. Returns whether all have ended in time."""
        until = time.monotonic() + wait_s
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _next(self) -> Optional[Job]:
        with self._changed:
            self._changed.wait_for(lambda: self._queued or self._is_closed)
            if not self._queued:
                return None
            self._running += 1
            return self._queued.popleft()

    def _loop(self) -> None:
        while (job := self._next()) is not None:
            try:
                self._run(job)
            finally:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()
