"""The connector in vLLM's scheduler: which blocks a request takes from the pool, and which ones it shares."""

import hashlib
import math
import os
import time
from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, List, Optional, Tuple

import numpy as np

from cachalot.connectors.access.attachment import Attachment
from cachalot.connectors.vllm.held_pages import HeldPages
from cachalot.connectors.access.log import RateLimitedLog
from cachalot.connectors.vllm.messages import KEY_BYTES, Chain, Load, StepAnswer, StepMetadata, Store, hashes_of, keys_of
from cachalot.connectors.vllm.metrics import ConnectorStats
from cachalot.connectors.vllm.options import Options
from cachalot.connectors.vllm.prefill_times import PrefillTimes
from cachalot.connectors.vllm.reasons import why_no_hits
from cachalot.connectors.vllm.storage import Question, StorageQuestions
from cachalot.connectors.access.weights import digest_of_folder, state_of_folder
from cachalot.connectors.vllm import spans, weight_updates

#: Until a miss is explained, the pool's namespaces are read at most so often.
_EXPLAIN_PAUSE_S = 10.0
#: A waiting request is asked for in every step; its answer is used for so long.
_LOOKUP_AGE_S = 0.5
#: Blocks that a prefill engine still stores are waited for while some come within this time.
_PROMISE_S = 1.0
_LEAST_WAIT_S = 0.1  # for blocks in storage, however fast this engine computes
_PROMISED_AGE_S = 0.02  # a client may promise what it likes: a lookup in each step would slow the others
#: In kv_transfer_params: so many tokens of the prompt are in the pool, or on their way.
_STORED_TOKENS = "cachalot_stored_tokens"
#: There: this session, as that of an agent, will continue the prompt within so many seconds.
_SESSION, _SESSION_SECONDS = "cachalot_session", "cachalot_session_seconds"
_SESSION_DEFAULT_S = 600
#: There, as vLLM's OffloadingConnector takes them: a request takes no more tokens from the pool, beside those that the
#: engine has itself, and stores no more of its first ones.
_MOST_LOADED, _MOST_STORED = "max_load_tokens", "max_offload_tokens"


