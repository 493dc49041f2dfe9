"""An L2 adapter of LMCache over a pool: LMCache servers and engines that name the same pool share their objects.

1. No call waits and none raises, except the constructor: an option that is wrong, or a pool that a user must mend. What failed
   is a cleared bit, or a failed store.
2. An object in the pool has the name of all fields of its ObjectKey, and is never another one's bytes: a load counts only if
   the pool's entry was the same before and after the copy.
3. A lock is a promise that the pool may break. It cannot keep an object from eviction for a reader, so a load of a locked
   object may find it gone. Then its bit is cleared, and LMCache computes those tokens. Unlocking does nothing.

Threads: any. close(): no other call is in flight.
"""

import itertools
import logging
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface

from cachalot import Client
from cachalot.connectors.access.attachment import Attachment
from cachalot.connectors.access.log import RateLimitedLog
from cachalot.connectors.lmcache.buffers import Buffers
from cachalot.connectors.lmcache.lane import Lane, Outcome, Task
from cachalot.connectors.lmcache.names import GROUP, name_of
from cachalot.connectors.lmcache.options import parse
from cachalot.errors import NoKeeperError, NotFoundError, TimeoutError

_ATTACH_S = 5.0
#: Stores fail at once for so long after one that got no answer of the keeper: LMCache holds their memory meanwhile.
_STORE_PAUSE_S = 1.0


