"""A transfer in a worker: its pages are offered to the ranks of a decode engine, or filled by those of a prefill
engine."""

import time
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Set, Tuple

from cachalot import Error, TransferRank
from cachalot.connectors.access.log import RateLimitedLog
from cachalot.connectors.vllm import weight_updates
from cachalot.connectors.vllm.messages import hashes_of
from cachalot.connectors.vllm.metrics import ConnectorStats
from cachalot.connectors.vllm.streams import NoStreams
from cachalot.connectors.vllm.transfer.messages import Ask, Offer, TransferAnswer


#: A prefill's answer may be here before its workers have the offer: an unknown one is asked for again for so long. So is
#: a fetch of another rank for its machine that was cancelled: with a standing offer, it may have been another request's.
_UNKNOWN_S = 1.0
_AGAIN_CODES = ("not_found", "cancelled")
_AGAIN_S = 0.01


def machines_of(parallel: Any, geometry: Any) -> Optional[List[int]]:
    """Of each rank of an engine, the number of its machine. None: no ranks hold the same bytes, or vLLM's configuration
    does not say where they are (Ray, torchrun)."""
    copies = geometry.tp_size if geometry.attention == "latent" else geometry.tp_replicas
    if copies == 1 or parallel.distributed_executor_backend != "mp":
        return None
    # vLLM gives each node the same number of consecutive ranks.
    return [rank // parallel.local_world_size for rank in range(parallel.world_size)]


@dataclass
class _Pending:
    ask: Ask
    number: Optional[int]  # None: the rank refused it, or it is asked again
    began: float
    again: Optional[float] = None  # when


class TransferWorker:
    """Threads: vLLM's worker only."""

    def __init__(self, rank: Optional[TransferRank], deadline_s: float, log: RateLimitedLog, streams: Any = NoStreams()) -> None:
        """rank: None if this worker's cache is not supported; then everything fails, and is computed. streams: of its
        cache's device; the rank's stream is this thread's one of them."""
        self._streams = streams
        self._rank, self._deadline_s, self._log = rank, deadline_s, log
        self._pending: Dict[str, _Pending] = {}
        self._offers: Dict[str, int] = {}  # id: job
        self._finished: Set[str] = set()
        self._bad_pages: Set[int] = set()
        self._answer = TransferAnswer()
        self.addresses: List[str] = list(rank.addresses) if rank is not None else []
        self._instance: List[List[str]] = []  # what the rank knows of the other ones of this engine
        self._sent_bytes, self._may_have_sent = 0, False
        self._stats = ConnectorStats()
        weight_updates.at_sleep(self)

    def _follow_engine(self) -> None:
        """What the rank copies from now on follows what the engine has launched by now: the steps that have computed the
        pages of an offer, or have used those of an ask before."""
        self._streams.behind(self._streams.mark())

    def begin_loads(self, asks: List[Ask]) -> None:
        if asks:
            self._follow_engine()
        for ask in asks:
            self._pending[ask.request] = _Pending(ask, self._ask(ask), time.monotonic())

    def _ask(self, ask: Ask) -> Optional[int]:
        try:
            if self._rank is not None:
                if ask.instance != self._instance:
                    self._rank.set_instance_addresses(ask.instance)
                    self._instance = ask.instance
                return self._rank.ask(ask.reference, ask.pages, deadline_s=self._deadline_s,
                                      first_token=ask.first_token, tokens=ask.tokens, hash=hashes_of(ask.key, 0)[0])
        except Exception as error:  # a reference comes from outside; whatever it is, the prompt is computed
            self._log.warning("ask", "a prompt's KV cannot be taken over, it is computed: %s", error)
        return None

    def begin_offers(self, offers: List[Offer]) -> None:
        """Before the step's forward pass, which may be long: a decode engine may ask already. The pages are those of
        requests that have ended."""
        if offers:
            self._follow_engine()
        for offer in offers:
            try:
                if self._rank is None:
                    raise ValueError("this worker's KV cache is not supported")
                self._rank.offer(offer.id, offer.pages, offer.tokens, deadline_s=offer.standing_s or self._deadline_s,
                                 hashes=hashes_of(offer.keys, 0), standing=offer.standing_s > 0)
                self._offers[offer.id] = offer.job
            except (Error, ValueError) as error:
                self._log.warning("offer", "a prompt's KV cannot be offered: %s", error)
                self._answer.finished_jobs[offer.job] = 1

    def decline(self, references: List[Dict[str, Any]]) -> None:
        for reference in references:
            try:
                if self._rank is not None:
                    self._rank.decline(reference, deadline_s=self._deadline_s)
            except Exception as error:  # it comes from outside; its pages are free at their deadline
                self._log.warning("decline", "an offer cannot be declined: %s", error)

    def withdraw_offers(self) -> None:
        for offer_id in self._offers:
            try:
                self._rank.withdraw(offer_id)
            except Error:
                pass  # it has ended meanwhile; ended_offers() tells it

    def _status_of(self, pending: _Pending) -> Dict[str, Any]:
        now, running = time.monotonic(), {"state": "running"}
        if pending.again is not None:
            if now < pending.again:
                return running
            pending.number, pending.again = self._ask(pending.ask), None
        if pending.number is None:
            return {"state": "failed", "error": "it was refused", "bytes": 0}
        try:
            status = self._rank.wait(pending.number, timeout_s=0)
        except Exception as error:  # whatever it is, the prompt is computed; _end() stops writes into its pages
            return {"state": "failed", "error": str(error), "bytes": 0}
        if status["state"] == "failed" and status["code"] in _AGAIN_CODES and now < pending.began + _UNKNOWN_S:
            self._rank.release(pending.number)
            pending.number, pending.again = None, now + _AGAIN_S
            return running
        return status

    def _poll(self) -> None:
        for request, pending in list(self._pending.items()):
            status = self._status_of(pending)
            if status["state"] != "running":
                self._end(request, pending, status)
        for offer_id, error in self._ended_offers():
            job, self._may_have_sent = self._offers.pop(offer_id, None), True
            if job is not None:
                self._answer.finished_jobs[job] = 1
            if error is not None:
                self._log.warning("offer", "an offered prompt was not taken over: %s", error)

    def _ended_offers(self) -> List[Tuple[str, Optional[str]]]:
        try:
            return self._rank.ended_offers() if self._rank is not None else []
        except Exception as error:  # pages of offers that may still be read stay lent
            self._log.warning("offer", "it is unknown which offered prompts were taken over: %s", error)
            return []

    def _end(self, request: str, pending: _Pending, status: Dict[str, Any]) -> None:
        del self._pending[request]
        if pending.number is not None:
            self._rank.release(pending.number)
        is_done, self._may_have_sent = status["state"] == "done", True
        self._stats.add("transfers", 1)
        self._stats.add("failed_transfers", not is_done)
        self._stats.add("transfer_seconds", time.monotonic() - pending.began)
        self._finished.add(request)
        if is_done:
            self._stats.add("transferred_blocks", len(pending.ask.pages))
            self._stats.add("transferred_bytes", status["bytes"])
            return
        self._log.warning("load", "a transfer failed, its blocks are computed: %s", status["error"])
        self._bad_pages.update(pending.ask.pages)
        self._answer.failed_asks.add(request)

    def void_loads(self, reason: str = "the weights were updated") -> None:
        """What they bring is of no use."""
        for request, pending in list(self._pending.items()):
            self._end(request, pending, {"state": "failed", "error": reason, "bytes": 0})

    def end_copies(self) -> None:
        """The memory of the pages is about to go."""
        self.void_loads("the engine sleeps")
        self.withdraw_offers()

    def take_results(self) -> Tuple[Set[str], Set[str]]:
        self._poll()
        finished, self._finished = self._finished, set()
        return finished, set()

    def take_bad_pages(self) -> Set[int]:
        pages, self._bad_pages = self._bad_pages, set()
        return pages

    def take_answer(self) -> Optional[TransferAnswer]:
        if self._answer.is_empty():
            return None
        answer, self._answer = self._answer, TransferAnswer()
        return answer

    def take_stats(self) -> ConnectorStats:
        if self._rank is not None and (self._offers or self._may_have_sent):
            sent, self._may_have_sent = self._rank.statistics()["sent_bytes"], False
            self._stats.add("sent_bytes", sent - self._sent_bytes)
            self._sent_bytes = sent
        stats, self._stats = self._stats, ConnectorStats()
        return stats

    def forget(self, requests: Set[str]) -> None:
        """Of requests that were aborted: vLLM keeps their pages until the load is reported as ended."""
        for request in requests & self._pending.keys():
            pending = self._pending.pop(request)
            if pending.number is not None:
                self._rank.release(pending.number)  # nothing writes into the pages after this
            self._finished.add(request)

    def close(self) -> None:
        if self._rank is not None:
            self._rank.close()