@dataclass
class _Request:
    request: Any  # vllm.v1.request.Request
    adapter: bytes  # digest of its LoRA adapter, and the engine's era; empty: none
    reloads: int = 0  # of its adapter, when the request came
    most_loaded: float = math.inf  # blocks
    most_stored: float = math.inf
    keys: bytearray = field(default_factory=bytearray)
    shared: int = 0  # leading blocks that are in the pool, or on their way
    attempt: int = 0
    is_stored_again: bool = False
    may_load: bool = True
    may_store: bool = True
    is_loading: bool = False
    found: Tuple[int, int, float] = (-1, 0, 0.0)  # of so many blocks, so many were in the pool, when
    plan: Optional[Tuple[int, int]] = None  # blocks [first, last) that the last lookup promised
    promised: int = 0  # blocks that a prefill engine says it stores, or that storage brings
    question: Optional[Question] = None  # to the storage behind the pool
    has_asked: bool = False
    since: Optional[float] = None  # when it was looked up first
    is_answered: bool = False
    waits_until: float = math.inf
    progress: Tuple[int, float] = (-1, 0.0)  # of the promised blocks, so many were there first when
    # What count_prompt() takes, once for the request.
    asked: int = 0
    load: Optional[Tuple[int, int]] = None  # blocks [first, last) that are being loaded
    right: Optional[int] = None  # of these, so many are used: a worker's load has failed
    stored: Tuple[int, int] = (0, 0)  # blocks [first, last) that storage brings
    is_allocated: bool = False
    is_counted: bool = False

    def update_keys(self) -> int:
        """Returns how many blocks have a key."""
        new = self.request.block_hashes[len(self.keys) // KEY_BYTES :]
        if new and self.adapter:
            new = [hashlib.blake2b(digest + self.adapter, digest_size=KEY_BYTES).digest() for digest in new]
        if new:
            self.keys += keys_of(new)
        return len(self.keys) // KEY_BYTES

    def chain(self, first: int, last: int, tables: Tuple[List[int], ...]) -> Chain:
        parent = None if first == 0 else bytes(self.keys[(first - 1) * KEY_BYTES : first * KEY_BYTES])
        keys = bytes(self.keys[first * KEY_BYTES : last * KEY_BYTES])
        return Chain(keys, tuple(list(table[first:last]) for table in tables), parent)


@dataclass
class _Adapter:
    state: Any  # of its path and files, and how often it was replaced; None: it is shared with no engine
    digest: Optional[bytes]


def takes_hits(request: Any) -> bool:
    """False: it needs its whole prompt computed, as for logprobs of the prompt's tokens or for the states of all of them.
    vLLM leaves such a request out of its own cache only."""
    return not request.skip_reading_prefix_cache


def has_final_hashes(request: Any) -> bool:
    """False: a session that takes its prompt in pieces. Each piece replaces the last token of the answer before it, and
    vLLM keeps the hash of a block that ended with that token."""
    return not request.resumable


def _params_of(request: Any) -> Dict[str, Any]:
    return getattr(request, "kv_transfer_params", None) or {}


def _limit(params: Dict[str, Any], name: str, block_tokens: int, log: RateLimitedLog) -> float:
    """In blocks. It comes from outside, so what is no number of tokens is no limit, as in vLLM."""
    value = params.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value // block_tokens
    if value is not None:
        log.warning("limit", "kv_transfer_params: %s is %.60r; expected a number of tokens, so the request has no limit", name, value)
    return math.inf


def _reloads_of(request: Any) -> int:
    lora = getattr(request, "lora_request", None)
    return 0 if lora is None else weight_updates.reloads(lora.lora_int_id)


class SchedulerSide:
    """Threads: vLLM's scheduler only."""

    def __init__(self, options: Options, places: List[Tuple[Attachment, int]], block_tokens: int, workers: int,
                 may_load: bool, may_store: bool, is_async: bool, log: RateLimitedLog,
                 state_groups: FrozenSet[int] = frozenset()) -> None:
        """places: where a block must be to count as a hit: each namespace of a rank, with the number of a group.
        state_groups: those with state, which a hit needs for its last block only. Without pages of their own in a store
        of several blocks."""
        self._options, self._places, self._log = options, places, log
        self._state_places = [place for place in places if place[1] in state_groups]
        self._kv_places = [place for place in places if place[1] not in state_groups]
        self._state_groups = state_groups
        self._groups = len({group for _, group in places})
        self._block_tokens = block_tokens
        self._may_load, self._may_store, self._is_async = may_load, may_store, is_async
        self._requests: Dict[str, _Request] = {}
        self._ending: Dict[str, _Request] = {}  # finished before their synchronous load was answered
        self._adapters: Dict[int, _Adapter] = {}  # by lora_int_id
        self._adapter_files: Dict[str, Any] = {}  # path: what was there first; vLLM's own blocks are found by the path
        self._era = b""  # after reset(): random, so that no block of before is found
        self._is_stale = False  # the weights were updated, and vLLM still has KV of before
        self._voids_loads = False
        self._doubtful: Dict[str, int] = {}  # request with a synchronous load: workers that have not answered
        self._workers = workers
        self._held = HeldPages(workers)
        self._next_job = 0
        self._loads: List[Load] = []
        self._last_stores: List[Store] = []  # of requests that have finished
        self._next_explanation = 0.0
        self._has_explained_short = False
        self._stats = ConnectorStats()
        self._prefills = PrefillTimes()
        # The storage brings leading blocks, and states have gaps.
        self._storage = StorageQuestions(places, 0 if self._state_places else options.storage_wait, log)

    def bind_pages(self, block_pool: Any) -> None:
        self._held.bind(block_pool)

    def _request(self, request: Any) -> _Request:
        state = self._requests.get(request.request_id)
        if state is None:
            state = self._requests[request.request_id] = self._new_state(request)
            tokens = _params_of(request).get(_STORED_TOKENS)
            state.promised = tokens // self._block_tokens if isinstance(tokens, int) else 0
        return state

    def _new_state(self, request: Any, **kept: Any) -> _Request:
        """kept: of the request's state before."""
        adapter = self._adapter_of(request)
        state = _Request(request, (adapter or b"") + self._era, _reloads_of(request), **kept)
        params = _params_of(request)
        state.most_loaded = _limit(params, _MOST_LOADED, self._block_tokens, self._log)
        state.most_stored = _limit(params, _MOST_STORED, self._block_tokens, self._log)
        if not has_final_hashes(request):
            state.most_loaded = state.most_stored = 0
        elif not takes_hits(request):
            state.most_loaded = 0
        state.may_load, state.may_store = (may and adapter is not None for may in (state.may_load, state.may_store))
        return state

    def _adapter_of(self, request: Any) -> Optional[bytes]:
        """None: the blocks of this adapter are shared with no engine, this one included."""
        lora = getattr(request, "lora_request", None)
        if lora is None:
            return b""
        if getattr(lora, "load_inplace", False):
            weight_updates.note_reload(lora.lora_int_id)
        known, state, digest = self._adapters.get(lora.lora_int_id), None, None
        try:
            files = state_of_folder(lora.lora_path)
            now = lora.lora_path, files, weight_updates.reloads(lora.lora_int_id)
            if known is not None and known.state == now:
                return known.digest
            others = weight_updates.first_files(lora.lora_int_id), self._adapter_files.setdefault(lora.lora_path, files)
            if known is not None or now[2] != 0 or any(other not in (None, files) for other in others):
                raise OSError("its path or its files have changed, and which of them a worker has loaded is not known")
            state, digest = now, digest_of_folder(lora.lora_path, self._options.weights == "all").encode()
            self._log.info("adapter %s: %s; only engines with the same files share its blocks", lora.lora_name,
                           hashlib.sha256(digest).hexdigest()[:16])
        except OSError as error:
            self._log.warning("adapter", "the adapter %s is shared with no engine: %s", lora.lora_name, error)
            weight_updates.note_reload(lora.lora_int_id)  # so are the blocks that its requests compute from now on
        self._adapters[lora.lora_int_id] = _Adapter(state, digest)
        return digest

    # --- Loads -------------------------------------------------------------------------------------

    def _found(self, state: _Request, blocks: int) -> int:
        """How many of a request's leading blocks all ranks and groups have in the pool."""
        of, found, at = state.found
        now = time.monotonic()
        if of == blocks and now - at < (_PROMISED_AGE_S if state.promised else _LOOKUP_AGE_S):
            return found
        keys = bytes(memoryview(state.keys)[: blocks * KEY_BYTES])
        found = blocks
        for attachment, group in self._kv_places:
            client = attachment.get()
            try:
                found = client.lookup(hashes_of(keys, group)[:found]) if client is not None else 0
            except Exception as error:  # whatever it is, the request is computed
                attachment.failed(client, error)
                self._log.warning("lookup", "a lookup failed: %s", error)
                found = 0
            if found == 0:
                break
        if self._state_places:
            found = self._last_state(keys, found)
        state.found = (blocks, found, now)
        self._stats.add("lookups", 1)
        self._stats.add("lookup_seconds", time.monotonic() - now)
        if found == 0 and now >= self._next_explanation:
            self._explain_miss(now)
        return found

    def _last_state(self, keys: bytes, blocks: int) -> int:
        """How many of these blocks a hit may have: the last one's end is where all groups with state have theirs."""
        places = [(attachment, hashes_of(keys, group)) for attachment, group in self._state_places]
        last, agreed = blocks, 0
        while last > 0 and agreed < len(places):  # one after the other, until all say the same
            attachment, hashes = places[0]
            places = places[1:] + places[:1]
            client = attachment.get()
            try:
                found = client.lookup_last(hashes[:last]) if client is not None else 0
            except Exception as error:  # whatever it is, the request is computed
                attachment.failed(client, error)
                self._log.warning("lookup", "a lookup failed: %s", error)
                return 0
            agreed = agreed + 1 if found == last else 1
            last = found
        return last

    def _explain_short(self, tokens: int) -> None:
        """Once: the first prompt that a user tries is often a sentence."""
        if not self._has_explained_short:
            self._has_explained_short = True
            self._log.info("no hits for a prompt of %d tokens: the pool shares whole blocks of %d tokens, and at least one "
                           "token is computed; more prompts of this kind are not logged", tokens, self._block_tokens)

    def _explain_miss(self, now: float) -> None:
        """Once: a pool that others fill and that has nothing for this engine puzzles its user."""
        self._next_explanation = now + _EXPLAIN_PAUSE_S
        own = [attachment.group.namespace for attachment, _ in self._places]
        client = self._places[0][0].get()
        try:
            reason = why_no_hits(own, client.namespaces()) if client is not None else None
        except Exception as error:
            self._log.warning("names", "the pool's namespaces cannot be read: %s", error)
            return
        if reason is not None:
            self._next_explanation = math.inf
            self._log.info("no hits for the first prompt: %s", reason)

    def _waits(self, state: _Request, blocks: int, found: int) -> bool:
        """Whether a prefill engine's store of these blocks, or the storage's, is still in flight."""
        now, (most, since) = time.monotonic(), state.progress
        if found > most:
            state.progress = most, since = found, now
        if found >= min(state.promised, blocks) or now - since > _PROMISE_S or now > state.waits_until:
            state.promised = 0
        return state.promised > 0

    def _wait_s(self, blocks: int) -> float:
        """Blocks that come later than they could be computed are worth no wait."""
        computing_s = self._prefills.seconds_of(blocks * self._block_tokens)
        limit_s = math.inf if computing_s is None else max(computing_s, _LEAST_WAIT_S)
        return min(self._options.storage_wait, limit_s)

    def _asks_storage(self, state: _Request, blocks: int) -> bool:
        """Whether an answer of the storage is still awaited."""
        if not state.has_asked:
            state.has_asked = True
            wait_s = self._wait_s(blocks - state.found[1])
            state.question = self._storage.ask(bytes(memoryview(state.keys)[: blocks * KEY_BYTES]), wait_s)
        question = state.question
        if question is None:
            return False
        if question.is_open():
            return True
        state.question = None
        if question.blocks is not None:
            state.stored = question.in_pool, question.blocks
        if question.blocks is not None and question.blocks > max(state.promised, state.found[1]):
            state.promised, state.waits_until = question.blocks, question.asked + question.wait_s
            self._stats.add("storage_waits", 1)
        return False

    def matched(self, request: Any, computed_tokens: int, may_wait: bool = True) -> Tuple[Optional[int], bool]:
        """None tokens: vLLM asks again in the next step. may_wait: for blocks that are on their way into the pool."""
        if not self._is_fresh() or not self._may_load:
            return 0, False
        state = self._request(request)
        state.plan = None
        # One token at least is computed: its logits are needed.
        blocks = min(state.update_keys(), (request.num_tokens - 1) // self._block_tokens)
        if request.num_tokens <= self._block_tokens:
            self._explain_short(request.num_tokens)
        first = computed_tokens // self._block_tokens
        blocks = int(min(blocks, first + state.most_loaded))
        state.asked = max(blocks - first, 0)
        if not state.may_load or blocks <= first:
            return 0, False
        if state.since is None:
            state.since = time.monotonic()
        last = self._found(state, blocks)
        if may_wait and last < blocks and self._asks_storage(state, blocks):
            return None, False
        if may_wait and state.promised and self._waits(state, blocks, max(first, last)):
            return None, False
        state.shared = max(state.shared, last)
        if not state.is_answered:
            state.is_answered = True
            spans.record(spans.headers_of(request), "lookup", state.since, asked_blocks=blocks - first,
                         found_blocks=max(last - first, 0))
        if last <= first:
            return 0, False
        state.plan = (first, last)
        return (last - first) * self._block_tokens, self._is_async

    def allocated(self, request: Any, blocks: Any, external_tokens: int) -> None:
        state = self._requests.get(request.request_id)
        if state is None:
            return
        state.is_allocated = True
        if external_tokens == 0 or state.plan is None:
            if state.load is None:
                self._count(state)
            return
        first, last = state.plan[0], state.plan[0] + external_tokens // self._block_tokens
        state.plan = None
        state.is_loading, state.load = self._is_async, (first, last)
        chain = state.chain(first, last, blocks.get_block_ids())
        self._loads.append(Load(request.request_id, state.attempt, chain, self._is_async, spans.headers_of(request)))

    # --- Hit rate ----------------------------------------------------------------------------------

    def _count(self, state: _Request, from_peers: int = 0, loaded: int = 0) -> None:
        """Once a request, whatever is tried again: in blocks of the prompt, whatever the number of ranks and groups.

        loaded: blocks of state.load that are used.
        """
        (first, _), state.load, state.right = state.load or (0, 0), None, None
        if state.is_counted or state.asked == 0:
            return
        state.is_counted = True
        from_storage = max(0, min(first + loaded, state.stored[1]) - max(first, state.stored[0]))
        used = {"from_pool": loaded - from_storage, "from_peers": from_peers, "from_storage": from_storage}
        asked = max(state.asked, loaded + from_peers)
        self._stats.add_prompt(asked, **used)
        attachment = self._places[0][0]
        client = attachment.get()
        try:
            if client is not None:
                client.count_prompt(asked, **used)
        except Exception as error:  # whatever it is, the request goes on
            attachment.failed(client, error)

    def begin_transfer(self, request: Any) -> None:
        """The request's blocks come from another engine, and not from the pool."""
        state = self._requests.get(request.request_id)
        if state is not None:
            state.is_allocated = True

    def transferred(self, request_id: str, blocks: int) -> None:
        """A transfer has ended. After one that failed, vLLM asks again, or computes."""
        state = self._requests.get(request_id)
        if state is not None and blocks != 0:
            self._count(state, from_peers=blocks)

    def _loaded(self, request_id: str) -> None:
        """The load has ended on all workers."""
        state = self._requests.get(request_id) or self._ending.pop(request_id, None)
        if state is not None and state.load is not None:
            first, last = state.load
            self._count(state, loaded=last - first if state.right is None else state.right)

    # --- Stores ------------------------------------------------------------------------------------

    def _store(self, state: _Request, blocks: int, tables: Tuple[List[int], ...]) -> Optional[Store]:
        """Of a request whose first `blocks` blocks are computed."""
        first = state.shared
        # After a reload of its adapter, a request's new blocks are another adapter's than its first ones.
        if not state.may_store or state.reloads != _reloads_of(state.request):
            return None
        blocks = int(min(blocks, state.most_stored))
        # Which page has a block's state is not in the table: _state_stores().
        tables = tuple([0] * blocks if group in self._state_groups else table for group, table in enumerate(tables))
        if first >= blocks or any(len(table) < blocks for table in tables):
            return None
        room = self._held.room(self._options.store_held) // len(tables)
        if room < blocks - first:  # the rest is tried again in the next step, if there is one
            self._stats.add("skipped_stores", 1)
            self._log.warning("held", "the pool is slower than the engine: blocks are shared later or not at all")
            blocks = first + room
        if blocks <= first:
            return None
        chain = state.chain(first, blocks, tables)
        self._next_job += 1
        self._held.hold_pages(self._next_job, [page for pages in chain.pages for page in pages])
        state.shared = blocks
        tokens = state.request.all_token_ids[first * self._block_tokens : blocks * self._block_tokens]
        return Store(self._next_job, state.request.request_id, state.attempt, chain, np.array(tokens, np.uint32),
                     spans.headers_of(state.request))

    def _state_stores(self, offers: Dict[str, List[Tuple[int, int, int]]], groups: int) -> List[Store]:
        """offers: of each request, the group and page that have the state after so many tokens when the step is done."""
        stores = []
        for request_id, offered in offers.items():
            state = self._requests.get(request_id)
            if state is None or not state.may_store or state.reloads != _reloads_of(state.request):
                continue
            for group, page, tokens in offered:
                block = tokens // self._block_tokens - 1
                if tokens % self._block_tokens or page == 0 or block >= min(state.update_keys(), state.most_stored):
                    continue
                if self._held.room(self._options.store_held) < 1:
                    self._stats.add("skipped_stores", 1)
                    continue
                key = bytes(state.keys[block * KEY_BYTES : (block + 1) * KEY_BYTES])
                pages = tuple([page if number == group else 0] for number in range(groups))
                self._next_job += 1
                self._held.hold_pages(self._next_job, [page])
                stores.append(Store(self._next_job, request_id, state.attempt, Chain(key, pages),
                                    trace=spans.headers_of(state.request)))
        return stores

    def step(self, output: Any) -> StepMetadata:
        """What the workers do in this step."""
        self._prefills.step(output, lambda name: state.request if (state := self._requests.get(name)) else None)
        metadata = StepMetadata(self._loads, self._last_stores, self._voids_loads)
        self._loads, self._last_stores, self._voids_loads = [], [], False
        for load in metadata.loads:
            if not load.is_async:  # of a request that was preempted meanwhile, the load before may still be unanswered
                self._doubtful[load.request] = self._doubtful.get(load.request, 0) + self._workers
        if not self._may_store or self._doubtful or not self._is_fresh():
            return metadata
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens))
        for request_id, tokens in computed.items():
            state = self._requests.get(request_id)
            if state is None:
                continue
            after = tokens + output.num_scheduled_tokens.get(request_id, 0)
            blocks = min(after // self._block_tokens, state.update_keys())
            if blocks <= state.shared:
                continue
            tables = output.kv_connector_block_state.get_block_ids(request_id)
            store = self._store(state, blocks, tables) if tables is not None else None
            if store is not None:
                metadata.stores.append(store)
        if self._state_places:
            metadata.stores += self._state_stores(output.kv_connector_block_state.boundary_state_offloads, self._groups)
        return metadata

    def answered(self, answer: Optional[StepAnswer], loaded: Any) -> None:
        for request_id, blocks in answer.right_blocks.items() if answer is not None else ():
            state = self._requests.get(request_id) or self._ending.get(request_id)
            if state is not None and state.load is not None:
                state.right = blocks if state.right is None else min(blocks, state.right)
        for request_id in loaded or ():
            if request_id in self._requests:
                self._requests[request_id].is_loading = False
                self._loaded(request_id)
        if answer is None:
            return
        if answer.is_over:
            self._may_load = self._may_store = False
        for job, workers in answer.finished_jobs.items():
            self._held.finished(job, workers)
        for request_id in answer.incomplete_stores:
            # The pool may have evicted the chain's beginning: once, all of it is stored again.
            state = self._requests.get(request_id)
            if state is not None and not state.is_stored_again:
                state.shared, state.is_stored_again = 0, True
        for request_id, workers in answer.ended_loads.items():
            left = self._doubtful.pop(request_id, 0) - workers
            if left > 0:
                self._doubtful[request_id] = left
            else:
                self._loaded(request_id)
        for request_id, attempt in answer.failed_loads.items():
            state = self._requests.get(request_id)
            if state is None or attempt != state.attempt:
                continue
            # Never again for this request: vLLM would ask for ever.
            state.may_load = False
            state.attempt += 1
            state.shared = 0

    # --- Requests ----------------------------------------------------------------------------------

    def added(self, request: Any) -> None:
        self._is_fresh()
        self._request(request)

    def reset(self) -> None:
        """The engine's weights may be others now: it shares nothing with what was stored before, nor with others."""
        self._begin_era()
        self._log.info("the engine's caches were reset: until it starts again, it shares with no other engine")

    def weights_changed(self) -> None:
        """As reset(); and nothing is shared until vLLM's own cache has nothing of before, which could get into the pool
        as if it were new."""
        self._begin_era()
        self._is_stale = self._voids_loads = True
        self._log.info("the weights were updated (%s): until it starts again, this engine shares with no other one",
                       weight_updates.last())

    def pages_lost(self) -> None:
        """The engine has slept since the last step: what was to be stored then is gone."""
        for store in self._last_stores:
            self._held.finished(store.job, self._workers)
        self._last_stores = []

    def _is_fresh(self) -> bool:
        if self._is_stale:
            self._is_stale = not self._held.is_cache_empty()
        return not self._is_stale

    def _begin_era(self) -> None:
        self._era = os.urandom(KEY_BYTES)
        for request_id, state in self._requests.items():
            self._requests[request_id] = self._new_state(
                state.request, attempt=state.attempt + 1, may_load=state.may_load, may_store=state.may_store,
                is_loading=state.is_loading, asked=state.asked, load=state.load, right=state.right, stored=state.stored,
                is_allocated=state.is_allocated, is_counted=state.is_counted)

    def finished(self, request: Any, tables: Tuple[List[int], ...]) -> Optional[Dict[str, Any]]:
        """Returns what a prefill's answer tells the decode engine."""
        state = self._requests.pop(request.request_id, None)
        if request.num_output_tokens > 0:
            self._prefills.ended(request.request_id)
        if state is not None and state.load is not None and not state.is_loading:
            self._ending[request.request_id] = state  # the workers have not answered yet
        elif state is not None and state.is_allocated:
            self._count(state)
        if state is not None:
            self._retain(state)
        if state is None or not self._may_store or state.is_loading or self._doubtful or not self._is_fresh():
            return None
        # Of a request that was aborted, not all that is scheduled is computed.
        if request.status.name not in ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"):
            return None
        blocks = min(request.num_computed_tokens // self._block_tokens, state.update_keys())
        store = self._store(state, blocks, tables)
        if store is not None:
            self._last_stores.append(store)
        if not _params_of(request).get("do_remote_decode"):
            return None
        return {_STORED_TOKENS: state.shared * self._block_tokens}

    def _retain(self, state: _Request) -> None:
        """What is in the pool of a session's request goes last."""
        params = _params_of(state.request)
        session, seconds = params.get(_SESSION), params.get(_SESSION_SECONDS, _SESSION_DEFAULT_S)
        if session is None or not self._is_fresh():
            return
        if not isinstance(session, str) or isinstance(seconds, bool) or not isinstance(seconds, int) or seconds < 0:
            self._log.warning("session", "kv_transfer_params: %s is %.60r, %s %.60r; expected a text and a number of "
                              "seconds, so nothing is retained", _SESSION, session, _SESSION_SECONDS, seconds)
            return
        for attachment, group in self._kv_places:
            client = attachment.get()
            try:
                hashes = hashes_of(bytes(state.keys), group)
                found = client.lookup(hashes) if client is not None else 0
                if found:
                    client.retain(f"{session}/{group}", hashes[:found], seconds)
            except Exception as error:  # a bias that is lost
                attachment.failed(client, error)
                self._log.warning("session", "the session %.60s retains nothing: %s", session, error)

    def has_unsent_stores(self) -> bool:
        return bool(self._last_stores)

    def has_held_pages(self) -> bool:
        return bool(self._held)

    def take_stats(self) -> ConnectorStats:
        stats, self._stats = self._stats, ConnectorStats()
        return stats

    def close(self) -> None:
        self._storage.close()
        for attachment in {attachment for attachment, _ in self._places}:
            attachment.close()
