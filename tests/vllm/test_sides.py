"""The connector's two sides without an engine: what vLLM's scheduler and workers would tell them."""

import logging
import os
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from cachalot.connectors.vllm import scheduler, weight_updates, worker
from cachalot.connectors.access import weight_updates as access_updates
from cachalot.connectors.access.log import RateLimitedLog
from cachalot.connectors.vllm.messages import Chain, Load, StepAnswer, Store
from cachalot.connectors.vllm.options import parse
from cachalot.connectors.vllm.prefill_times import PrefillTimes
from cachalot.connectors.vllm.transfer.with_pool import PooledTransferScheduler
from cachalot.errors import IoError, NoKeeperError, TimeoutError

BLOCK = 32
OPTIONS = parse({"pool": "/dev/shm/none", "storage_wait": 0})
WITH_STORAGE = parse({"pool": "/dev/shm/none"})
LOG = RateLimitedLog(logging.getLogger())


class Pool:
    """What a lookup finds; what a store does."""

    group = SimpleNamespace(namespace="vllm/1 model=a", geometry=SimpleNamespace(block_bytes=1))
    device, is_over = None, False

    def __init__(self, found=0, error=None):
        self.found, self.error, self.stores, self.prompts, self.retained = found, error, 0, [], []

    def get(self):
        return self

    def get_with(self):
        return self, {0: 0}

    def lookup(self, hashes):
        return min(self.found, len(hashes))

    def namespaces(self):
        return []

    def take_registrations(self):
        return []

    def count_prompt(self, asked, from_pool=0, from_peers=0, from_storage=0):
        self.prompts.append((asked, from_pool, from_peers, from_storage))

    def retain(self, session, hashes, seconds):
        self.retained.append((session, len(hashes), seconds))

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
        self.held, self.cached_block_hash_to_block, self.in_use = [], {}, 0

    def get_num_free_blocks(self):
        return self.num_gpu_blocks - 1 - self.in_use

    def touch(self, blocks):
        self.held += blocks

    def free_blocks(self, blocks):
        for block in list(blocks):
            self.held.remove(block)


def request_of(name, blocks):
    return SimpleNamespace(request_id=name, num_tokens=blocks * BLOCK + 5, kv_transfer_params=None,
                           num_prompt_tokens=blocks * BLOCK + 5, num_output_tokens=0,
                           num_computed_tokens=blocks * BLOCK, status=SimpleNamespace(name="FINISHED_STOPPED"),
                           all_token_ids=[1] * (blocks * BLOCK + 5), skip_reading_prefix_cache=False, resumable=False,
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
        self.stored, self.is_there, self.asks = stored, has_storage, 0
        self.answers, self.arrives = threading.Event(), threading.Event()
        self.answers.set()

    def has_storage(self):
        return self.is_there

    def begin_prefetch(self, hashes):
        self.answers.wait(10)
        self.asks -= 1
        if self.asks >= 0:  # storage that other hosts write has not answered yet
            return self.found, 0, True
        return self.found, min(self.stored, len(hashes) - self.found), False

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


def test_a_prompt_that_is_more_than_the_share_is_stored_and_others_wait():
    """Of 100 pages one store alone may hold 50, several together 25."""
    side = side_of(Pool(), workers=1)
    step = lambda name, blocks: SimpleNamespace(  # noqa: E731
        scheduled_new_reqs=[SimpleNamespace(req_id=name, num_computed_tokens=0)], num_scheduled_tokens={name: blocks * BLOCK},
        scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[]),
        kv_connector_block_state=SimpleNamespace(get_block_ids=lambda _: (list(range(1, 70)),)))
    long, longer, short = request_of("long", 40), request_of("longer", 60), request_of("short", 3)
    side.added(long)
    first, = side.step(step("long", 40)).stores
    assert len(first.chain) == 40
    side.added(short)
    assert side.step(step("short", 3)).stores == []
    side.answered(StepAnswer(finished_jobs={first.job: 1}), ())
    side.added(longer)
    second, = side.step(step("longer", 60)).stores
    assert len(second.chain) == 50
    side.answered(StepAnswer(finished_jobs={second.job: 1}), ())
    side.finished(longer, (list(range(1, 70)),))
    rest, = side.step(step("short", 0)).stores
    assert (len(rest.chain), rest.chain.parent) == (10, second.chain.keys[-len(rest.chain.parent):])
    assert side.take_stats().data["skipped_stores"] == 2


