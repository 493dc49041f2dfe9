"""The connector in a worker: copies between the engine's pages and the pool."""

import queue
import threading
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Set, Tuple

import numpy as np

from cachalot import Error
from cachalot.connectors.access.attachment import Attachment
from cachalot.connectors.vllm import spans, weight_updates
from cachalot.connectors.vllm.layout import Cache
from cachalot.connectors.access.log import RateLimitedLog
from cachalot.connectors.vllm.messages import Chain, Load, StepAnswer, Store, hashes_of
from cachalot.connectors.vllm.metrics import GPU_BYTES, ConnectorStats
from cachalot.connectors.vllm.options import Options
from cachalot.connectors.vllm.streams import NoStreams
from cachalot.errors import IoError, NoKeeperError, TimeoutError

#: After a store that the keeper did not answer.
_STORE_PAUSE_S = 1.0


@dataclass
class _Pending:
    """A load that has begun."""

    load: Load
    calls: List[Tuple[int, int, Attachment, Any, Any]]  # group, first block, attachment, client, AsyncCall
    began: float
    is_lost: bool = False


class _StoreThread:
    """Stores one after the other: a block's parent is in the pool before the block."""

    def __init__(self, side: "WorkerSide") -> None:
        self._side = side
        self._queue: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="cachalot-store", daemon=True)
        self._thread.start()

    def put(self, store: Store, mark: Any) -> None:
        """mark: in the engine's stream, after the pages are written."""
        self._queue.put((store, mark))

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            if isinstance(entry, threading.Event):
                entry.set()
                continue
            store, mark = entry
            is_complete = False
            try:
                is_complete = self._side.copy_into_pool(store, mark)
            except Exception as error:  # the job must be answered: its pages are held
                self._side.log.warning("store", "a store failed: %s", error)
            self._side.store_is_done(store, is_complete)

    def drain(self) -> None:
        """Returns when all stores of before have ended."""
        ended = threading.Event()
        self._queue.put(ended)
        while self._thread.is_alive() and not ended.wait(0.1):
            pass

    def close(self, wait_s: float) -> None:
        self._queue.put(None)
        self._thread.join(wait_s)


