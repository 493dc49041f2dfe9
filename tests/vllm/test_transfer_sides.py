"""The sides of a transfer without an engine: what is never handed over."""

import time
from types import SimpleNamespace

import pytest

from cachalot.connectors.vllm.log import RateLimitedLog
from cachalot.connectors.vllm.messages import keys_of
from cachalot.connectors.vllm.options import Transfer
from cachalot.connectors.vllm.transfer.messages import Ask, Offer
from cachalot.connectors.vllm.transfer.scheduler import REFERENCE, STANDING, TransferScheduler
from cachalot.connectors.vllm.transfer.worker import TransferWorker

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
        "status": SimpleNamespace(name="FINISHED_LENGTH_CAPPED"), "lora_request": None, **more})


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


def test_prompts_of_adapters_are_computed(side):
    reference = offered(side)[REFERENCE]
    assert offered(side, lora_request=object()) is None
    assert side.matched(a_request({REFERENCE: reference}, lora_request=object()), 0) == (0, False)


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
    assert worker.take_answer() is None


def test_a_worker_without_a_cache_answers_for_each_offer():
    worker = TransferWorker(None, 1.0, RateLimitedLog(Log()))
    worker.begin_offers([Offer(7, "0" * 32, [1], 16, KEY)])
    assert worker.take_answer().finished_jobs == {7: 1}


class LateRank(BrokenRank):
    """Knows the offer when it is asked for the third time."""

    def __init__(self, knows_at=3):
        self.asks, self.knows_at, self.released = 0, knows_at, []

    def ask(self, *_, **__):
        self.asks += 1
        return self.asks

    def wait(self, number, timeout_s):
        if number < self.knows_at:
            return {"state": "failed", "error": "no such offer", "code": "not_found", "bytes": 0}
        return {"state": "done", "error": None, "code": None, "bytes": 64}

    def release(self, number):
        self.released.append(number)


def loaded(worker):
    until = time.monotonic() + 30
    while not (finished := worker.take_results()[0]):
        assert time.monotonic() < until, "the load does not end"
        time.sleep(0.005)
    return finished


def test_an_answer_that_is_faster_than_its_offer_is_asked_for_again():
    worker = TransferWorker(LateRank(), 1.0, RateLimitedLog(Log()))
    worker.begin_loads([Ask("r", {}, [4, 5], 0, 32, KEY)])
    assert loaded(worker) == {"r"} and worker.take_bad_pages() == set()
    assert worker._rank.released == [1, 2, 3]


def test_an_offer_that_never_comes_is_computed():
    worker = TransferWorker(LateRank(10**9), 1.0, RateLimitedLog(Log()))
    worker.begin_loads([Ask("r", {}, [4, 5], 0, 32, KEY)])
    assert loaded(worker) == {"r"} and worker.take_bad_pages() == {4, 5}
