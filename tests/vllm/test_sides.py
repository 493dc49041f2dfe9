"""The connector's two sides without an engine: what vLLM's scheduler and workers would tell them."""

import logging
import threading
import time
from types import SimpleNamespace

import pytest

from cachalot.connectors.vllm import scheduler, worker
from cachalot.connectors.vllm.log import RateLimitedLog
from cachalot.connectors.vllm.messages import Chain, Load, StepAnswer, Store
from cachalot.connectors.vllm.options import parse
from cachalot.errors import NoKeeperError

BLOCK = 32
OPTIONS = parse({"pool": "/dev/shm/none", "storage_wait": 0})
WITH_STORAGE = parse({"pool": "/dev/shm/none"})
LOG = RateLimitedLog(logging.getLogger())


class Pool:
    """What a lookup finds; what a store does."""

    group = SimpleNamespace(namespace="vllm/1 model=a", geometry=SimpleNamespace(block_bytes=1))

    def __init__(self, found=0, error=None):
        self.found, self.error, self.stores = found, error, 0

    def get(self):
        return self

    def get_with(self):
        return self, {0: 0}

    def lookup(self, hashes):
        return min(self.found, len(hashes))

    def namespaces(self):
        return []

    def store(self, *_, **__):
        self.stores += 1
        raise self.error

    def failed(self, *_):
        pass

    def close(self):
        pass


class Pages:
    num_gpu_blocks = 100
    blocks = list(range(100))

    def __init__(self):
        self.held = []

    def touch(self, blocks):
        self.held += blocks

    def free_blocks(self, blocks):
        for block in list(blocks):
            self.held.remove(block)


def request_of(name, blocks):
    return SimpleNamespace(request_id=name, num_tokens=blocks * BLOCK + 5, kv_transfer_params=None,
                           num_computed_tokens=blocks * BLOCK, status=SimpleNamespace(name="FINISHED_STOPPED"),
                           all_token_ids=[1] * (blocks * BLOCK + 5),
                           block_hashes=[bytes([i]) * 32 for i in range(blocks)])


def step_of(computed):
    """Each of these requests computes its last block in this step."""
    return SimpleNamespace(
        scheduled_new_reqs=[], num_scheduled_tokens={name: BLOCK for name in computed},
        scheduled_cached_reqs=SimpleNamespace(req_ids=list(computed),
                                              num_computed_tokens=[tokens - BLOCK for tokens in computed.values()]),
        kv_connector_block_state=SimpleNamespace(get_block_ids=lambda name: (list(range(1, 9)),)))


class StoredPool(Pool):
    """A pool with storage behind it: so many blocks come when `arrives` is set."""

    def __init__(self, found, stored, has_storage=True):
        super().__init__(found)
        self.stored, self.is_there = stored, has_storage
        self.answers, self.arrives = threading.Event(), threading.Event()
        self.answers.set()

    def has_storage(self):
        return self.is_there

    def prefetch(self, hashes):
        self.answers.wait(10)
        return self.found, min(self.stored, len(hashes) - self.found)

    def lookup(self, hashes):
        return min(self.found + (self.stored if self.arrives.is_set() else 0), len(hashes))


def until(ask, wanted, patience_s=10.0):
    """vLLM asks again in each step."""
    end = time.monotonic() + patience_s
    while (answer := ask()) != wanted and time.monotonic() < end:
        time.sleep(0.005)
    return answer


def side_of(pool, workers=2, is_async=False, options=OPTIONS):
    made = scheduler.SchedulerSide(options, [(pool, 0)], BLOCK, workers, may_load=True, may_store=True,
                                   is_async=is_async, log=LOG)
    made.bind_pages(Pages())
    return made


def test_nothing_is_stored_until_all_workers_have_loaded():
    """A synchronous load that fails leaves garbage, which other requests and ranks compute from in the same step."""
    side = side_of(Pool(found=4))
    loading, other = request_of("a", 5), request_of("b", 3)
    assert side.matched(loading, 0) == (4 * BLOCK, False)
    side.allocated(loading, SimpleNamespace(get_block_ids=lambda: (list(range(1, 9)),)), 4 * BLOCK)
    side.added(other)
    step = step_of({"a": 5 * BLOCK, "b": 3 * BLOCK})
    metadata = side.step(step)
    assert (len(metadata.loads), metadata.stores) == (1, [])
    side.answered(StepAnswer(ended_loads={"a": 1}), ())
    assert side.step(step).stores == []
    side.finished(other, (list(range(1, 9)),))  # its last tokens may be garbage
    assert side.step(step_of({})).stores == []
    side.answered(StepAnswer(ended_loads={"a": 1}, failed_loads={"a": 0}), ())
    assert side.matched(loading, 0) == (0, False)  # never again
    stores = side.step(step_of({"a": 5 * BLOCK})).stores
    assert [(len(store.chain), store.attempt) for store in stores] == [(5, 1)]