@pytest.mark.parametrize("error,right", [(TimeoutError, 1), (IoError, 0)])
def test_only_a_deadline_tells_how_many_blocks_are_right(error, right):
    """Of other errors `detail` is another number: a driver's, or the system's."""

    class Failing(Pool):
        def load_async(self, *_, **__):
            failure = error("it fails")
            failure.detail = 1 if error is TimeoutError else 700

            def result():
                raise failure

            return SimpleNamespace(result=result, done=lambda: True)

    side = worker.WorkerSide(OPTIONS, [Failing()], False, LOG)
    side.begin_loads([Load("a", 0, Chain(bytes(48), ([5, 6, 7],)), is_async=True)])
    assert side.take_results()[0] == {"a"}
    assert side.take_bad_pages() == {5, 6, 7} - set([5, 6, 7][:right])
    assert side.take_answer().right_blocks == {"a": right}
    side.close()


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


def test_after_an_update_of_the_weights_nothing_is_shared_until_the_engine_has_no_block_of_before():
    pool, pages = Pool(found=4), Pages()
    side = side_of(pool, is_async=True)
    side.bind_pages(pages)
    before, request = request_of("a", 3), request_of("b", 5)
    side.added(before)
    (old,) = side.step(step_of({"a": 3 * BLOCK})).stores
    pages.in_use, pages.cached_block_hash_to_block = 3, {"a": 1}
    side.weights_changed()
    assert side.step(step_of({})).voids_loads and not side.step(step_of({})).voids_loads
    for pages.in_use, pages.cached_block_hash_to_block in ((3, {"a": 1}), (0, {"a": 1}), (3, {})):
        side.added(request)
        assert side.matched(request, 0) == (0, False)
        assert side.step(step_of({"b": 5 * BLOCK})).stores == []
        side.finished(before, (list(range(1, 9)),))
        assert side.step(step_of({})).stores == []
    pages.in_use, pages.cached_block_hash_to_block = 0, {}
    side.added(request)
    pages.in_use = 5  # its own
    assert side.matched(request, 0) == (4 * BLOCK, True)
    (new,) = side.step(step_of({"b": 5 * BLOCK})).stores
    assert new.chain.keys[:16] != old.chain.keys[:16]  # the two prompts are equal


def a_function_of_a_user(worker):
    pass


@pytest.mark.parametrize("method, kwargs, update", [
    ("execute_model", None, ""), ("sleep", {"level": 1}, ""), ("sleep", {"level": 2}, "sleep"), ("wake_up", {"tags": None}, ""),
    ("reload_weights", {"weights_path": "/a"}, "reload_weights"), ("update_weights", {"update_info": {}}, "update_weights"),
    ("a_method_of_a_user", None, "a_method_of_a_user"), (a_function_of_a_user, None, "a_function_of_a_user")])
def test_a_call_on_the_workers_that_may_write_weights_is_an_update(method, kwargs, update):
    class Executor:
        def collective_rpc(self, method, timeout=None, args=(), kwargs=None, non_block=False):
            return method

    access_updates.watch(Executor, "collective_rpc", weight_updates._update_of)
    access_updates.watch(Executor, "collective_rpc", weight_updates._update_of)
    before = access_updates.count()
    assert Executor().collective_rpc(method, kwargs=kwargs, non_block=True) is method
    assert access_updates.count() == before + (update != "")
    assert not update or access_updates.last() == update


def adapter_at(folder, number=1, reload=False):
    return SimpleNamespace(lora_name="tuned", lora_int_id=number, lora_path=str(folder), load_inplace=reload)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An adapter's, and a count of reloads of its own."""
    monkeypatch.setattr(weight_updates, "_reloads", Counter())
    monkeypatch.setattr(weight_updates, "_first_files", {})
    (tmp_path / "adapter_model.safetensors").write_bytes(b"one")
    return tmp_path


