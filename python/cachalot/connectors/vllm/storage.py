"""Blocks that only the storage behind the pool has: asked for on a thread, because the scheduler must not wait."""

import queue
import threading
import time
from typing import Any, List, Optional, Tuple

from cachalot.connectors.access.attachment import Attachment
from cachalot.connectors.access.log import RateLimitedLog
from cachalot.connectors.vllm.messages import hashes_of

#: Whether there is storage is asked so often; until a keeper has answered, more often.
_LOOK_PAUSE_S, _FIRST_PAUSE_S = 5.0, 0.5
_CLOSE_S = 1.0
#: A keeper that does not answer within this time is not waited for.
_ANSWER_S = 0.2


class Question:
    """What storage has of one request. The thread sets `blocks`."""

    def __init__(self, keys: bytes) -> None:
        self.keys = keys
        self.asked = time.monotonic()
        self.blocks: Optional[int] = None  # leading ones that are in the pool, or on their way
        self.in_pool = 0  # those of them that were in the pool then

    def is_open(self) -> bool:
        return self.blocks is None and time.monotonic() - self.asked < _ANSWER_S


class StorageQuestions:
    """Threads: ask() and close(): vLLM's scheduler."""

    def __init__(self, places: List[Tuple[Attachment, int]], wait_s: float, log: RateLimitedLog) -> None:
        self._places, self._log = places, log
        self._is_there = False  # the thread's last answer
        self._is_known = False  # a keeper has answered
        self._has_looked = False  # the first prompt of an engine may come before the thread's first look
        self._queue: "queue.SimpleQueue[Optional[Question]]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        if wait_s > 0:
            self._thread = threading.Thread(target=self._run, name="cachalot-storage", daemon=True)
            self._thread.start()

    def ask(self, keys: bytes) -> Optional[Question]:
        """Returns nothing if there is no storage, as far as is known. Costs some microseconds."""
        if self._thread is None or self._has_looked and not self._is_there:
            return None
        question = Question(keys)
        self._queue.put(question)
        return question

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(_CLOSE_S)
            self._thread = None

    def _next(self) -> Any:
        try:
            return self._queue.get(timeout=_LOOK_PAUSE_S if self._is_known else _FIRST_PAUSE_S)
        except queue.Empty:
            return Question(b"")

    def _run(self) -> None:
        question: Optional[Question] = Question(b"")
        while question is not None:
            try:
                question.in_pool, blocks = self._answer(question.keys)
            except Exception as error:  # whatever it is, the request takes what is in the pool
                self._is_there = self._is_known = False
                self._has_looked = True  # a keeper that hangs is not waited for by each prompt
                blocks = 0
                self._log.warning("storage", "the storage behind the pool cannot be asked: %s", error)
            self._has_looked = self._has_looked or self._is_known
            question.blocks = blocks
            question = self._next()

    def _answer(self, keys: bytes) -> Tuple[int, int]:
        """Leading blocks that all places have in the pool, and those that they have there or in storage."""
        clients = [(attachment.get(), group) for attachment, group in self._places]
        self._is_known = all(client is not None for client, _ in clients)
        self._is_there = self._is_known and clients[0][0].has_storage()
        if not self._is_there or not keys:
            return 0, 0
        found = [client.prefetch(hashes_of(keys, group)) for client, group in clients]
        return min(in_pool for in_pool, _ in found), min(map(sum, found))

