"""A transfer in vLLM's scheduler: which prompts are offered to a decode engine, and which ones are taken from a prefill
engine."""

import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple

from cachalot import random_offer_id
from cachalot.connectors.vllm.held_pages import HeldPages
from cachalot.connectors.access.log import RateLimitedLog
from cachalot.connectors.vllm.messages import keys_of
from cachalot.connectors.vllm.metrics import ConnectorStats
from cachalot.connectors.vllm.options import Transfer
from cachalot.connectors.vllm.scheduler import has_final_hashes, takes_hits
from cachalot.connectors.vllm.transfer.messages import Ask, Offer, TransferAnswer, TransferStep

#: In kv_transfer_params: where the KV of the prompt is, or of its beginning.
REFERENCE = "cachalot_reference"
#: In kv_transfer_params of a request: so many seconds after its end, other engines may take its KV.
STANDING = "cachalot_standing"
#: Bytes of a hash in the reference of a standing offer. They find the common beginning; the ask has the key that counts.
_SHORT_BYTES = 8


def _is_reference(given: Any) -> bool:
    """Whether it has the form of a reference. It comes through a proxy, so anything may be there."""
    return (isinstance(given, dict) and isinstance(given.get("tokens"), int) and isinstance(given.get("last_block"), str)
            and isinstance(given.get("block_tokens"), int) and isinstance(given.get("blocks", ""), str))


def _has_adapter(request: Any) -> bool:
    """vLLM's hashes have an adapter's path, not its files: two engines may have different ones there."""
    return getattr(request, "lora_request", None) is not None


def _short(digest: bytes) -> str:
    return digest[:_SHORT_BYTES].hex()