def stores_of(side, name, adapter):
    request = request_of(name, 3)
    request.lora_request = adapter
    side.added(request)
    return len(side.step(step_of({name: 3 * BLOCK})).stores)


def test_an_adapter_that_is_loaded_again_in_place_is_shared_no_more(folder):
    side = side_of(Pool(found=1), workers=1, is_async=True)
    running = request_of("running", 5)
    running.lora_request = adapter_at(folder)
    side.added(running)
    assert len(side.step(step_of({"running": 3 * BLOCK})).stores) == 1
    assert weight_updates._update_of("add_lora", None, (adapter_at(folder),)) == ""
    assert len(side.step(step_of({"running": 4 * BLOCK})).stores) == 1
    weight_updates._update_of("add_lora", None, (adapter_at(folder, reload=True),))
    assert side.step(step_of({"running": 5 * BLOCK})).stores == []
    assert stores_of(side, "next", adapter_at(folder)) == 0
    assert side.matched(running, 0)[0] == BLOCK  # what was stored is right
    assert stores_of(side, "other", adapter_at(folder, number=2)) == 1


@pytest.mark.parametrize("change", ["files", "path", "files under another number", "reload by a request"])
def test_an_adapter_that_is_another_now_is_shared_no_more(folder, change):
    side = side_of(Pool(), workers=1)
    assert stores_of(side, "a", adapter_at(folder)) == 1
    assert stores_of(side, "b", adapter_at(folder)) == 1
    other = folder / "other"
    if change == "path":
        other.mkdir()
        os.link(folder / "adapter_model.safetensors", other / "adapter_model.safetensors")
    elif change.startswith("files"):
        (folder / "adapter_model.safetensors").write_bytes(b"another")
    given = adapter_at(other if change == "path" else folder, number=2 if "number" in change else 1, reload="reload" in change)
    assert stores_of(side, "c", given) == 0
    assert stores_of(side, "d", given) == 0


@pytest.mark.parametrize("changes", [False, True])
def test_an_adapter_whose_files_change_after_it_was_loaded_is_not_shared(folder, changes):
    """The workers load it before its first request, whose files would give it another name."""
    weight_updates._update_of("add_lora", None, (adapter_at(folder),))
    if changes:
        (folder / "adapter_model.safetensors").write_bytes(b"another")
    assert stores_of(side_of(Pool(), workers=1), "a", adapter_at(folder)) == (0 if changes else 1)


@pytest.mark.parametrize("limit, loaded, stored", [
    (None, 4, 5), (0, 0, 0), (BLOCK - 1, 0, 0), (2 * BLOCK + 1, 2, 2), (100 * BLOCK, 4, 5),
    (-1, 4, 5), (True, 4, 5), (1.5, 4, 5), ("64", 4, 5)])
def test_a_request_may_limit_what_it_takes_and_stores(limit, loaded, stored, monkeypatch):
    logged = []
    monkeypatch.setattr(LOG, "warning", lambda kind, text, *values: logged.append(text % values))
    side = side_of(Pool(found=4), workers=1, is_async=True)
    taker, giver = request_of("taker", 5), request_of("giver", 5)
    taker.kv_transfer_params = {"max_load_tokens": limit}
    giver.kv_transfer_params = {"max_offload_tokens": limit}
    assert side.matched(taker, 0) == (loaded * BLOCK, loaded > 0)
    assert side.matched(taker, BLOCK)[0] == min(loaded, 3) * BLOCK  # beside what the engine has itself
    side.added(giver)
    assert sum(len(store.chain) for store in side.step(step_of({"giver": 5 * BLOCK})).stores) == stored
    is_number = limit is None or type(limit) is int and limit >= 0
    assert bool(logged) != is_number and all(f"is {limit!r}; expected a number of tokens" in line for line in logged)


