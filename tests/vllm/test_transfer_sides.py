"""The sides of a transfer without an engine: what is never handed over, and what is handed over once for a machine."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from cachalot import KvGeometry, TransferRank
from cachalot.connectors.access.log import RateLimitedLog
from cachalot.connectors.vllm.messages import keys_of
from cachalot.connectors.vllm.options import Transfer
from cachalot.connectors.vllm.transfer.messages import Ask, Offer, TransferAnswer
from cachalot.connectors.vllm.transfer.scheduler import REFERENCE, STANDING, TransferScheduler
from cachalot.connectors.vllm.transfer.worker import TransferWorker, machines_of

BLOCK_TOKENS, BLOCKS = 16, 3
KEY = bytes(16)


class Log:
    def __init__(self):
        self.lines = []

    def info(self, text, *values):
        self.lines.append(text % values)

    warning = info


def a_request(params, **more):
    return SimpleNamespace(**{
        "request_id": "r", "num_prompt_tokens": BLOCKS * BLOCK_TOKENS + 5, "kv_transfer_params": params,
        "num_computed_tokens": BLOCKS * BLOCK_TOKENS + 5, "block_hashes": [bytes([i]) * 32 for i in range(BLOCKS)],
        "status": SimpleNamespace(name="FINISHED_LENGTH_CAPPED"), "lora_request": None, "skip_reading_prefix_cache": False,
        "resumable": False, **more})


class Pages:
    """vLLM's block pool, as far as pages are held."""

    def __init__(self):
        self.blocks, self.num_gpu_blocks, self.held = list(range(100)), 100, []

    def touch(self, blocks):
        self.held += blocks

    def free_blocks(self, blocks):
        for block in blocks:
            self.held.remove(block)


@pytest.fixture
def side():
    made = TransferScheduler(Transfer(), "p", BLOCK_TOKENS, 1, 1, may_load=True, may_store=True, log=RateLimitedLog(Log()))
    made.pages = Pages()
    made.bind_pages(made.pages)
    made.set_addresses({(0, 0): ["tcp:127.0.0.1:1"]})
    return made


def offered(side, **more):
    return side.finished(a_request({"do_remote_decode": True}, **more), (list(range(10, 14)),))


def test_a_prompt_is_offered_and_its_pages_are_held(side):
    reference = offered(side)[REFERENCE]
    assert reference["tokens"] == BLOCKS * BLOCK_TOKENS and side.pages.held == [10, 11, 12]
    assert side.matched(a_request({REFERENCE: reference}), 0) == (BLOCKS * BLOCK_TOKENS, True)


def test_after_a_reset_nothing_is_handed_over(side):
    reference = offered(side)[REFERENCE]
    side.reset()
    assert offered(side) is None
    assert side.matched(a_request({REFERENCE: reference}), 0) == (0, False)
    step = side.step(None)
    assert step.withdraws and len(step.offers) == 1


def test_after_an_update_of_the_weights_nothing_is_handed_over_nor_taken(side):
    reference = offered(side)[REFERENCE]
    side.weights_changed()
    assert offered(side) is None
    assert side.matched(a_request({REFERENCE: reference}), 0) == (0, False)
    step = side.step(None)
    assert step.withdraws and step.voids_loads
    worker = TransferWorker(LateRank(knows_at=0), 1.0, RateLimitedLog(Log()))
    worker.begin_loads([Ask("r", {}, [4, 5], 0, 32, KEY)])
    worker.void_loads()
    assert worker.take_results() == ({"r"}, set()) and worker.take_bad_pages() == {4, 5}
    assert worker._rank.released == [1]


def test_before_a_sleep_transfers_end_and_what_was_to_be_offered_after_it_is_void(side):
    offered(side)
    side.pages_lost()
    assert side.pages.held == [] and side.step(None).offers == []
    worker = TransferWorker(LateRank(knows_at=0), 1.0, RateLimitedLog(Log()))
    worker.begin_loads([Ask("r", {}, [4, 5], 0, 32, KEY)])
    worker.end_copies()
    assert worker.take_results() == ({"r"}, set()) and worker.take_bad_pages() == {4, 5}
    assert worker._rank.released == [1]


