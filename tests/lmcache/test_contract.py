"""The interface of the installed LMCache: what it asks of an adapter."""

import inspect
import itertools
import select
import threading

import pytest
from conftest import equal, keys_of
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.platform import consume_fd

from cachalot.connectors.lmcache import CachalotL2Adapter
from cachalot.connectors.lmcache.lane import Lane
from cachalot.errors import InvalidArgumentError

ABSTRACT = sorted(L2AdapterInterface.__abstractmethods__)


@pytest.mark.parametrize("name", ABSTRACT)
def test_has_each_abstract_method_with_the_same_parameters(name):
    ours, theirs = getattr(CachalotL2Adapter, name), getattr(L2AdapterInterface, name)
    assert ours is not theirs
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


def test_event_fds_differ_in_one_adapter_and_between_two(adapters, pool):
    fds = []
    for driver in (adapters(pool=pool.path), adapters(pool=pool.path)):
        adapter = driver.adapter
        fds += [adapter.get_store_event_fd(), adapter.get_lookup_and_lock_event_fd(), adapter.get_load_event_fd()]
    assert len(set(fds)) == 6


def test_results_of_unknown_tasks_are_none(adapters, pool):
    adapter = adapters(pool=pool.path).adapter
    assert adapter.query_load_result(12345) is None
    assert adapter.query_lookup_and_lock_result(12345) is None
    assert adapter.pop_completed_store_tasks() == {}


def test_a_task_without_keys_is_completed(adapters, pool):
    driver = adapters(pool=pool.path)
    assert driver.store([], []).is_successful()
    assert driver.lookup([]) == [] and driver.load([], []) == []


def test_tasks_of_all_kinds_have_different_numbers(adapters, pool, l1):
    driver = adapters(l1, pool=pool.path)
    adapter, keys, objects = driver.adapter, keys_of("a", 1), l1.objects(1, seed=1)
    numbers = [adapter.submit_store_task(keys, objects), adapter.submit_lookup_and_lock_task(keys, {}),
               adapter.submit_load_task(keys, l1.objects(1)), adapter.submit_store_task(keys, objects)]
    assert len(set(numbers)) == 4


@pytest.mark.parametrize("given, expected", [
    ({"poll": "/dev/shm/a"}, "adapter_params: unknown option 'poll'; did you mean pool"),
    ({}, "adapter_params: pool: None, expected a path"),
    ({"pool": "/dev/shm/a", "workers": 0}, "adapter_params: workers: 0, expected 1 to"),
    ({"pool": "/dev/shm/a", "workers": 1000}, "adapter_params: workers: 1000, expected 1 to"),
    ({"pool": "/dev/shm/a", "workers": "2"}, "adapter_params: workers: '2', expected a int"),
    ({"pool": "/dev/shm/a", "store_held": 0.5}, "adapter_params: unknown option 'store_held'"),
])
def test_refuses_wrong_options_with_one_error(adapters, given, expected):
    before = threading.active_count()
    with pytest.raises(InvalidArgumentError) as error:
        adapters(**given)
    assert expected in str(error.value)
    assert threading.active_count() == before


def test_close_ends_the_threads_and_detaches(adapters, pool):
    adapter = adapters(pool=pool.path).adapter
    assert [one for one in threading.enumerate() if one.name.startswith("cachalot-lmcache")]
    assert pool.info()["attached"]
    adapter.close()
    adapter.close()  # nothing more
    assert not [one for one in threading.enumerate() if one.name.startswith("cachalot-lmcache")]
    assert not pool.info()["attached"]


def test_close_while_tasks_are_queued_ends(adapters, pool, l1):
    adapter = adapters(l1, pool=pool.path, workers=1).adapter
    keys, objects = keys_of("a", 32), l1.objects(32, seed=1)
    for _ in range(200):
        adapter.submit_store_task(keys, objects)
        adapter.submit_load_task(keys, objects)
    adapter.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("cachalot-lmcache")]
    assert adapter.submit_load_task(keys, objects) >= 0  # raises nothing


def test_work_that_raises_fails_its_part_and_the_lane_goes_on():
    failures = []

    def work(keys, objects):
        if "bad" in keys:
            raise RuntimeError("bad key")
        return [1] * len(keys)

    lane = Lane("test", 2, work, itertools.count(), lambda name, error: failures.append(f"{name}: {error}"), lambda task: None)
    numbers = [lane.submit(["bad", "good"], [None, None]), lane.submit(["good"], [None])]
    poller, done = select.poll(), {}
    poller.register(lane.event_fd, select.POLLIN)
    while len(done) < 2:
        assert poller.poll(60_000), "the lane says nothing"
        consume_fd(lane.event_fd)
        done.update((task.number, task.outcomes) for task in lane.take_all())
    lane.close()
    assert done == {numbers[0]: [None, 1], numbers[1]: [1]}
    assert failures == ["test: bad key"]


def test_listeners_hear_of_stores_and_loads_and_may_raise(adapters, pool, l1):
    heard = []

    class Listener:
        def on_l2_keys_stored(self, keys, sizes):
            heard.append(("stored", len(keys), sum(sizes)))
            raise RuntimeError("a listener that fails")

        def on_l2_keys_accessed(self, keys):
            heard.append(("accessed", len(keys)))

    driver = adapters(l1, pool=pool.path)
    driver.adapter.register_listener(Listener())
    keys, objects, answers = keys_of("a", 3), l1.objects(3, seed=1), l1.objects(3)
    assert driver.store(keys, objects).is_successful()
    assert driver.load(keys, answers) == [True] * 3 and all(equal(objects, answers))
    assert heard == [("stored", 3, 3 * objects[0].get_size()), ("accessed", 3)]
    assert driver.store(keys, objects).is_successful()
    assert heard[2:] == []  # the pool had them