class WorkerSide:
    """Threads: vLLM's worker, and its own thread for stores."""

    def __init__(self, options: Options, attachments: List[Attachment], stores: bool, log: RateLimitedLog,
                 is_first_rank: bool = True, caches: Optional[List[Cache]] = None, streams: Any = None,
                 first_kv_group: int = 0) -> None:
        """attachments: of each group. What each has made is the cache of each of its groups. None: this worker's cache is
        not supported; it answers that all has failed, because the scheduler may not know.
        caches: of each group; None: a page is a block. streams: of the device that has the pages.
        first_kv_group: the one whose blocks are stored with their tokens."""
        self.options, self.attachments, self.log = options, attachments, log
        self._splits = [cache.split for cache in caches] if caches is not None else [1] * len(attachments)
        self._first_kv_group = first_kv_group
        self._streams = streams if streams is not None else NoStreams()
        self._load_mark: Any = None
        self._has_said_over = False
        self._stores = stores
        self._is_first_rank = is_first_rank
        self._pending: Dict[str, _Pending] = {}
        self._finished: Set[str] = set()
        self._failed: Set[str] = set()
        self._bad_pages: Set[int] = set()
        self._void: Dict[str, int] = {}  # request: attempt whose load failed
        self._aborted: Set[str] = set()  # requests that have ended, but not their loads
        self._no_stores_until = 0.0
        self._lock = threading.Lock()
        self._answer = StepAnswer()
        self._stats = ConnectorStats()
        self._thread = _StoreThread(self)
        weight_updates.at_sleep(self)

    # --- Loads -------------------------------------------------------------------------------------

    def note_step(self, has_loads: bool) -> None:
        """Before the step's forward pass is launched: its loads wait for the work of earlier steps, which may use the
        pages, and not for its own. vLLM begins asynchronous ones after it."""
        self._load_mark = self._streams.mark() if has_loads and self.attachments else None

    def begin_loads(self, loads: List[Load]) -> None:
        if not loads:
            return
        stream = self._streams.behind(self._load_mark) if self._load_mark is not None else None
        begun = [self._begin(load, stream) for load in loads]
        for pending in begun:
            if pending.load.is_async:
                self._pending[pending.load.request] = pending
            else:
                self._end(pending)

    def _pages(self, group: int, pages: List[int]) -> Any:
        """The tensors' pages of vLLM's blocks."""
        split = self._splits[group]
        if split == 1:
            return pages
        return (np.array(pages, np.uint32)[:, None] * split + np.arange(split, dtype=np.uint32)).ravel()

    def _begin(self, load: Load, stream: Any) -> _Pending:
        pending = _Pending(load, [], time.monotonic(), is_lost=not self.attachments)
        for group, attachment in enumerate(self.attachments):
            client, caches = attachment.get_with()
            first = load.chain.from_page(group)
            if first == len(load.chain):
                continue
            if client is None:
                pending.is_lost = True
                break
            try:
                call = client.load_async(caches[group], hashes_of(load.chain.keys, group)[first:],
                                         self._pages(group, load.chain.pages[group][first:]),
                                         timeout=self.options.load_timeout, stream=stream)
            except Exception as error:  # whatever it is, the request is computed
                self._load_failed(attachment, client, error)
                pending.is_lost = True
                break
            pending.calls.append((group, first, attachment, client, call))
        return pending

    def _load_failed(self, attachment: Attachment, client: Any, error: Exception) -> None:
        self._failed_call(attachment, client, error)
        self.log.warning("load", "a load failed, its blocks are computed: %s", error)

    def _failed_call(self, attachment: Attachment, client: Any, error: Exception) -> None:
        if isinstance(error, IoError) and attachment.device is not None:
            # No copy to or from this GPU can be trusted any more, nor may its memory be freed: the client keeps it.
            for one in set(self.attachments):
                one.end(f"the GPU failed in a copy: {error}")
            return
        attachment.failed(client, error)

    def _end(self, pending: _Pending) -> None:
        """Waits for the copies; then says which blocks are right."""
        load, right = pending.load, 0 if pending.is_lost else len(pending.load.chain)
        for group, first, attachment, client, call in pending.calls:
            try:
                loaded = call.result()
            except Exception as error:
                self._load_failed(attachment, client, error)
                # Of other errors the detail is another number, of the system or of a driver.
                loaded = error.detail if isinstance(error, TimeoutError) else 0
            with self._lock:
                self._stats.add("loaded_blocks", loaded)
                self._stats.add("loaded_bytes", loaded * attachment.group.geometry.block_bytes)
            if first + loaded < len(load.chain):
                # A window without its beginning is of no use.
                right = min(right, loaded if first == 0 else 0)
        with self._lock:
            self._stats.add("loads", 1)
            self._stats.add("load_seconds", time.monotonic() - pending.began)
            self._stats.add("failed_loads", right < len(load.chain))
            if not load.is_async:
                self._answer.ended_loads[load.request] = 1
        spans.record(load.trace, "load", pending.began, blocks=len(load.chain), right_blocks=right)
        if right == len(load.chain):
            self._aborted.discard(load.request)
            if load.is_async:
                self._finished.add(load.request)
            return
        with self._lock:
            self._answer.failed_loads[load.request] = load.attempt
            self._answer.right_blocks[load.request] = right if load.chain.has_one_full_table() else 0
        if load.request not in self._aborted:
            self._void[load.request] = load.attempt
        self._aborted.discard(load.request)
        if load.is_async:
            self._finished.add(load.request)
        if load.chain.has_one_full_table():
            self._bad_pages.update(load.chain.pages[0][right:])
        else:  # the whole request is computed
            self._failed.add(load.request)

    def void_loads(self) -> None:
        """What they bring was computed with other weights than this engine's now. Their copies may still be in flight."""
        for pending in self._pending.values():
            pending.is_lost = True

    def _poll(self) -> None:
        for request, pending in list(self._pending.items()):
            if all(call.done() for _, _, _, _, call in pending.calls):
                del self._pending[request]
                self._end(pending)

    def take_results(self) -> Tuple[Set[str], Set[str]]:
        """Requests whose loads have ended, and those of them that failed as a whole."""
        self._poll()
        finished, self._finished = self._finished, set()
        failed, self._failed = self._failed, set()
        return finished, failed

    def take_bad_pages(self) -> Set[int]:
        pages, self._bad_pages = self._bad_pages, set()
        return pages

    # --- Stores ------------------------------------------------------------------------------------

    def begin_stores(self, stores: List[Store]) -> None:
        """After the forward pass is launched: the pages are complete when it is done, and held until the answer."""
        mark = self._streams.mark() if stores and self._stores and self.attachments else None
        for store in stores:
            is_void = self._void.get(store.request, -1) >= store.attempt
            if is_void or not self._stores or not self.attachments:
                self.store_is_done(store, not is_void and bool(self.attachments))
            else:
                self._thread.put(store, mark)

    def copy_into_pool(self, store: Store, mark: Any = None) -> bool:
        is_complete, began = True, time.monotonic()
        if began < self._no_stores_until:
            with self._lock:
                self._stats.add("failed_stores", 1)
            return False
        stream = self._streams.behind(mark) if mark is not None else None
        for group, attachment in enumerate(self.attachments):
            if store.chain.from_page(group) == len(store.chain):
                continue
            tokens = store.tokens if group == self._first_kv_group and self._is_first_rank else None
            is_complete &= self._copy_group(store.chain, group, attachment, tokens, stream)
        with self._lock:
            self._stats.add("stores", 1)
            self._stats.add("store_seconds", time.monotonic() - began)
            self._stats.add("failed_stores", not is_complete)
        spans.record(store.trace, "store", began, blocks=len(store.chain), is_complete=is_complete)
        return is_complete

    def _copy_group(self, chain: Chain, group: int, attachment: Attachment, tokens: Optional[np.ndarray],
                    stream: Any) -> bool:
        client, caches = attachment.get_with()
        first = chain.from_page(group)
        if client is None:
            return False
        parent = chain.parent_of(first)
        try:
            stored = client.store(caches[group], hashes_of(chain.keys, group)[first:],
                                  self._pages(group, chain.pages[group][first:]), stream=stream,
                                  parent=None if parent is None else hashes_of(parent, group)[0],
                                  tokens=None if tokens is None else tokens[first * len(tokens) // len(chain) :],
                                  timeout=self.options.store_timeout)
        except Error as error:
            self._failed_call(attachment, client, error)
            if isinstance(error, (NoKeeperError, TimeoutError)):
                # Each store would wait as long, one after the other, and hold its pages.
                self._no_stores_until = time.monotonic() + _STORE_PAUSE_S
            self.log.warning("store", "a store failed, its blocks are not shared: %s", error)
            return False
        with self._lock:
            self._stats.add("stored_blocks", stored.written)
            self._stats.add("stored_bytes", stored.written * attachment.group.geometry.block_bytes)
        if stored.blocks < len(chain) - first:
            self.log.warning("store", "the pool took %d of %d blocks: %s", stored.blocks, len(chain) - first,
                             stored.reason)
            return False
        return True

    def store_is_done(self, store: Store, is_complete: bool) -> None:
        with self._lock:
            self._answer.finished_jobs[store.job] = 1
            if not is_complete:
                self._answer.incomplete_stores.add(store.request)

    def take_answer(self) -> Optional[StepAnswer]:
        is_over = not self.attachments or any(attachment.is_over for attachment in self.attachments)
        with self._lock:
            if is_over and not self._has_said_over:
                self._has_said_over = self._answer.is_over = True
                self._stats.add("ended_sharing", 1)
            if self._answer.is_empty():
                return None
            answer, self._answer = self._answer, StepAnswer()
        return answer

    def take_stats(self) -> ConnectorStats:
        copied = [attachment.take_counts(GPU_BYTES) for attachment in set(self.attachments) if attachment.device is not None]
        registrations = [seconds for attachment in set(self.attachments) for seconds in attachment.take_registrations()]
        with self._lock:
            self._stats.add("gpu_registrations", len(registrations))
            self._stats.add("gpu_registration_seconds", sum(registrations))
            for counts in copied:
                for name, value in counts.items():
                    self._stats.add(name, value)
            stats, self._stats = self._stats, ConnectorStats()
        return stats

    def forget(self, requests: Set[str]) -> None:
        for request in requests:
            self._void.pop(request, None)
            if request in self._pending:
                self._aborted.add(request)

    def end_copies(self) -> None:
        """The memory of the pages is about to go. Stores end, and what loads have brought is lost."""
        self._thread.drain()
        self.void_loads()
        for pending in self._pending.values():
            for *_, call in pending.calls:
                call.wait()

    def close(self) -> None:
        self._thread.close(self.options.store_timeout)
        for attachment in set(self.attachments):
            attachment.close()