def test_prompts_of_adapters_are_computed(side):
    reference = offered(side)[REFERENCE]
    assert offered(side, lora_request=object()) is None
    assert side.matched(a_request({REFERENCE: reference}, lora_request=object()), 0) == (0, False)


@pytest.mark.parametrize("flag, offers", [("skip_reading_prefix_cache", True), ("resumable", False)])
def test_what_must_be_computed_takes_nothing_over_and_the_offer_is_declined(side, flag, offers):
    """Logprobs of a prompt need all of its tokens; the hashes of a session's pieces are not final."""
    reference = offered(side)[REFERENCE]
    assert (offered(side, **{flag: True}) is not None) == offers
    assert side.matched(a_request({REFERENCE: reference}, **{flag: True}), 0) == (0, False)
    step = side.step(SimpleNamespace(scheduled_new_reqs=[SimpleNamespace(req_id="r")]))
    assert step.declines == [reference] and step.loads == []


def test_a_prompt_that_is_not_computed_is_not_offered(side):
    assert offered(side, num_computed_tokens=BLOCKS * BLOCK_TOKENS - 1) is None
    assert side.pages.held == []


def test_with_the_first_token_from_prefill_the_whole_prompt_is_offered(side):
    full = {"num_prompt_tokens": BLOCKS * BLOCK_TOKENS, "num_computed_tokens": BLOCKS * BLOCK_TOKENS}
    assert offered(side, **full)[REFERENCE]["tokens"] == (BLOCKS - 1) * BLOCK_TOKENS
    params = {"do_remote_decode": True, "first_token": "prefill"}
    reference = side.finished(a_request(params, **full), (list(range(10, 14)),))[REFERENCE]
    assert reference["tokens"] == BLOCKS * BLOCK_TOKENS
    # Decode's prompt has one token more.
    asked = a_request({REFERENCE: reference}, num_prompt_tokens=BLOCKS * BLOCK_TOKENS + 1)
    assert side.matched(asked, 0) == (BLOCKS * BLOCK_TOKENS, True)
    # Or the same prompt, if it must compute the first token itself.
    for tokens, blocks in ((BLOCKS * BLOCK_TOKENS, BLOCKS), (BLOCKS * BLOCK_TOKENS - 1, 0)):
        asked = a_request({REFERENCE: reference}, num_prompt_tokens=tokens)
        assert side.matched(asked, 0) == (blocks * BLOCK_TOKENS, blocks > 0)


def test_a_first_token_that_ends_the_answer_leaves_no_offer(side):
    request = a_request({"do_remote_decode": True, "first_token": "prefill"},
                        status=SimpleNamespace(name="FINISHED_STOPPED"))
    assert side.finished(request, (list(range(10, 14)),)) is None and side.pages.held == []


# --- References that are not needed ----------------------------------------------------------------


def computes(side, *names):
    """vLLM's next step computes these requests."""
    return side.step(SimpleNamespace(scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in names]))


def test_a_reference_whose_blocks_are_there_already_is_declined_once(side):
    reference = offered(side)[REFERENCE]
    asked = a_request({REFERENCE: reference})
    assert side.matched(asked, BLOCKS * BLOCK_TOKENS) == (0, False)
    assert computes(side, "other").declines == []
    assert computes(side, "r").declines == [reference]
    assert side.matched(asked, 0) == (0, False)  # preempted: the offer has ended
    assert side.finished(asked, ([],)) is None and computes(side).declines == []


def test_a_request_that_ends_before_it_computes_declines(side):
    reference = offered(side)[REFERENCE]
    aborted = a_request({REFERENCE: reference}, status=SimpleNamespace(name="FINISHED_ABORTED"))
    assert side.matched(aborted, 0) == (BLOCKS * BLOCK_TOKENS, True)
    side.finished(aborted, ([],))
    assert side.has_unsent_stores() and computes(side).declines == [reference]


