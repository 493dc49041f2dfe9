"""Requests without an engine: of some nothing is shared, and a decode engine waits for blocks that its prefill engine still
stores."""

import logging
import threading
import weakref
from types import SimpleNamespace

import pytest
import test_sides as sides

from cachalot.connectors.vllm import scheduler, weight_updates, worker
from cachalot.connectors.access.log import RateLimitedLog
from cachalot.connectors.vllm.messages import Chain, Load, StepAnswer, Store
from cachalot.connectors.vllm.options import parse
from test_sides import BLOCK, Pool, begin, step_of

BLOCK_TOKENS = 128


class FakePool:
    """found: what the next lookups say, the last one again and again."""

    group = SimpleNamespace(namespace="vllm/1 model=a")

    def __init__(self, *found):
        self.found, self.lookups = list(found), 0

    def get(self):
        return self

    def namespaces(self):
        return [self.group.namespace]

    def lookup(self, hashes):
        self.lookups += 1
        return min(self.found.pop(0) if len(self.found) > 1 else self.found[0], len(hashes))


@pytest.fixture
def clock(monkeypatch):
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr(scheduler.time, "monotonic", lambda: made.now)
    return made


def side_of(pool, may_store=False):
    return scheduler.SchedulerSide(parse({"pool": "/dev/shm/none"}), [(pool, 0)], BLOCK_TOKENS, 1, may_load=True,
                                   may_store=may_store, is_async=True, log=RateLimitedLog(logging.getLogger()))


def request_of(params, blocks=11):
    return SimpleNamespace(request_id="a", num_tokens=blocks * BLOCK_TOKENS + 5, kv_transfer_params=params,
                           num_output_tokens=1, num_prompt_tokens=blocks * BLOCK_TOKENS, skip_reading_prefix_cache=False,
                           resumable=False,
                           num_computed_tokens=blocks * BLOCK_TOKENS, status=SimpleNamespace(name="FINISHED_STOPPED"),
                           block_hashes=[bytes([i]) * 32 for i in range(blocks)])


def test_waits_until_all_promised_blocks_are_there(clock):
    pool = FakePool(0, 0, 4, 9, 11)
    side, request = side_of(pool), request_of({"cachalot_stored_tokens": 11 * BLOCK_TOKENS})
    for _ in range(4):
        assert side.matched(request, 0) == (None, False)
        clock.now += 0.9
    assert side.matched(request, 0) == (11 * BLOCK_TOKENS, True)


def test_takes_what_is_there_when_no_more_blocks_come(clock):
    pool = FakePool(4)
    side, request = side_of(pool), request_of({"cachalot_stored_tokens": 11 * BLOCK_TOKENS})
    assert side.matched(request, 0) == (None, False)
    clock.now += 0.9
    assert side.matched(request, 0) == (None, False)
    clock.now += 0.2
    assert side.matched(request, 0) == (4 * BLOCK_TOKENS, True)
    assert side.matched(request, 0) == (4 * BLOCK_TOKENS, True)  # and does not wait again


def test_waits_for_no_more_than_the_prompt_and_the_promise_have(clock):
    for promised, there in ((5, 5), (5, 7), (1 << 60, 11)):
        side = side_of(FakePool(there))
        assert side.matched(request_of({"cachalot_stored_tokens": promised * BLOCK_TOKENS}), 0) == (
            there * BLOCK_TOKENS, True)


@pytest.mark.parametrize("params", [None, {}, {"cachalot_stored_tokens": None}, {"cachalot_stored_tokens": "9"},
                                    {"cachalot_stored_tokens": -1}, {"cachalot_stored_tokens": 1e9}])
def test_without_a_promise_it_does_not_wait(clock, params):
    assert side_of(FakePool(0)).matched(request_of(params), 0) == (0, False)


def test_does_not_wait_for_what_the_engine_has(clock):
    side, request = side_of(FakePool(0)), request_of({"cachalot_stored_tokens": 6 * BLOCK_TOKENS})
    assert side.matched(request, 6 * BLOCK_TOKENS) == (0, False)


@pytest.mark.parametrize("params, told", [({"do_remote_decode": True}, {"cachalot_stored_tokens": 7 * BLOCK_TOKENS}),
                                          ({}, None), (None, None)])