@pytest.mark.parametrize("params, retained", [
    (None, []), ({"cachalot_session": "a"}, [("a/0", 3, 600)]),
    ({"cachalot_session": "a", "cachalot_session_seconds": 7}, [("a/0", 3, 7)]),
    ({"cachalot_session": 5}, []), ({"cachalot_session": "a", "cachalot_session_seconds": "7"}, []),
    ({"cachalot_session": "a", "cachalot_session_seconds": -1}, [])])
def test_what_the_pool_has_of_a_sessions_prompt_is_retained_when_its_request_ends(params, retained):
    pool = Pool(found=3)
    side, request = side_of(pool, workers=1), request_of("one", 5)
    request.kv_transfer_params = params
    side.added(request)
    side.step(step_of({"one": 5 * BLOCK}))
    side.finished(request, ([1, 2, 3, 4, 5],))
    assert pool.retained == retained


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


def test_of_loads_that_the_weights_overtake_no_block_is_used():
    pool = Pool()
    pool.load_async = lambda *_, **__: SimpleNamespace(done=lambda: True, result=lambda: 2)
    side = worker.WorkerSide(OPTIONS, [pool], True, LOG)
    side.begin_loads([Load("a", 0, Chain(bytes(2 * 16), ([3, 4],)), True)])
    side.void_loads()
    side.begin_loads([Load("b", 0, Chain(bytes(2 * 16), ([5, 6],)), True)])
    assert side.take_results()[0] == {"a", "b"} and side.take_bad_pages() == {3, 4}
    side.close()


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


def test_storage_of_several_hosts_answers_each_prompt_later():
    pool = StoredPool(found=1, stored=3)
    pool.asks = 60
    pool.arrives.set()
    side = side_of(pool, options=WITH_STORAGE)
    requests = [request_of(name, 5) for name in "abc"]
    for request in requests:
        assert side.matched(request, 0) == (None, False)
    for request in requests:
        assert until(lambda: side.matched(request, 0), (4 * BLOCK, False)) == (4 * BLOCK, False)
    assert pool.asks < 0
    side.close()


@pytest.mark.parametrize("call", ["has_storage", "begin_prefetch"])
def test_the_attachment_hears_of_a_question_that_failed(call):
    """A client that only reads does not notice that its pool was replaced by another one."""
    pool, error = StoredPool(found=1, stored=3), NoKeeperError("no keeper")
    heard = []
    pool.failed = lambda client, error: heard.append(error)

    def fail(*_):
        raise error

    setattr(pool, call, fail)
    side = side_of(pool, options=WITH_STORAGE)
    assert until(lambda: side.matched(request_of("a", 5), 0), (BLOCK, False)) == (BLOCK, False)
    assert heard and all(one is error for one in heard)
    side.close()


def test_blocks_that_never_come_are_computed():
    side = side_of(StoredPool(found=1, stored=3), options=parse({"pool": "/dev/shm/none", "storage_wait": 0.2}))
    request = request_of("a", 5)
    assert until(lambda: side.matched(request, 0), (BLOCK, False)) == (BLOCK, False)
    side.close()


@pytest.mark.parametrize("ends_by", ["step", "finish"])
def test_blocks_of_storage_are_waited_for_no_longer_than_computing_them_takes(ends_by):
    side = side_of(StoredPool(found=1, stored=3), options=WITH_STORAGE)
    first = request_of("first", 6)
    side.added(first)
    begins = step_of({})
    begins.scheduled_new_reqs = [SimpleNamespace(req_id="first", num_computed_tokens=0)]
    side.step(begins)
    time.sleep(0.3)  # for 197 tokens
    first.num_output_tokens = 1
    if ends_by == "step":
        side.step(step_of({}))
    else:
        side.finished(first, ([],))
    began, asked = time.monotonic(), []
    for name, missing in ("a", 5), ("b", 9):
        request, began = request_of(name, missing + 1), time.monotonic()
        assert until(lambda: side.matched(request, 0), (BLOCK, False)) == (BLOCK, False)
        asked.append((time.monotonic() - began) / missing)
    assert all(0.3 / 197 * BLOCK <= seconds < 3 * 0.3 / 197 * BLOCK for seconds in asked), asked
    side.close()