class CachalotL2Adapter(L2AdapterInterface):
    """Raises InvalidArgumentError: an option; the errors of a pool that cannot be used: permission, format."""

    def __init__(self, adapter_params: Dict[str, Any], l1_memory_desc: Any = None) -> None:
        """l1_memory_desc: LMCache's L1 buffer; None: it has none, or several."""
        super().__init__()
        options = parse(adapter_params)
        self._log = RateLimitedLog(logging.getLogger(__name__))
        l1: Optional[Tuple[int, int]] = None
        if l1_memory_desc is not None and l1_memory_desc.ptr and l1_memory_desc.size > 0:
            l1 = (l1_memory_desc.ptr, l1_memory_desc.size)
        self._stores_at = 0.0
        self._is_closed = False
        self._close_lock = threading.Lock()
        self._attachment = Attachment(options, GROUP, self._log, lambda client: Buffers(client, l1), counts_prompts=False)
        self._attachment.attach(_ATTACH_S)
        numbers = itertools.count()
        self._stores = Lane("store", options.workers, self._store, numbers, self._lane_failed, self._note_stored)
        self._lookups = Lane("lookup", 1, self._lookup, numbers, self._lane_failed, lambda task: None)
        self._loads = Lane("load", options.workers, self._load, numbers, self._lane_failed, self._note_loaded)
        self._lanes = (self._stores, self._lookups, self._loads)

    # --- Work of the lanes -------------------------------------------------------------------------

    def _failed(self, what: str, client: Client, error: Exception) -> None:
        self._attachment.failed(client, error)
        self._log.warning(what, "a %s failed: %s", what, error)

    def _lane_failed(self, what: str, error: Exception) -> None:
        self._log.warning(what, "a %s failed: %s", what, error)

    def _store(self, keys: Sequence[Any], objects: Sequence[Any]) -> List[Outcome]:
        client, buffers = self._attachment.get_with()
        outcomes: List[Outcome] = []
        if client is None:
            return outcomes
        for key, memory_object in zip(keys, objects):
            if self._is_closed or time.monotonic() < self._stores_at:
                break
            try:
                outcomes.append(buffers.put(name_of(key), memory_object))
            except Exception as error:
                outcomes.append(None)
                if isinstance(error, (NoKeeperError, TimeoutError)):
                    self._stores_at = time.monotonic() + _STORE_PAUSE_S
                self._failed("store", client, error)
        return outcomes

    def _lookup(self, keys: Sequence[Any], objects: Sequence[Any]) -> List[Outcome]:
        client = self._attachment.get()
        if client is None:
            return []
        try:
            return [0 if found else None for found in client.exists([name_of(key) for key in keys])]
        except Exception as error:
            self._failed("lookup", client, error)
            return []

    def _load(self, keys: Sequence[Any], objects: Sequence[Any]) -> List[Outcome]:
        client, buffers = self._attachment.get_with()
        outcomes: List[Outcome] = []
        if client is None:
            return outcomes
        for key, memory_object in zip(keys, objects):
            if self._is_closed:
                break
            try:
                outcomes.append(buffers.get(name_of(key), memory_object))
            except NotFoundError:  # it was evicted since the lookup
                outcomes.append(None)
            except Exception as error:
                outcomes.append(None)
                self._failed("load", client, error)
        return outcomes

    def _note(self, notify: Callable[[], None]) -> None:
        """Tells LMCache's listeners; one that raises must not end the thread."""
        try:
            notify()
        except Exception as error:
            self._log.warning("listener", "a listener of LMCache failed: %s", error)

    def _note_stored(self, task: Task) -> None:
        new = [(key, size) for key, size in zip(task.keys, task.outcomes) if size]
        if new:
            self._note(lambda: self._notify_keys_stored([key for key, _ in new], [size for _, size in new]))

    def _note_loaded(self, task: Task) -> None:
        keys = [task.keys[at] for at in task.done()]
        if keys:
            self._note(lambda: self._notify_keys_accessed(keys))

    # --- Stores ------------------------------------------------------------------------------------

    def get_store_event_fd(self) -> int:
        return self._stores.event_fd

    def submit_store_task(self, keys: List[Any], objects: List[Any]) -> int:
        return self._stores.submit(keys, objects)

    def pop_completed_store_tasks(self) -> Dict[int, L2StoreResult]:
        """A store has succeeded if the pool has all its objects now. The bytes are those that this one has written."""
        return {task.number: L2StoreResult(len(task.done()) == len(task.keys), sum(size or 0 for size in task.outcomes))
                for task in self._stores.take_all()}

    # --- Lookups -----------------------------------------------------------------------------------

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._lookups.event_fd

    def submit_lookup_and_lock_task(self, keys: List[Any], group_layout_descs: Dict[int, Any]) -> int:
        return self._lookups.submit(keys, keys)

    def query_lookup_and_lock_result(self, task_id: int) -> Optional[Bitmap]:
        return self._bitmap(self._lookups, task_id)

    def submit_unlock(self, keys: List[Any]) -> None:
        pass  # 3.

    # --- Loads -------------------------------------------------------------------------------------

    def get_load_event_fd(self) -> int:
        return self._loads.event_fd

    def submit_load_task(self, keys: List[Any], objects: List[Any]) -> int:
        return self._loads.submit(keys, objects)

    def query_load_result(self, task_id: int) -> Optional[Bitmap]:
        return self._bitmap(self._loads, task_id)

    @staticmethod
    def _bitmap(lane: Lane, task_id: int) -> Optional[Bitmap]:
        task = lane.take(task_id)
        if task is None:
            return None
        bitmap = Bitmap(len(task.keys))
        bitmap.batched_set(task.done())
        return bitmap

    # --- State -------------------------------------------------------------------------------------

    def get_usage(self) -> AdapterUsage:
        """Unknown: the pool evicts by itself, and other processes store into it."""
        return AdapterUsage(0, 0)

    def report_status(self) -> Dict[str, Any]:
        """Without a pool the adapter is healthy: it has nothing, and attaches when the pool is there."""
        client = self._attachment.get()
        return {"is_healthy": not self._is_closed and not self._attachment.is_over, "type": type(self).__name__,
                "is_attached": client is not None,
                "statistics": client.statistics.as_dict() if client is not None else {}}

    def close(self) -> None:
        """Waits for the copies in flight, and for a store that waits for the keeper. What is queued fails."""
        with self._close_lock:
            if self._is_closed:
                return
            self._is_closed = True
        for lane in self._lanes:
            lane.end()
        for lane in self._lanes:
            lane.close()
        self._attachment.close()