def test_a_reference_that_is_asked_for_is_not_declined(side):
    asked = a_request({REFERENCE: offered(side)[REFERENCE]})
    side.matched(asked, BLOCK_TOKENS)
    side.allocated(asked, SimpleNamespace(get_block_ids=lambda: ([20, 21, 22, 23],)), 2 * BLOCK_TOKENS)
    step = computes(side, "r")
    assert step.declines == [] and step.loads[0].pages == [21, 22]
    assert (step.loads[0].first_token, step.loads[0].tokens) == (BLOCK_TOKENS, BLOCKS * BLOCK_TOKENS)
    assert step.loads[0].key == keys_of([bytes([BLOCKS - 1]) * 32])


@pytest.mark.parametrize("end, used", [
    (lambda side, asked: side.answered(None, {"r"}), 2),
    (lambda side, asked: side.answered(TransferAnswer(failed_asks={"r"}), {"r"}), 0),
    (lambda side, asked: side.finished(asked, (list(range(4)),)), 0),  # aborted
])
def test_a_prompt_that_asks_another_engine_counts_once(side, end, used):
    """It has the first block itself."""
    asked = a_request({REFERENCE: offered(side)[REFERENCE]})
    side.matched(asked, BLOCK_TOKENS)
    side.matched(asked, BLOCK_TOKENS)
    side.allocated(asked, SimpleNamespace(get_block_ids=lambda: ([20, 21, 22, 23],)), 2 * BLOCK_TOKENS)
    end(side, asked)
    side.allocated(asked, SimpleNamespace(get_block_ids=lambda: ([20, 21, 22, 23],)), 0)
    side.answered(None, {"r"})
    data = side.take_stats().data
    assert (data["prompts"], data["prompt_blocks"], data.get("used_peer_blocks", 0)) == (1, 2, used)


# --- Standing offers -------------------------------------------------------------------------------


def standing(side, seconds=30, **more):
    answer = side.finished(a_request({STANDING: seconds}, **more), (list(range(10, 14)),))
    return answer[REFERENCE] if answer else None


def longer(reference, hashes, **more):
    tokens = (len(hashes) + 1) * BLOCK_TOKENS
    return a_request({REFERENCE: reference}, num_prompt_tokens=tokens, block_hashes=hashes, **more)


def test_of_a_standing_offer_the_common_beginning_is_taken(side):
    reference = standing(side)
    own = [bytes([i]) * 32 for i in range(BLOCKS)]
    other = [b"x" * 32, b"y" * 32]
    assert side.matched(longer(reference, own + other), 0) == (BLOCKS * BLOCK_TOKENS, True)
    assert side.matched(longer(reference, own[:2] + other), 0) == (2 * BLOCK_TOKENS, True)
    assert side.matched(longer(reference, own[:2] + other), BLOCK_TOKENS) == (BLOCK_TOKENS, True)
    assert side.matched(longer(reference, own[:1]), 0) == (BLOCK_TOKENS, True)
    assert side.matched(longer(reference, other), 0) == (0, False)
    assert computes(side, "r").declines == []


def test_no_more_than_a_share_of_the_engine_stands_on_offer_and_no_longer_than_the_option_says(side):
    references = [standing(side, 10**6, request_id=f"r{i}") for i in range(9)]
    assert [one is not None for one in references] == [True] * 8 + [False]  # 24 of 100 pages
    offers = computes(side).offers
    assert [offer.standing_s for offer in offers] == [Transfer().standing] * 8
    assert offers[0].keys == keys_of([bytes([i]) * 32 for i in range(BLOCKS)])
    assert offered(side) is not None  # for one decode engine, as before


@pytest.mark.parametrize("seconds", [0, -1, "30", None, True, float("nan"), float("inf"), [30]], ids=str)
def test_a_wrong_time_offers_nothing(side, seconds):
    assert standing(side, seconds) is None


@pytest.mark.parametrize("change", [{"blocks": 7}, {"blocks": ""}, {"tokens": None}, {"blocks": "zz" * 100},
                                    {"block_tokens": 32}], ids=str)
def test_a_standing_reference_of_another_form_is_not_used(side, change):
    reference = {**standing(side), **change}
    assert side.matched(longer(reference, [bytes([i]) * 32 for i in range(BLOCKS)]), 0) == (0, False)


class BrokenRank:
    addresses = ["tcp:127.0.0.1:1"]

    def ask(self, *_, **__):
        raise RuntimeError("std::bad_cast")

    def ended_offers(self):
        return []