def test_a_prefill_says_what_it_stores(clock, params, told):
    side, request = side_of(FakePool(7), may_store=True), request_of(params)
    side.matched(request, 0)  # 7 blocks are in the pool, and there are no pages for more
    assert side.finished(request, ([],)) == told


def test_an_aborted_prefill_says_nothing(clock):
    side, request = side_of(FakePool(7), may_store=True), request_of({"do_remote_decode": True})
    side.matched(request, 0)
    request.status.name = "FINISHED_ABORTED"
    assert side.finished(request, ([],)) is None


# --- What is not shared -----------------------------------------------------------------------------------------------


def test_after_two_loads_of_one_request_nothing_is_stored_until_both_are_answered():
    """With a pipeline, a request may be preempted and load again before its first load is answered."""
    side, loading, step = sides.side_of(Pool(found=4), workers=1), sides.request_of("a", 5), step_of({"b": 3 * BLOCK})
    side.added(sides.request_of("b", 3))
    for _ in range(2):
        begin(side, loading)
        assert side.step(step).stores == []
    side.answered(StepAnswer(ended_loads={"a": 1}), ())
    assert side.step(step).stores == []
    side.answered(StepAnswer(ended_loads={"a": 1}), ())
    assert len(side.step(step).stores) == 1


def test_before_a_sleep_copies_end_and_what_was_to_be_stored_after_it_is_void(monkeypatch):
    """The memory of the pages goes, and comes back with other bytes."""
    monkeypatch.setattr(weight_updates, "_sides", weakref.WeakSet())
    pool, may_store, stored = Pool(), threading.Event(), []
    pool.load_async = lambda *_, **__: SimpleNamespace(done=lambda: True, result=lambda: 2, wait=lambda: True)

    def store(*_, **__):
        may_store.wait(10)
        stored.append(True)
        return SimpleNamespace(blocks=1, written=1, reason=None)

    pool.store = store
    work = worker.WorkerSide(sides.OPTIONS, [pool], True, sides.LOG)
    work.begin_loads([Load("a", 0, Chain(bytes(2 * 16), ([3, 4],)), True)])
    for job in (1, 2):
        work.begin_stores([Store(job, "b", 0, Chain(bytes(16), ([5],)))])

    class Executor:
        def collective_rpc(self, method, *_, **__):
            threading.Timer(0.05, may_store.set).start()
            method(self)

        def sleep(self, level=1):
            self.stored = len(stored)

    before = weight_updates.sleeps()
    weight_updates._watch_sleep(Executor, "sleep")
    weight_updates._watch_sleep(Executor, "sleep")
    engine = Executor()
    engine.sleep(level=1)
    assert engine.stored == 2 and weight_updates.sleeps() == before + 1
    assert work.take_results()[0] == {"a"} and work.take_bad_pages() == {3, 4}
    work.close()
    assert weight_updates._update_of(weight_updates.end_copies) == ""

    side = sides.side_of(pool, workers=2, is_async=True)
    side.added(sides.request_of("c", 3))
    side.finished(sides.request_of("c", 3), (list(range(1, 9)),))
    assert side.has_held_pages() and side.has_unsent_stores()
    side.pages_lost()
    assert not side.has_held_pages() and side.step(step_of({})).stores == []


def test_a_request_whose_whole_prompt_must_be_computed_takes_nothing_and_stores():
    """Of tokens that are not computed vLLM has no logprobs."""
    pool = Pool(found=4)
    side, request = sides.side_of(pool, workers=1, is_async=True), sides.request_of("a", 5)
    request.skip_reading_prefix_cache = True
    assert begin(side, request) == 0
    (store,) = side.step(step_of({"a": 5 * BLOCK})).stores
    assert len(store.chain) == 5
    side.finished(request, (list(range(1, 9)),))
    assert pool.prompts == []  # it has not asked


def test_a_session_that_takes_its_prompt_in_pieces_is_not_shared():
    """The next piece replaces the last token of the answer, and the hash of its block stays."""
    side, request = sides.side_of(Pool(found=4), workers=1, is_async=True), sides.request_of("a", 5)
    request.resumable = True
    assert begin(side, request) == 0
    assert side.step(step_of({"a": 5 * BLOCK})).stores == []
    side.finished(request, (list(range(1, 9)),))
    assert side.step(step_of({})).stores == []