def test_how_long_a_prompt_takes_is_the_median_of_the_latest_ones():
    clock = [0.0]
    times = PrefillTimes(lambda: clock[0])
    requests = {str(i): SimpleNamespace(num_prompt_tokens=1000, num_output_tokens=0) for i in range(200)}
    assert times.seconds_of(100) is None

    def step(new=()):
        times.step(SimpleNamespace(scheduled_new_reqs=[SimpleNamespace(req_id=name, num_computed_tokens=tokens)
                                                       for name, tokens in new]), requests.get)

    for i in range(100):
        seconds = 9.0 if i % 3 == 0 else 0.5 if i < 60 else 1.0
        step([(str(i), 500)])  # the rest is a hit
        clock[0] += seconds / 2
        step()  # in two steps
        clock[0] += seconds / 2
        requests[str(i)].num_output_tokens = 1
        step()
    assert times.seconds_of(100) == pytest.approx(0.2)
    # Short prompts, those that ended without a token and those that vLLM has not begun say nothing.
    step([("100", 990), ("101", 0), ("nothing", 0)])
    del requests["101"]
    clock[0] += 1000
    requests["100"].num_output_tokens = 1
    step()
    assert times.seconds_of(100) == pytest.approx(0.2)
    assert not times._begun


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


# --- Hit rate ---------------------------------------------------------------------------------------------------------

PAGES = SimpleNamespace(get_block_ids=lambda: (list(range(1, 9)),))


def counts_of(side):
    data = side.take_stats().data
    return tuple(data.get(name, 0) for name in
                 ("prompts", "prompt_blocks", "used_pool_blocks", "used_peer_blocks", "used_storage_blocks"))


def begin(side, request, computed=0):
    """Until vLLM has pages for the request. Returns the blocks that it loads."""
    for _ in range(3):  # there was no room for it
        tokens, _ = side.matched(request, computed)
    side.allocated(request, PAGES, tokens)
    return tokens // BLOCK


@pytest.mark.parametrize("computed, found, expected", [
    (0, 4, (5, 4, 0, 0)),  # of five blocks the pool has four
    (BLOCK, 4, (4, 3, 0, 0)),  # the engine has the first one itself
    (0, 0, (5, 0, 0, 0)),
    (3 * BLOCK, 2, (2, 0, 0, 0)),
])
def test_a_request_counts_once_when_its_load_has_ended(computed, found, expected):
    pool = Pool(found=found)
    side = side_of(pool, is_async=True)
    request = request_of("a", 5)
    if begin(side, request, computed):
        assert pool.prompts == []
        side.answered(None, {"a"})
        side.allocated(request, PAGES, 0)  # vLLM says it again
    assert pool.prompts == [expected]
    assert begin(side, request, 0) == found  # preempted
    side.answered(None, {"a"})
    side.finished(request, (list(range(1, 9)),))
    assert pool.prompts == [expected]
    assert counts_of(side) == (1, *expected)


def test_a_request_whose_blocks_the_engine_has_asks_for_nothing():
    pool = Pool(found=4)
    side = side_of(pool, is_async=True)
    request = request_of("a", 5)
    begin(side, request, 5 * BLOCK)
    side.finished(request, (list(range(1, 9)),))
    assert pool.prompts == [] and counts_of(side) == (0, 0, 0, 0, 0)


def test_of_a_failed_load_the_blocks_count_that_are_right_on_all_workers():
    pool = Pool(found=4)
    side = side_of(pool, is_async=True)
    begin(side, request_of("a", 5))
    side.answered(StepAnswer(failed_loads={"a": 0}, right_blocks={"a": 3}), ())
    both = StepAnswer(failed_loads={"a": 0}, right_blocks={"a": 3}).aggregate(
        StepAnswer(failed_loads={"a": 0}, right_blocks={"a": 1}))
    side.answered(both, {"a"})
    assert pool.prompts == [(5, 1, 0, 0)]