def _seconds(value: Any) -> float:
    """What a request asks for; it comes from outside."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < math.inf else 0.0


@dataclass
class _Plan:
    reference: Dict[str, Any]
    first: int  # block
    last: int  # one after the last block
    key: bytes  # of the block before


class TransferScheduler:
    """Threads: vLLM's scheduler only."""

    def __init__(self, options: Transfer, instance: str, block_tokens: int, tp_size: int, pp_size: int, may_load: bool,
                 may_store: bool, log: RateLimitedLog) -> None:
        self._options = options
        self._instance, self._block_tokens, self._log = instance, block_tokens, log
        self._tp_size, self._pp_size = tp_size, pp_size
        self._may_load, self._may_store = may_load, may_store
        self._addresses: Dict[int, List[str]] = {}
        self._held, self._standing = HeldPages(tp_size * pp_size), HeldPages(tp_size * pp_size)
        self._next_job = 0
        self._step = TransferStep()
        self._plans: Dict[str, _Plan] = {}
        self._unused: Dict[str, Dict[str, Any]] = {}  # request: its reference, which has not been asked for
        self._asking: Dict[str, Tuple[int, int]] = {}  # request: blocks that it lacked, those that are on their way
        self._failed: set = set()  # of these, requests of which a worker's ask has failed
        self._on_transferred: Optional[Callable[[str, int], None]] = None  # None: it counts the prompts itself
        self._spent: set = set()  # requests that have asked: a reference is used once, and vLLM would ask for ever
        self._stats = ConnectorStats()

    def bind_pages(self, block_pool: Any) -> None:
        for held in (self._held, self._standing):
            held.bind(block_pool)

    def set_addresses(self, of_ranks: Dict[Tuple[int, int], List[str]]) -> None:
        """of_ranks: by pipeline stage and tensor parallel rank."""
        self._addresses = {pp * self._tp_size + tp: addresses for (pp, tp), addresses in of_ranks.items() if addresses}

    def _takes_part(self) -> bool:
        """Whether all workers have a cache that can be handed over."""
        return len(self._addresses) == self._tp_size * self._pp_size

    def _all_addresses(self) -> List[List[str]]:
        return [self._addresses[rank] for rank in sorted(self._addresses)]

    def added(self, request: Any) -> None:
        return

    def tell_transferred(self, on_transferred: Callable[[str, int], None]) -> None:
        """Calls on_transferred for each transfer that has ended, with its blocks (0: it failed), instead of counting."""
        self._on_transferred = on_transferred

    def _end(self, request_id: str, is_done: bool) -> None:
        asked, coming = self._asking.pop(request_id)
        self._failed.discard(request_id)
        blocks = coming if is_done else 0
        if self._on_transferred is not None:
            self._on_transferred(request_id, blocks)
        else:
            self._stats.add_prompt(asked, from_peers=blocks)

    def _blocks_of(self, request: Any) -> int:
        """One token at least is computed: its logits are needed."""
        return (request.num_prompt_tokens - 1) // self._block_tokens

    # --- Decode ------------------------------------------------------------------------------------

    def _blocks_in(self, reference: Dict[str, Any], request: Any) -> Tuple[int, Optional[str]]:
        """How many leading blocks of a request the reference has; 0: and why."""
        if not _is_reference(reference):
            return 0, "it has another form"
        if reference["block_tokens"] != self._block_tokens:
            return 0, f"its blocks have {reference['block_tokens']} tokens, this engine's {self._block_tokens}"
        if "blocks" in reference:
            return self._common_blocks(reference, request)
        # A prefill engine that keeps the first token offers a last block that this engine may need to its end: then vLLM
        # computes the last token again, after the load.
        counts = {blocks * self._block_tokens: blocks
                  for blocks in (request.num_prompt_tokens // self._block_tokens, self._blocks_of(request))}
        blocks = counts.get(reference["tokens"], 0)
        if reference["tokens"] not in counts:
            return 0, (f"it has {reference['tokens']} tokens, the prompt {self._blocks_of(request) * self._block_tokens} "
                       "in whole blocks")
        if blocks == 0 or len(request.block_hashes) < blocks or \
                request.block_hashes[blocks - 1].hex() != reference["last_block"]:
            return 0, "it is of another prompt"
        return blocks, None

    def _common_blocks(self, reference: Dict[str, Any], request: Any) -> Tuple[int, Optional[str]]:
        """Of a standing offer: as many as are equal."""
        most = min(self._blocks_of(request), len(request.block_hashes), reference["tokens"] // self._block_tokens)
        names, size, blocks = reference["blocks"], 2 * _SHORT_BYTES, 0
        while blocks < most and _short(request.block_hashes[blocks]) == names[blocks * size : (blocks + 1) * size]:
            blocks += 1
        return blocks, None if blocks else "its first block is another one"

    def matched(self, request: Any, computed_tokens: int) -> Tuple[Optional[int], bool]:
        self._plans.pop(request.request_id, None)
        if not self._may_load or request.request_id in self._spent or _has_adapter(request):
            return 0, False
        reference = (getattr(request, "kv_transfer_params", None) or {}).get(REFERENCE)
        if reference is None:
            return 0, False
        last, reason = self._blocks_in(reference, request)
        if reason is not None:
            self._log.warning("reference", "a reference is not used, the prompt is computed: %s", reason)
            return 0, False
        self._unused[request.request_id] = reference
        if not takes_hits(request) or not has_final_hashes(request):
            return 0, False
        if not self._takes_part():
            self._log.warning("addresses", "a reference is not used, the prompt is computed: not all workers take part")
            return 0, False
        first = computed_tokens // self._block_tokens
        if last <= first:
            return 0, False
        self._plans[request.request_id] = _Plan(reference, first, last, keys_of(request.block_hashes[last - 1 : last]))
        return (last - first) * self._block_tokens, True

    def allocated(self, request: Any, blocks: Any, external_tokens: int) -> None:
        plan = self._plans.pop(request.request_id, None)
        if external_tokens == 0 or plan is None:
            return
        self._spent.add(request.request_id)
        self._unused.pop(request.request_id, None)
        asked, coming = self._blocks_of(request) - plan.first, plan.last - plan.first
        self._asking[request.request_id] = max(asked, coming), coming
        table = blocks.get_block_ids()[0]
        self._step.loads.append(Ask(request.request_id, plan.reference, list(table[plan.first : plan.last]),
                                    plan.first * self._block_tokens, plan.last * self._block_tokens, plan.key,
                                    self._all_addresses() if self._options.once_per_machine else []))

    def _decline(self, request_id: str) -> None:
        """The request has its blocks from elsewhere, or needs none: the prefill engine's pages are free at once."""
        reference = self._unused.pop(request_id, None)
        if reference is not None and "blocks" not in reference:
            self._step.declines.append(reference)
            self._spent.add(request_id)

    # --- Prefill -----------------------------------------------------------------------------------

    def finished(self, request: Any, tables: Tuple[List[int], ...]) -> Optional[Dict[str, Any]]:
        """Returns what a prefill's answer tells the decode engine."""
        self._plans.pop(request.request_id, None)
        self._decline(request.request_id)
        self._spent.discard(request.request_id)
        if request.request_id in self._asking:
            self._end(request.request_id, is_done=False)
        if not self._may_store or request.status.name not in ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"):
            return None
        if _has_adapter(request) or not has_final_hashes(request):
            return None
        params = getattr(request, "kv_transfer_params", None) or {}
        standing_s = min(_seconds(params.get(STANDING)), self._options.standing)
        if standing_s > 0:
            # With the answer: the next prompt of a conversation begins with it.
            blocks = min(request.num_computed_tokens // self._block_tokens, len(request.block_hashes), len(tables[0]))
        else:
            blocks = self._prefilled_blocks(request, params)
        if blocks == 0 or len(tables[0]) < blocks or len(request.block_hashes) < blocks:
            return None
        if not self._takes_part():
            self._log.warning("addresses", "a prompt is not offered: not all workers take part")
            return None
        held = self._standing if standing_s > 0 else self._held
        if standing_s > 0 and not held.has_room(blocks, self._options.standing_held):
            self._log.warning("standing", "a prompt does not stand on offer: other ones hold too many blocks")
            return None
        return {REFERENCE: self._offer(request, list(tables[0][:blocks]), standing_s, held)}

    def _prefilled_blocks(self, request: Any, params: Dict[str, Any]) -> int:
        """Of the prompt, for one decode engine; 0: it is not for one, or not computed."""
        if not params.get("do_remote_decode"):
            return 0
        blocks = self._blocks_of(request)
        if params.get("first_token") == "prefill":
            # The decode engine goes on from the prompt and this engine's token, so it can use all of the prompt.
            blocks = request.num_prompt_tokens // self._block_tokens
            if request.status.name == "FINISHED_STOPPED":
                return 0  # that token was the answer's end
        return blocks if request.num_computed_tokens >= blocks * self._block_tokens else 0

    def _offer(self, request: Any, pages: List[int], standing_s: float, held: HeldPages) -> Dict[str, Any]:
        """Returns the reference."""
        self._next_job += 1
        held.hold_pages(self._next_job, pages)
        hashes = request.block_hashes[: len(pages)]
        offer = Offer(self._next_job, random_offer_id(), pages, len(pages) * self._block_tokens, keys_of(hashes), standing_s)
        self._step.offers.append(offer)
        reference = {
            "instance": self._instance, "id": offer.id, "tokens": offer.tokens, "tp_size": self._tp_size,
            "pp_size": self._pp_size, "addresses": self._all_addresses(),
            "block_tokens": self._block_tokens, "last_block": hashes[-1].hex()}
        if standing_s > 0:
            reference["blocks"] = "".join(map(_short, hashes))
        return reference

    # --- Steps -------------------------------------------------------------------------------------

    def step(self, output: Any) -> TransferStep:
        for new in output.scheduled_new_reqs if self._unused else ():
            self._decline(new.req_id)
        step, self._step = self._step, TransferStep()
        return step

    def answered(self, answer: Optional[TransferAnswer], loaded: Any) -> None:
        if answer is not None:
            self._failed |= answer.failed_asks & self._asking.keys()
        for request_id in loaded or ():
            if request_id in self._asking:
                self._end(request_id, is_done=request_id not in self._failed)
        if answer is None:
            return
        for job, workers in answer.finished_jobs.items():
            for held in (self._held, self._standing):
                held.finished(job, workers)

    def reset(self) -> None:
        """The engine's weights may be others now, and nothing names them: it takes part in no transfer any more."""
        self._may_load = self._may_store = False
        self._plans.clear()
        # Offers that no worker has yet are sent before their withdrawal, so that their pages are answered for.
        self._step.loads.clear()
        self._step.withdraws = True
        self._log.info("the engine's caches were reset: until it starts again, it hands nothing over and takes nothing")

    def pages_lost(self) -> None:
        """The engine has slept since the last step: what was to be offered then is gone."""
        for offer in self._step.offers:
            for held in (self._held, self._standing):
                held.finished(offer.job, self._tp_size * self._pp_size)
        self._step.offers.clear()

    def weights_changed(self) -> None:
        self.reset()
        self._step.voids_loads = True

    def has_unsent_stores(self) -> bool:
        return bool(self._step.offers or self._step.declines or self._step.withdraws)

    def has_held_pages(self) -> bool:
        return bool(self._held or self._standing)

    def take_stats(self) -> ConnectorStats:
        stats, self._stats = self._stats, ConnectorStats()
        return stats

    def close(self) -> None:
        return
