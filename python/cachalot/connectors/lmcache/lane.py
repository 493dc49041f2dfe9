"""Tasks of one kind, as LMCache submits them: done by threads of the lane, which tell of each by an eventfd."""

import itertools
import queue
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence

from lmcache.v1.platform import create_event_notifier

#: Bytes of an object; None: it is not there, or the call failed.
Outcome = Optional[int]
#: (keys, objects) of a part of a task.
Work = Callable[[Sequence[Any], Sequence[Any]], List[Outcome]]


class Task:
    """The outcome of each key of a task, when all its parts are done."""

    def __init__(self, number: int, keys: Sequence[Any], objects: Sequence[Any]) -> None:
        self.number, self.keys, self.objects = number, keys, objects
        self.outcomes: List[Outcome] = [None] * len(keys)
        self.parts = 1

    def done(self) -> List[int]:
        """Indices of the keys that were done."""
        return [at for at, outcome in enumerate(self.outcomes) if outcome is not None]


class Lane:
    """A task is split over the threads. What its work raises fails that part.

    Threads: any. close(): no call of another thread is in flight.
    """

    def __init__(self, name: str, threads: int, work: Work, numbers: "itertools.count[int]",
                 failed: Callable[[str, Exception], None], on_done: Callable[[Task], None]) -> None:
        """numbers: of tasks, different in all lanes. failed: told of what the work raises. on_done: called before the
        eventfd says that the task is done; must not raise."""
        self._name, self._work, self._numbers, self._failed, self._on_done = name, work, numbers, failed, on_done
        self._event = create_event_notifier()
        self._queue: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._done: Dict[int, Task] = {}
        self._is_closed = False
        self._threads = [threading.Thread(target=self._run, name=f"cachalot-lmcache-{name}", daemon=True)
                         for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def event_fd(self) -> int:
        return self._event.fileno()

    def submit(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        """objects: one for each key."""
        task = Task(next(self._numbers), keys, objects)
        if self._is_closed:
            return task.number  # LMCache does not ask for it any more
        parts = max(1, min(len(self._threads), len(keys)))
        task.parts = parts
        for part in range(parts):
            self._queue.put((task, len(keys) * part // parts, len(keys) * (part + 1) // parts))
        return task.number

    def take(self, number: int) -> Optional[Task]:
        """A task that is done, once."""
        with self._lock:
            return self._done.pop(number, None)

    def take_all(self) -> List[Task]:
        with self._lock:
            done, self._done = self._done, {}
        return list(done.values())

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            task, begin, end = item
            if not self._is_closed:
                try:
                    outcomes = self._work(task.keys[begin:end], task.objects[begin:end])
                    task.outcomes[begin:end] = (outcomes + [None] * (end - begin))[:end - begin]
                except Exception as error:  # whatever it is, these keys are failed
                    self._failed(self._name, error)
            with self._lock:
                task.parts -= 1
                if task.parts != 0:
                    continue
            self._on_done(task)
            with self._lock:
                self._done[task.number] = task
            self._event.notify()

    def end(self) -> None:
        """What is queued fails; what runs is completed. close() waits for it."""
        self._is_closed = True
        for _ in self._threads:
            self._queue.put(None)

    def close(self) -> None:
        self.end()
        for thread in self._threads:
            thread.join()
        self._event.close()