def test_whatever_a_reference_does_to_a_worker_the_prompt_is_computed():
    worker = TransferWorker(BrokenRank(), 1.0, RateLimitedLog(Log()))
    worker.begin_loads([Ask("r", {"expects_note": "yes"}, [4, 5], 0, 32, KEY)])
    assert worker.take_results() == ({"r"}, set())
    assert worker.take_bad_pages() == {4, 5}
    assert worker.take_answer().failed_asks == {"r"}


class WaitingRank(BrokenRank):
    """Its peer has sent what this process cannot take."""

    def __init__(self):
        self.released = []

    def ask(self, *_, **__):
        return 7

    def wait(self, *_, **__):
        raise RuntimeError("std::bad_cast")

    def ended_offers(self):
        raise RuntimeError("std::bad_cast")

    def release(self, number):
        self.released.append(number)


def test_whatever_a_peer_does_to_a_worker_the_prompt_is_computed():
    worker = TransferWorker(WaitingRank(), 1.0, RateLimitedLog(Log()))
    worker.begin_loads([Ask("r", {}, [4, 5], 0, 32, KEY)])
    assert worker.take_results() == ({"r"}, set())
    assert worker.take_bad_pages() == {4, 5} and worker._rank.released == [7]
    assert worker.take_answer().failed_asks == {"r"}


def test_a_worker_without_a_cache_answers_for_each_offer():
    worker = TransferWorker(None, 1.0, RateLimitedLog(Log()))
    worker.begin_offers([Offer(7, "0" * 32, [1], 16, KEY)])
    assert worker.take_answer().finished_jobs == {7: 1}


class LateRank(BrokenRank):
    """Knows the offer when it is asked for the third time."""

    def __init__(self, knows_at=3, code="not_found"):
        self.asks, self.knows_at, self.code, self.released = 0, knows_at, code, []

    def ask(self, *_, **__):
        self.asks += 1
        return self.asks

    def wait(self, number, timeout_s):
        if number < self.knows_at:
            return {"state": "failed", "error": "no such offer", "code": self.code, "bytes": 0}
        return {"state": "done", "error": None, "code": None, "bytes": 64}

    def release(self, number):
        self.released.append(number)


def loaded(worker):
    until = time.monotonic() + 30
    while not (finished := worker.take_results()[0]):
        assert time.monotonic() < until, "the load does not end"
        time.sleep(0.005)
    return finished


@pytest.mark.parametrize("code", ["not_found", "cancelled"])
def test_an_answer_that_is_faster_than_its_offer_is_asked_for_again(code):
    worker = TransferWorker(LateRank(code=code), 1.0, RateLimitedLog(Log()))
    worker.begin_loads([Ask("r", {}, [4, 5], 0, 32, KEY)])
    assert loaded(worker) == {"r"} and worker.take_bad_pages() == set()
    assert worker._rank.released == [1, 2, 3]


def test_an_offer_that_never_comes_is_computed():
    worker = TransferWorker(LateRank(10**9), 1.0, RateLimitedLog(Log()))
    worker.begin_loads([Ask("r", {}, [4, 5], 0, 32, KEY)])
    assert loaded(worker) == {"r"} and worker.take_bad_pages() == {4, 5}


def test_other_failures_are_not_asked_for_again():
    worker = TransferWorker(LateRank(code="stale"), 1.0, RateLimitedLog(Log()))
    worker.begin_loads([Ask("r", {}, [4, 5], 0, 32, KEY)])
    assert loaded(worker) == {"r"} and worker.take_bad_pages() == {4, 5} and worker._rank.asks == 1


# --- Once per machine ------------------------------------------------------------------------------


def parallel(ranks, per_node, backend="mp"):
    return SimpleNamespace(world_size=ranks, local_world_size=per_node, distributed_executor_backend=backend)