def test_a_worker_says_how_much_of_a_failed_load_is_right():
    pool = Pool()
    pool.load_async = lambda *_, **__: SimpleNamespace(done=lambda: True, result=lambda: 2)
    side = worker.WorkerSide(OPTIONS, [pool], True, LOG)
    side.begin_loads([Load("a", 0, Chain(bytes(4 * 16), ([3, 4, 5, 6],)), True)])
    assert side.take_results()[0] == {"a"} and side.take_bad_pages() == {5, 6}
    assert side.take_answer().right_blocks == {"a": 2}
    side.close()


def test_a_synchronous_load_counts_when_all_workers_have_answered_even_after_the_request_has_ended():
    pool = Pool(found=4)
    side = side_of(pool, workers=2)
    requests = [request_of(name, 5) for name in "ab"]
    for request in requests:
        begin(side, request)
    side.step(step_of({}))
    side.finished(requests[0], (list(range(1, 9)),))
    side.answered(StepAnswer(ended_loads={"a": 1, "b": 1}), ())
    assert pool.prompts == []
    side.answered(StepAnswer(ended_loads={"a": 1, "b": 1}, failed_loads={"b": 0}, right_blocks={"b": 2}), ())
    assert pool.prompts == [(5, 4, 0, 0), (5, 2, 0, 0)]
    side.finished(requests[1], (list(range(1, 9)),))
    assert len(pool.prompts) == 2


def test_blocks_that_storage_brought_are_counted_apart():
    pool = StoredPool(found=1, stored=3)
    side = side_of(pool, options=WITH_STORAGE, is_async=True)
    request = request_of("a", 5)
    side.matched(request, 0)
    pool.arrives.set()
    assert until(lambda: side.matched(request, 0), (4 * BLOCK, True)) == (4 * BLOCK, True)
    side.allocated(request, PAGES, 4 * BLOCK)
    side.answered(None, {"a"})
    assert pool.prompts == [(5, 1, 0, 3)]
    side.close()


def test_a_request_that_is_aborted_during_its_load_has_used_nothing():
    pool = Pool(found=4)
    side = side_of(pool, is_async=True)
    request = request_of("a", 5)
    begin(side, request)
    side.finished(request, (list(range(1, 9)),))
    side.answered(None, {"a"})
    assert pool.prompts == [(5, 0, 0, 0)]


def test_a_request_counts_in_one_place_whatever_the_number_of_ranks():
    pools = Pool(found=4), Pool(found=3)
    side = scheduler.SchedulerSide(OPTIONS, [(pool, 0) for pool in pools], BLOCK, 2, may_load=True, may_store=True,
                                   is_async=True, log=LOG)
    side.bind_pages(Pages())
    assert begin(side, request_of("a", 5)) == 3
    side.answered(None, {"a"})
    assert [pool.prompts for pool in pools] == [[(5, 3, 0, 0)], []]


class Transfer(SimpleNamespace):
    """The transfer's side: what a reference offers."""

    def __init__(self, offered):
        super().__init__(offered=offered, step=lambda output: None, finished=lambda *_: None)

    def tell_transferred(self, on_transferred):
        self.on_transferred = on_transferred

    def matched(self, request, computed):
        return self.offered * BLOCK, True

    def allocated(self, *_):
        self.offered = 0  # a reference is used once

    def answered(self, *_):
        pass


@pytest.mark.parametrize("is_done", [True, False])
def test_blocks_of_a_transfer_come_from_peers_and_after_one_that_failed_from_the_pool(is_done):
    pool, transfer = Pool(found=1), Transfer(offered=4)
    both = PooledTransferScheduler(side_of(pool, is_async=True), transfer)
    request = request_of("a", 5)
    assert begin(both, request) == 4
    transfer.on_transferred("a", 4 if is_done else 0)
    if not is_done:
        assert pool.prompts == []
        assert begin(both, request) == 1
        both.answered(None, {"a"})
    both.finished(request, (list(range(1, 9)),))
    assert pool.prompts == [(5, 0, 4, 0) if is_done else (5, 1, 0, 0)]
