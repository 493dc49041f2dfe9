"""The sides of a transfer without an engine: what is never handed over."""

import time
from types import SimpleNamespace

import pytest

from cachalot.connectors.vllm.log import RateLimitedLog
from cachalot.connectors.vllm.transfer.messages import Ask, Offer
from cachalot.connectors.vllm.transfer.scheduler import REFERENCE, TransferScheduler
from cachalot.connectors.vllm.transfer.worker import TransferWorker

BLOCK_TOKENS, BLOCKS = 16, 3


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
    made = TransferScheduler("p", BLOCK_TOKENS, 1, 1, may_load=True, may_store=True, log=RateLimitedLog(Log()))
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


class BrokenRank:
    addresses = ["tcp:127.0.0.1:1"]

    def ask(self, *_, **__):
        raise RuntimeError("std::bad_cast")

    def ended_offers(self):
        return []


def test_whatever_a_reference_does_to_a_worker_the_prompt_is_computed():
    worker = TransferWorker(BrokenRank(), 1.0, RateLimitedLog(Log()))
    worker.begin_loads([Ask("r", {"expects_note": "yes"}, [4, 5], 0)])
    assert worker.take_results() == ({"r"}, set())
    assert worker.take_bad_pages() == {4, 5}
    assert worker.take_answer() is None


def test_a_worker_without_a_cache_answers_for_each_offer():
    worker = TransferWorker(None, 1.0, RateLimitedLog(Log()))
    worker.begin_offers([Offer(7, "0" * 32, [1], 16)])
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
    worker.begin_loads([Ask("r", {}, [4, 5], 0)])
    assert loaded(worker) == {"r"} and worker.take_bad_pages() == set()
    assert worker._rank.released == [1, 2, 3]


def test_an_offer_that_never_comes_is_computed():
    worker = TransferWorker(LateRank(10**9), 1.0, RateLimitedLog(Log()))
    worker.begin_loads([Ask("r", {}, [4, 5], 0)])
    assert loaded(worker) == {"r"} and worker.take_bad_pages() == {4, 5}
