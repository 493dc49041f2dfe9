"""SGLang's UnifiedCacheLinker over a pool: pages go between the engine's own KV buffers and the pool, with no tier between.

SGLang asks for three things. `lookup`: how much of a prompt's tail the pool has, while the prompt waits. `load`: before the
forward pass that needs it, into slots that no other request can see. `offload`: after a forward pass; the slots stay locked
until its result is taken.

1. A load ends inside `load`. SGLang aborts a request whose load fails later; one that is refused here is computed.
2. No call raises: an exception would end SGLang's scheduler.
3. Results of offloads are taken in the order of the offloads. One worker runs them in that order.
4. Ranks answer alike. One that had taken an offload would wait for the others, and hold other slots than they.
5. After an update of the weights the keys get a random part: the engine shares with no other one, and finds nothing of before.
   Until SGLang's own cache is flushed nothing is loaded or stored: pages that are computed on old ones are wrong, too.

Threads: SGLang's scheduler.
"""

import logging
import os
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Deque, Dict, List, Optional, Set

import numpy as np
import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import UnifiedCacheLinker

from cachalot.connectors.access.attachment import Attachment
from cachalot.connectors.access.group import UnsupportedCacheError
from cachalot.connectors.access.keeper import SharedKeeper
from cachalot.connectors.access.log import RateLimitedLog
from cachalot.connectors.sglang import parents, weight_updates
from cachalot.connectors.sglang.metrics import Metrics
from cachalot.connectors.sglang.namespace import Place, engine_memory, group_of, hashes_of, pages_of
from cachalot.connectors.sglang.options import LINKER_FLAG, Options, parse
from cachalot.errors import IoError, NoKeeperError, TimeoutError

_ATTACH_S = 5.0
_MOST_ASKED = 1024
_MOST_ORPHANS = 1024
#: Nothing is stored for so long after a store that got no answer of the keeper.
_STORE_PAUSE_S = 1.0
#: What becomes of the request, or of its pages, after each call that may fail.
_AFTER_FAILURE = {"lookup": "the prompt is computed", "load": "the prompt is computed", "store": "its pages are not shared",
                  "question about storage": "only what is in the pool is used"}
_POLL_S = 0.002
#: Whether there is storage is asked so often.
_LOOK_PAUSE_S = 5.0


def _check(server_args: Any, params: Any, components: Any) -> None:
    """Refuses by name what has state beside the pages, and what divides prompts among ranks."""
    others = sorted(component.name for component in components if component.name != "FULL")
    if others:
        raise UnsupportedCacheError(f"a model with {', '.join(others)} state beside its KV pages")
    if params.mtp_draft_device_pools or params.sidecar_draft_device_pools:
        raise UnsupportedCacheError("a draft model, whose KV lies beside,")
    for parallel in (params.attn_cp_size, server_args.dcp_size):
        if parallel != 1:
            raise UnsupportedCacheError(f"context parallelism of {parallel}")
    if params.pp_size != 1:
        # SGLang takes what each stage finds for itself: stages that find different lengths would compute different tokens.
        raise UnsupportedCacheError(f"pipeline parallelism of {params.pp_size}")


@dataclass
class Offload:
    """Pages on their way to the pool."""

    client: Any
    call: Any  # None: there is no pool, or it does not take them
    slots: int
    began: float
    parent: Optional[str]
    keys: List[str]


class LoadedAtOnce:
    """SGLang's counter of loaded layers, for loads that have ended before the forward pass begins."""

    def set_consumer(self, index: int) -> None:
        pass

    def wait_until(self, layer: int) -> None:
        pass


