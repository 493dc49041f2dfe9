"""A transfer in vLLM's scheduler: which prompts are offered to a decode engine, and which ones are taken from a prefill
engine."""

from typing import Any, Dict, List, Optional, Tuple

from cachalot import random_offer_id
from cachalot.connectors.vllm.held_pages import HeldPages
from cachalot.connectors.vllm.log import RateLimitedLog
from cachalot.connectors.vllm.metrics import ConnectorStats
from cachalot.connectors.vllm.transfer.messages import Ask, Offer, TransferAnswer, TransferStep

#: In kv_transfer_params: where the KV of the prompt is.
REFERENCE = "cachalot_reference"


def _is_reference(given: Any) -> bool:
    """Whether it has the form of a reference. It comes through a proxy, so anything may be there."""
    return (isinstance(given, dict) and isinstance(given.get("tokens"), int) and isinstance(given.get("last_block"), str)
            and isinstance(given.get("block_tokens"), int))


def _has_adapter(request: Any) -> bool:
    """vLLM's hashes have an adapter's path, not its files: two engines may have different ones there."""
    return getattr(request, "lora_request", None) is not None


class TransferScheduler:
    """Threads: vLLM's scheduler only."""

    def __init__(self, instance: str, block_tokens: int, tp_size: int, pp_size: int, may_load: bool, may_store: bool,
                 log: RateLimitedLog) -> None:
        self._instance, self._block_tokens, self._log = instance, block_tokens, log
        self._tp_size, self._pp_size = tp_size, pp_size
        self._may_load, self._may_store = may_load, may_store
        self._addresses: Dict[int, List[str]] = {}
        self._held = HeldPages(tp_size * pp_size)
        self._next_job = 0
        self._step = TransferStep()
        self._plans: Dict[str, Tuple[Dict[str, Any], int, int]] = {}  # request: reference, blocks [first, last)
        self._spent: set = set()  # requests that have asked: a reference is used once, and vLLM would ask for ever
        self._stats = ConnectorStats()

    def bind_pages(self, block_pool: Any) -> None:
        self._held.bind(block_pool)

    def set_addresses(self, of_ranks: Dict[Tuple[int, int], List[str]]) -> None:
        """of_ranks: by pipeline stage and tensor parallel rank."""
        self._addresses = {pp * self._tp_size + tp: addresses for (pp, tp), addresses in of_ranks.items() if addresses}

    def added(self, request: Any) -> None:
        return

    def _blocks_of(self, request: Any) -> int:
        """One token at least is computed: its logits are needed."""
        return (request.num_prompt_tokens - 1) // self._block_tokens

    # --- Decode ------------------------------------------------------------------------------------

    def _reference_of(self, request: Any) -> Optional[Dict[str, Any]]:
        given = (getattr(request, "kv_transfer_params", None) or {}).get(REFERENCE)
        if given is None:
            return None
        # A prefill engine that keeps the first token offers a last block that this engine may need to its end: then vLLM
        # computes the last token again, after the load.
        counts = {blocks * self._block_tokens: blocks
                  for blocks in (request.num_prompt_tokens // self._block_tokens, self._blocks_of(request))}
        reason, blocks = None, 0
        if not _is_reference(given):
            reason = "it has another form"
        elif given["block_tokens"] != self._block_tokens:
            reason = f"its blocks have {given['block_tokens']} tokens, this engine's {self._block_tokens}"
        elif given["tokens"] not in counts:
            reason = f"it has {given['tokens']} tokens, the prompt {self._blocks_of(request) * self._block_tokens} in whole blocks"
        elif (blocks := counts[given["tokens"]]) == 0 or len(request.block_hashes) < blocks or \
                request.block_hashes[blocks - 1].hex() != given["last_block"]:
            reason = "it is of another prompt"
        if reason is None:
            return given
        self._log.warning("reference", "a reference is not used, the prompt is computed: %s", reason)
        return None

    def matched(self, request: Any, computed_tokens: int) -> Tuple[Optional[int], bool]:
        self._plans.pop(request.request_id, None)
        if not self._may_load or request.request_id in self._spent or _has_adapter(request):
            return 0, False
        reference = self._reference_of(request)
        first = computed_tokens // self._block_tokens
        if reference is None or reference["tokens"] // self._block_tokens <= first:
            return 0, False
        last = reference["tokens"] // self._block_tokens
        self._plans[request.request_id] = (reference, first, last)
        return (last - first) * self._block_tokens, True

    def allocated(self, request: Any, blocks: Any, external_tokens: int) -> None:
        plan = self._plans.pop(request.request_id, None)
        if external_tokens == 0 or plan is None:
            return
        reference, first, last = plan
        self._spent.add(request.request_id)
        table = blocks.get_block_ids()[0]
        self._step.loads.append(Ask(request.request_id, reference, list(table[first:last]), first * self._block_tokens))

    # --- Prefill -----------------------------------------------------------------------------------

    def finished(self, request: Any, tables: Tuple[List[int], ...]) -> Optional[Dict[str, Any]]:
        """Returns what a prefill's answer tells the decode engine."""
        self._plans.pop(request.request_id, None)
        self._spent.discard(request.request_id)
        if not self._may_store or request.status.name not in ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"):
            return None
        if _has_adapter(request):
            return None
        params = getattr(request, "kv_transfer_params", None) or {}
        if not params.get("do_remote_decode"):
            return None
        blocks = self._blocks_of(request)
        if params.get("first_token") == "prefill":
            # The decode engine goes on from the prompt and this engine's token, so it can use all of the prompt.
            blocks = request.num_prompt_tokens // self._block_tokens
            if request.status.name == "FINISHED_STOPPED":
                return None  # that token was the answer's end
        if request.num_computed_tokens < blocks * self._block_tokens:
            return None
        if blocks == 0 or len(tables[0]) < blocks or len(request.block_hashes) < blocks:
            return None
        if len(self._addresses) < self._tp_size * self._pp_size:
            self._log.warning("addresses", "a prompt is not offered: not all workers take part")
            return None
        pages = list(tables[0][:blocks])
        self._next_job += 1
        self._held.hold_pages(self._next_job, pages)
        offer = Offer(self._next_job, random_offer_id(), pages, blocks * self._block_tokens)
        self._step.offers.append(offer)
        return {REFERENCE: {
            "instance": self._instance, "id": offer.id, "tokens": offer.tokens, "tp_size": self._tp_size,
            "pp_size": self._pp_size, "addresses": [self._addresses[rank] for rank in sorted(self._addresses)],
            "block_tokens": self._block_tokens, "last_block": request.block_hashes[blocks - 1].hex()}}

    # --- Steps -------------------------------------------------------------------------------------

    def step(self, output: Any) -> TransferStep:
        step, self._step = self._step, TransferStep()
        return step

    def answered(self, answer: Optional[TransferAnswer], loaded: Any) -> None:
        if answer is None:
            return
        for job, workers in answer.finished_jobs.items():
            self._held.finished(job, workers)

    def reset(self) -> None:
        """The engine's weights may be others now, and nothing names them: it takes part in no transfer any more."""
        self._may_load = self._may_store = False
        self._plans.clear()
        # Offers that no worker has yet are sent before their withdrawal, so that their pages are answered for.
        self._step.loads.clear()
        self._step.withdraws = True
        self._log.info("the engine's caches were reset: until it starts again, it hands nothing over and takes nothing")

    def has_unsent_stores(self) -> bool:
        return bool(self._step.offers or self._step.withdraws)

    def has_held_pages(self) -> bool:
        return bool(self._held)

    def take_stats(self) -> ConnectorStats:
        stats, self._stats = self._stats, ConnectorStats()
        return stats

    def close(self) -> None:
        return