def grouped(tp_size, heads=1):
    return KvGeometry(attention="grouped", layers=2, kv_heads=max(1, heads // tp_size), head_dim=64, dtype="f32",
                      block_tokens=BLOCK_TOKENS, tp_size=tp_size, tp_replicas=max(1, tp_size // heads))


LATENT = KvGeometry(attention="latent", layers=2, kv_lora_rank=512, qk_rope_head_dim=64, dtype="f32",
                    block_tokens=BLOCK_TOKENS, tp_size=4)


@pytest.mark.parametrize("geometry, ranks, per_node, backend, machines", [
    (grouped(2), 2, 2, "mp", [0, 0]), (LATENT, 4, 2, "mp", [0, 0, 1, 1]), (LATENT, 8, 4, "mp", [0] * 4 + [1] * 4),
    (grouped(2, heads=4), 2, 2, "mp", None), (grouped(1), 1, 1, "uni", None), (LATENT, 4, 4, "ray", None),
    (LATENT, 4, 4, "external_launcher", None), (LATENT, 4, 4, object, None)])
def test_ranks_that_hold_the_same_bytes_share_a_machine_where_vllm_says_so(geometry, ranks, per_node, backend, machines):
    assert machines_of(parallel(ranks, per_node, backend), geometry) == machines


def asks_of(options, addresses):
    """What a scheduler of two ranks tells its workers."""
    made = TransferScheduler(options, "d", BLOCK_TOKENS, 2, 1, may_load=True, may_store=True, log=RateLimitedLog(Log()))
    made.bind_pages(Pages())
    made.set_addresses({(0, rank): [address] for rank, address in addresses.items()})
    reference = {"tokens": BLOCKS * BLOCK_TOKENS, "block_tokens": BLOCK_TOKENS, "last_block": (bytes([BLOCKS - 1]) * 32).hex()}
    asked = a_request({REFERENCE: reference})
    found = made.matched(asked, 0)
    made.allocated(asked, SimpleNamespace(get_block_ids=lambda: ([20, 21, 22, 23],)), found[0])
    return computes(made, "r")


def test_workers_learn_where_the_others_of_their_engine_are():
    addresses = {1: "tcp:127.0.0.1:2", 0: "tcp:127.0.0.1:1"}
    assert asks_of(Transfer(), addresses).loads[0].instance == [["tcp:127.0.0.1:1"], ["tcp:127.0.0.1:2"]]
    assert asks_of(Transfer(once_per_machine=False), addresses).loads[0].instance == []


def test_an_engine_in_which_a_worker_takes_no_part_declines():
    step = asks_of(Transfer(), {0: "tcp:127.0.0.1:1"})
    assert step.loads == [] and len(step.declines) == 1


PAGES, TOKENS, LISTEN = 8, BLOCKS * BLOCK_TOKENS, ["tcp:127.0.0.1:0"]


class Machine:
    """A prefill rank, and two workers of a decode engine on one machine; all have the same head."""

    def __init__(self, machines):
        self.caches = [[np.full((2, PAGES, BLOCK_TOKENS, 1, 64), rank, np.float32) for _ in range(2)] for rank in range(3)]
        for layer, tensor in enumerate(self.caches[0]):
            tensor[:] = np.random.default_rng(layer).random(tensor.shape)

        def rank(instance, number, tp_size, **more):
            geometry = KvGeometry(**{**grouped(tp_size).__getstate__(), "tp_rank": number})
            return TransferRank(instance=instance, model="m", geometry=geometry, layout="vllm_kbnhc", pages=PAGES,
                                tensors=self.caches[number + tp_size - 1], listen=LISTEN, peer_timeout_s=1, **more)
        self.prefill = rank("p", 0, 1)
        self.ranks = [rank("d", number, 2, machines=machines) for number in range(2)]
        self.workers = [TransferWorker(one, 600.0, RateLimitedLog(Log())) for one in self.ranks]
        self.offers = 0

    def ask(self, fetcher=0, name="r", **offer):
        self.offers += 1
        self.id = f"{self.offers:016x}{2 + fetcher:016x}"
        self.prefill.offer(self.id, [1, 2, 3], TOKENS, deadline_s=60, **offer)
        reference = {"instance": "p", "id": self.id, "tokens": TOKENS, "tp_size": 1, "pp_size": 1,
                     "addresses": [self.prefill.addresses]}
        return Ask(name, reference, [4, 5, 6], 0, TOKENS, KEY, [one.addresses for one in self.ranks])

    def is_right(self, rank):
        return all((own[:, 4:7] == given[:, 1:4]).all() for own, given in zip(self.caches[1 + rank], self.caches[0]))

    def sent(self):
        return self.prefill.statistics()["sent_bytes"]

    def close(self):
        for one in [self.prefill, *self.ranks]:
            one.close()


@pytest.fixture(params=[[0, 0]], ids=str)
def machine(request):
    made = Machine(request.param)
    yield made
    made.close()


BYTES = 2 * 2 * TOKENS * 64 * 4


def both_loaded(machine, name="r"):
    """Both workers are polled in turn, as vLLM's steps do."""
    left, until = {0, 1}, time.monotonic() + 30
    while left:
        assert time.monotonic() < until, f"ranks {left} do not end"
        left -= {rank for rank in left if name in machine.workers[rank].take_results()[0]}
        time.sleep(0.005)
    return [worker.take_bad_pages() for worker in machine.workers]


@pytest.mark.parametrize("machine, times", [([0, 0], 1), ([0, 1], 2), (None, 2)], ids=str, indirect=["machine"])
def test_ranks_of_a_machine_get_the_bytes_once(machine, times):
    for number, (fetcher, first) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)], start=1):
        for cache in machine.caches[1:]:
            for tensor in cache:
                tensor[:] = 0
        ask = machine.ask(fetcher)
        for rank in (first, 1 - first):
            machine.workers[rank].begin_loads([ask])
        assert both_loaded(machine) == [set(), set()]
        assert machine.is_right(0) and machine.is_right(1)
        assert machine.sent() == number * times * BYTES
    stats = [worker.take_stats().data for worker in machine.workers]
    assert sum(one.get("sent_bytes", 0) for one in stats) == 4 * (2 - times) * BYTES
    assert sum(one["transferred_bytes"] for one in stats) == 4 * 2 * BYTES