class CachalotLinker(UnifiedCacheLinker):
    """Raises InvalidArgumentError: an option; UnsupportedCacheError: a model or a cache that cannot be shared."""

    def __init__(self, server_args: Any, params: Any, *, components: Any, extra_config: Optional[Dict[str, Any]] = None,
                 forward_stream: Any = None) -> None:
        self.log = RateLimitedLog(logging.getLogger(__name__))
        self.options: Options = parse(extra_config or {}, LINKER_FLAG)
        self.forward_stream = forward_stream
        self.layer_done_counter = LoadedAtOnce()
        self.pools: Dict[Any, Any] = {PoolName.KV: None}
        self._group_of_ranks = params.attn_tp_cache_group or params.tp_cache_group
        self._ranks, rank = 1, 0
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self._ranks = torch.distributed.get_world_size(group=self._group_of_ranks)
            rank = torch.distributed.get_rank(group=self._group_of_ranks)
        _check(server_args, params, components)
        self._page_tokens = params.page_size
        cache = params.token_to_kv_pool_allocator.get_kvcache()
        place = Place(rank, self._ranks, params.pp_rank, params.pp_size)
        group = group_of(server_args, cache, place, self.options.weights == "all", self.options.salt)
        self._metrics = Metrics(server_args.enable_metrics, place, group.geometry.block_bytes)
        tensors, strides = engine_memory(cache)
        self._pages = tensors[0].shape[0] // self._page_tokens
        device = None if tensors[0].device.type == "cpu" else tensors[0].device.index
        self.log.info("namespace %s", group.namespace)
        self._keeper: Optional[SharedKeeper] = None
        if self.options.create is not None:
            self._keeper = SharedKeeper(self.options, self.options.create, [group], self.log)

        def register(client: Any) -> Any:
            return client.register_cache(None, tensors, pages=self._pages, strides=strides, device=device)

        self._attachment = Attachment(self.options, group, self.log, register, device, counts_prompts=False)
        self._attachment.attach(_ATTACH_S)
        self._mask = np.zeros(2, np.uint64)  # of keys; random after an update of the weights
        self._updates = weight_updates.watch(server_args)
        weight_updates.at_release(self._end_copies)
        self._is_stale = False  # the weights were updated, and SGLang's cache has not been flushed since
        self._asked: Dict[str, None] = {}  # requests that have waited for storage, the oldest first
        self._looks_at, self._storage = 0.0, False
        self._queued: Set[str] = set()  # requests whose load has ended, and whose batch has not begun
        self._batch = -1
        self._offloads: Deque[Offload] = deque()
        self._held_slots = 0
        self.parent: Optional[str] = None  # the page before those of the next offload
        self._orphans: Dict[str, None] = {}  # pages that the pool did not have as parents, the oldest first
        parents.watch()
        self._stores_at = 0.0

    def _hashes(self, keys: List[str]) -> np.ndarray:
        return hashes_of(keys) ^ self._mask

    def _note_update(self) -> None:
        updates = weight_updates.count()
        if updates != self._updates:
            self._updates, self._is_stale = updates, True
            self._mask = np.frombuffer(os.urandom(16), "<u8")
            self.log.info("the weights were updated: this engine shares with no other one from now on")

    # --- Lookup and load ---------------------------------------------------------------------------

    def lookup(self, rid: str, transfers: List[Any]) -> List[int]:
        self._note_update()
        keys = transfers[0].keys
        client = self._attachment.get()
        if client is None or not keys or self._is_stale:
            return []
        began, found = time.monotonic(), 0
        try:
            found = self._find(client, rid, self._hashes(keys))
        except Exception as error:  # whatever it is, the request is computed
            self._failed("lookup", client, error)
        self._metrics.looked_up(found, time.monotonic() - began)
        self._metrics.count_prompts(self._attachment)
        return list(range(1, found + 1))

    def _find(self, client: Any, rid: str, hashes: np.ndarray) -> int:
        """Leading blocks that are in the pool. A request that SGLang asks for again waits for storage only once."""
        found = client.lookup(hashes)
        if found == len(hashes) or rid in self._asked:
            return found
        try:
            if not self._has_storage(client):
                return found
            self._asked[rid] = None
            if len(self._asked) > _MOST_ASKED:
                del self._asked[next(iter(self._asked))]
            return client.prefetch(hashes, self.options.storage_wait)[0]
        except Exception as error:  # what the pool has is a hit without the keeper
            self._failed("question about storage", client, error)
            return found

    def _has_storage(self, client: Any) -> bool:
        """As the keeper has said not long ago. One that does not answer is not asked by each request."""
        if self.options.storage_wait == 0:
            return False
        now = time.monotonic()
        if now >= self._looks_at:
            self._looks_at, self._storage = now + _LOOK_PAUSE_S, False
            self._storage = client.has_storage()
        return self._storage

    def load(self, rid: str, transfers: List[Any]) -> bool:
        transfer = transfers[0]
        has_all = self._load(transfer.keys, transfer.device_indices)
        if self._ranks > 1:
            # SGLang's ranks go on together: they take the blocks all, or none of them does.
            landed = torch.tensor([int(has_all)], dtype=torch.int)
            torch.distributed.all_reduce(landed, torch.distributed.ReduceOp.MIN, group=self._group_of_ranks)
            has_all = bool(landed.item())
        if has_all:
            self._queued.add(rid)
        return has_all

    def _load(self, keys: List[str], slots: torch.Tensor) -> bool:
        self._note_update()  # since the lookup
        client, cache = self._attachment.get_with()
        if client is None or self._is_stale:
            return False
        began, loaded = time.monotonic(), 0
        try:
            loaded = client.load(cache, self._hashes(keys), pages_of(slots, self._page_tokens), timeout=self.options.load_timeout,
                                 stream=self._stream())
        except Exception as error:  # whatever it is, the request is computed
            self._failed("load", client, error)
        self._metrics.loaded(loaded, len(keys), time.monotonic() - began)
        self._metrics.count_prompts(self._attachment)
        return loaded == len(keys)

    def _stream(self) -> Any:
        """Whose work uses the pages: copies run after it."""
        return self.forward_stream if self._attachment.device is not None else None

    def start_layer_wise_loading(self) -> int:
        if not self._queued:
            return -1
        self._queued.clear()
        self._batch += 1
        return self._batch

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        return True

    def cancel_queued_load(self, rid: str) -> bool:
        was_queued = rid in self._queued
        self._queued.discard(rid)
        return was_queued

    # --- Offload -----------------------------------------------------------------------------------

    def offload(self, transfers: List[Any], session_id: Optional[str] = None) -> bool:
        """False only for reasons that all ranks have. What one of them cannot store has failed: SGLang asks what all say."""
        keys, slots, parent = transfers[0].keys, transfers[0].device_indices, self.parent
        self.parent = None
        if not keys:
            return False
        if self._held_slots + len(slots) > self.options.store_held * self._pages * self._page_tokens and self._offloads:
            self._metrics.skipped_store()
            return False  # SGLang offers them again
        parent = None if parent in self._orphans else parent
        began, client, call = time.monotonic(), *self._begin_store(keys, slots, parent)
        self._held_slots += len(slots)
        self._offloads.append(Offload(client, call, len(slots), began, parent, keys))
        return True

    def _begin_store(self, keys: List[str], slots: torch.Tensor, parent: Optional[str]) -> Any:
        """A client, and its call; None: nothing is stored."""
        self._note_update()
        client, cache = self._attachment.get_with()
        if client is None or self._is_stale or time.monotonic() < self._stores_at:
            return client, None
        try:
            return client, client.store_async(
                cache, self._hashes(keys), pages_of(slots, self._page_tokens), timeout=self.options.store_timeout,
                parent=None if parent is None else self._hashes([parent])[0], stream=self._stream())
        except Exception as error:  # whatever it is, the pages are not shared
            self._failed("store", client, error)
            return client, None

    def num_completed_offloads(self) -> int:
        done = 0
        for one in self._offloads:
            if one.call is not None and not one.call.done():
                break
            done += 1
        return done

    def pop_completed_offload(self) -> bool:
        one = self._offloads.popleft()
        self._held_slots -= one.slots
        if one.call is None:
            return False
        stored, pages, error = 0, one.slots // self._page_tokens, None
        try:
            stored = one.call.result()
        except Exception as caught:
            error = caught
            self._failed("store", one.client, error)
        self._metrics.stored(stored, pages, time.monotonic() - one.began)
        if stored == pages:
            self._orphans.pop(one.keys[-1], None)
        elif error is None and one.parent is not None and one.call.reason == "refused":
            # Evicted before its child came. SGLang offers the child again.
            self._orphans[one.parent] = None
            if len(self._orphans) > _MOST_ORPHANS:
                del self._orphans[next(iter(self._orphans))]
        elif error is None:
            self.log.warning("store", "the pool took %d of %d blocks: %s", stored, pages, one.call.reason)
        return stored == pages

    # --- The end -----------------------------------------------------------------------------------

    def _failed(self, what: str, client: Any, error: Exception) -> None:
        if isinstance(error, IoError) and self._attachment.device is not None:
            # No copy to or from this GPU can be trusted any more, nor may its memory be freed: the client keeps it.
            self._attachment.end(f"the GPU failed in a copy: {error}")
            return
        self._attachment.failed(client, error)
        if what == "store" and isinstance(error, (NoKeeperError, TimeoutError)):
            # Each store would wait as long, one after the other, and hold its slots.
            self._stores_at = time.monotonic() + _STORE_PAUSE_S
        self.log.warning(what, "a %s failed, %s: %s", what, _AFTER_FAILURE[what], error)

    def _end_copies(self) -> None:
        """Waits for the offloads. All of them end within the time of one: a keeper that hangs must not hold up a flush for each."""
        until = time.monotonic() + self.options.store_timeout
        calls = [one.call for one in self._offloads if one.call is not None]
        for call in calls:
            while not call.done() and time.monotonic() < until:
                time.sleep(_POLL_S)
            if not call.done():
                call.cancel()
        for call in calls:
            call.wait()

    def _await_offloads(self) -> None:
        self._end_copies()
        while self._offloads:
            self.pop_completed_offload()

    def reset(self) -> None:
        """SGLang's cache is flushed. What the pool has stays right, unless the weights were updated."""
        self._note_update()
        self._is_stale = False
        self._await_offloads()
        self._queued.clear()
        self._batch = -1

    def close(self) -> None:
        self._await_offloads()
        self._attachment.close()
        if self._keeper is not None:
            self._keeper.close()
