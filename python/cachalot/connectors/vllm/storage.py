"""Blocks that only the storage behind the pool has: asked for on a thread, because the scheduler must not wait."""

import queue
import threading
import time
from typing import Any, Callable, List, Optional, Tuple

from cachalot.connectors.access.attachment import Attachment
from cachalot.connectors.access.log import RateLimitedLog
from cachalot.connectors.vllm.messages import hashes_of

#: Whether there is storage is asked so often; until a keeper has answered, more often.
_LOOK_PAUSE_S, _FIRST_PAUSE_S = 5.0, 0.5
_CLOSE_S = 1.0
#: A keeper that does not answer within this time is not waited for.
_ANSWER_S = 0.2
#: Between looks at questions that storage of several hosts has not answered yet.
_NAP_S = 0.001
_END = object()


class Question:
    """What storage has of one request. The thread sets `blocks`."""

    def __init__(self, keys: bytes, wait_s: float = 0.0) -> None:
        """wait_s: so long the request may wait, for the answer and the blocks together."""
        self.keys, self.wait_s = keys, wait_s
        self.asked = time.monotonic()
        self.patience_s = _ANSWER_S
        self.blocks: Optional[int] = None  # leading ones that are in the pool, or on their way
        self.in_pool = 0  # those of them that were in the pool then

    def is_open(self) -> bool:
        return self.blocks is None and time.monotonic() - self.asked < self.patience_s


class StorageQuestions:
    """Threads: ask() and close(): vLLM's scheduler."""

    def __init__(self, places: List[Tuple[Attachment, int]], wait_s: float, log: RateLimitedLog) -> None:
        self._places, self._log = places, log
        self._is_there = False  # the thread's last answer
        self._is_known = False  # a keeper has answered
        self._has_looked = False  # the first prompt of an engine may come before the thread's first look
        self._queue: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        if wait_s > 0:
            self._thread = threading.Thread(target=self._run, name="cachalot-storage", daemon=True)
            self._thread.start()

    def ask(self, keys: bytes, wait_s: float) -> Optional[Question]:
        """Returns nothing if there is no storage, as far as is known. Costs some microseconds."""
        if self._thread is None or self._has_looked and not self._is_there:
            return None
        question = Question(keys, wait_s)
        self._queue.put(question)
        return question

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(_END)
            self._thread.join(_CLOSE_S)
            self._thread = None

    def _next(self, is_busy: bool) -> Any:
        try:
            pause = _NAP_S if is_busy else _LOOK_PAUSE_S if self._is_known else _FIRST_PAUSE_S
            return self._queue.get(timeout=pause)
        except queue.Empty:
            return None if is_busy else Question(b"")

    def _run(self) -> None:
        open_questions: List[Question] = [Question(b"")]
        while True:
            open_questions = [question for question in open_questions if not self._settle(question)]
            question = self._next(bool(open_questions))
            if question is _END:
                return
            if question is not None:
                open_questions.append(question)

    def _settle(self, question: Question) -> bool:
        """False: storage that several hosts write is still being asked."""
        try:
            in_pool, blocks, is_asking = self._answer(question.keys)
        except Exception as error:  # whatever it is, the request takes what is in the pool
            self._is_there = self._is_known = False
            self._has_looked = True  # a keeper that hangs is not waited for by each prompt
            in_pool, blocks, is_asking = 0, 0, False
            self._log.warning("storage", "the storage behind the pool cannot be asked: %s", error)
        self._has_looked = self._has_looked or self._is_known
        question.patience_s = max(question.wait_s, _ANSWER_S)
        if is_asking and question.is_open():
            return False
        question.in_pool, question.blocks = in_pool, blocks
        return True

    def _call(self, place: int, client: Any, question: Callable[[Any], Any]) -> Any:
        try:
            return question(client)
        except Exception as error:
            self._places[place][0].failed(client, error)
            raise

    def _answer(self, keys: bytes) -> Tuple[int, int, bool]:
        """Leading blocks that all places have in the pool, those that they have there or in storage, and whether storage
        may have more."""
        clients = [(attachment.get(), group) for attachment, group in self._places]
        self._is_known = all(client is not None for client, _ in clients)
        if not self._is_known:
            self._is_there = False
            return 0, 0, False
        self._is_there = self._call(0, clients[0][0], lambda client: client.has_storage())
        if not self._is_there or not keys:
            return 0, 0, False
        found = [self._call(i, client, lambda client, group=group: client.begin_prefetch(hashes_of(keys, group)))
                 for i, (client, group) in enumerate(clients)]
        return (min(in_pool for in_pool, _, _ in found), min(in_pool + stored for in_pool, stored, _ in found),
                any(is_asking for _, _, is_asking in found))