def test_a_rank_whose_sister_never_asks_does_not_stall(machine):
    machine.workers[0].begin_loads([machine.ask(fetcher=0)])  # for 600 s
    assert loaded(machine.workers[0]) == {"r"} and machine.workers[0].take_bad_pages() == set()


def test_an_offer_that_is_not_there_fails_all_ranks(machine):
    ask = machine.ask(fetcher=0)
    machine.prefill.withdraw(machine.id)
    for worker in reversed(machine.workers):
        worker.begin_loads([ask])
    assert both_loaded(machine) == [{4, 5, 6}] * 2


def test_an_offer_that_comes_late_is_taken_by_all_ranks(machine):
    ask = machine.ask(fetcher=0)
    ask.reference["id"] = "0" * 31 + "2"
    for worker in reversed(machine.workers):
        worker.begin_loads([ask])
    until = time.monotonic() + 0.2
    while time.monotonic() < until:
        assert all(not worker.take_results()[0] for worker in machine.workers)
    machine.prefill.offer(ask.reference["id"], [1, 2, 3], TOKENS, deadline_s=60)
    assert both_loaded(machine) == [set(), set()]
    assert machine.is_right(0) and machine.is_right(1) and machine.sent() == BYTES


@pytest.mark.parametrize("gone", [0, 1])
def test_a_prompt_that_is_aborted_leaves_no_page_held(machine, gone):
    ask = machine.ask(fetcher=0, layers_ready=1)
    for worker in machine.workers:
        worker.begin_loads([ask])
    for rank, worker in zip(machine.ranks, machine.workers):
        assert rank.wait(worker._pending["r"].number, layers=1, timeout_s=30)["layers"] == 1
    machine.workers[gone].forget({"r"})
    machine.workers[1 - gone].forget({"r"})
    assert both_loaded(machine) == [set(), set()]
    until = time.monotonic() + 30
    while not (ended := machine.prefill.ended_offers()):
        assert time.monotonic() < until
    assert ended[0][0] == machine.id
    for rank in machine.ranks:
        assert rank.statistics()["open_asks"] == 0
    # The next prompt.
    ask = machine.ask(fetcher=0, name="next")
    for worker in machine.workers:
        worker.begin_loads([ask])
    assert both_loaded(machine, "next") == [set(), set()] and machine.is_right(0) and machine.is_right(1)