def test_pages_are_held_until_all_workers_have_answered():
    side = side_of(Pool(), is_async=True)
    side.added(request_of("a", 3))
    (store,) = side.step(step_of({"a": 3 * BLOCK})).stores
    for _ in range(2):
        assert side.has_held_pages()
        side.answered(StepAnswer(finished_jobs={store.job: 1}), ())
    assert not side.has_held_pages()


def test_after_a_reset_no_block_of_before_has_its_name():
    side = side_of(Pool(), is_async=True)
    side.added(request_of("a", 3))
    before = side.step(step_of({"a": 3 * BLOCK})).stores[0].chain.keys
    side.reset()
    after = side.step(step_of({"a": 3 * BLOCK})).stores[0].chain.keys
    assert len(before) == len(after)
    assert not {before[i:i + 16] for i in range(0, len(before), 16)} & {after[i:i + 16] for i in range(0, len(after), 16)}


@pytest.mark.parametrize("is_async", [False, True])
def test_a_worker_without_a_supported_cache_answers_that_all_has_failed(is_async):
    side = worker.WorkerSide(OPTIONS, [], False, LOG)
    chain = Chain(bytes(32), ([3, 4],))
    side.begin_loads([Load("a", 0, chain, is_async)])
    finished, failed = side.take_results()
    assert finished == ({"a"} if is_async else set()) and failed == set()
    assert side.take_bad_pages() == {3, 4}
    side.begin_stores([Store(7, "b", 0, chain)])
    answer = side.take_answer()
    assert answer.failed_loads == {"a": 0} and answer.finished_jobs == {7: 1}
    side.close()


def test_a_silent_keeper_does_not_hold_the_pages_of_all_stores():
    pool = Pool(error=NoKeeperError("gone"))
    side = worker.WorkerSide(OPTIONS, [pool], True, LOG)
    for job in range(100):
        side.begin_stores([Store(job, "a", 0, Chain(bytes(16), ([3],)))])
    side.close()  # waits for the stores
    assert pool.stores == 1
    assert len(side.take_answer().finished_jobs) == 100


def test_a_request_that_ends_before_its_load_leaves_nothing():
    class Call:
        is_over = False

        def done(self):
            return self.is_over

        def result(self):
            raise NoKeeperError("gone")

    call = Call()
    pool = Pool()
    pool.load_async = lambda *_, **__: call
    side = worker.WorkerSide(OPTIONS, [pool], True, LOG)
    side.begin_loads([Load("a", 0, Chain(bytes(16), ([3],)), True)])
    assert side.take_results() == (set(), set())
    side.forget({"a"})
    call.is_over = True
    assert side.take_results()[0] == {"a"}
    assert not side._void and not side._aborted
    side.close()


def test_a_prompt_waits_for_blocks_that_storage_brings():
    pool = StoredPool(found=1, stored=3)
    side = side_of(pool, options=WITH_STORAGE)
    request = request_of("a", 5)
    began = time.monotonic()
    while time.monotonic() - began < 0.3:
        assert side.matched(request, 0) == (None, False)
    pool.arrives.set()
    assert until(lambda: side.matched(request, 0), (4 * BLOCK, False)) == (4 * BLOCK, False)
    assert side.take_stats().data["storage_waits"] == 1
    side.close()


def test_blocks_that_never_come_are_computed():
    side = side_of(StoredPool(found=1, stored=3), options=parse({"pool": "/dev/shm/none", "storage_wait": 0.2}))
    request = request_of("a", 5)
    assert until(lambda: side.matched(request, 0), (BLOCK, False)) == (BLOCK, False)
    side.close()


@pytest.mark.parametrize("has_storage", [True, False])
def test_a_prompt_is_not_held_up_where_storage_has_nothing(has_storage):
    side = side_of(StoredPool(found=2, stored=0, has_storage=has_storage), options=WITH_STORAGE)
    for name in "abc":
        request = request_of(name, 5)
        assert until(lambda: side.matched(request, 0), (2 * BLOCK, False), 1.0) == (2 * BLOCK, False)
    if not has_storage:  # once that is known, no prompt waits for an answer
        assert side.matched(request_of("d", 5), 0) == (2 * BLOCK, False)
    side.close()


def test_a_keeper_that_hangs_is_not_waited_for():
    pool = StoredPool(found=2, stored=3)
    pool.answers.clear()
    side = side_of(pool, options=WITH_STORAGE)
    request = request_of("a", 5)
    began = time.monotonic()
    assert until(lambda: side.matched(request, 0), (2 * BLOCK, False)) == (2 * BLOCK, False)
    assert time.monotonic() - began < 5
    pool.answers.set()
    side.close()
