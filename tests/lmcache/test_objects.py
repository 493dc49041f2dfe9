"""Objects in a pool: their bytes, their names, and what is missing."""

import threading

import pytest
import torch
from conftest import OBJECT_BYTES, equal, keys_of
from lmcache.v1.distributed.api import ObjectKey

from cachalot.connectors.lmcache.buffers import Buffers
from cachalot.connectors.lmcache.names import name_of


def test_loads_the_bytes_that_were_stored(adapters, pool, l1):
    driver = adapters(l1, pool=pool.path)
    keys, objects, answers = keys_of("a", 8), l1.objects(8, seed=1), l1.objects(8)
    assert driver.lookup(keys) == [False] * 8
    assert driver.store(keys, objects).bytes_transferred() == 8 * OBJECT_BYTES
    assert driver.lookup(keys) == [True] * 8
    assert driver.load(keys, answers) == [True] * 8
    driver.adapter.submit_unlock(keys)
    assert all(equal(objects, answers))
    assert driver.load(keys, answers) == [True] * 8  # after the unlock, too


def test_a_second_store_succeeds_without_writing(adapters, pool, l1):
    driver = adapters(l1, pool=pool.path)
    keys, objects = keys_of("a", 4), l1.objects(4, seed=1)
    driver.store(keys[:3], objects[:3])
    again = driver.store(keys, objects)
    assert again.is_successful() and again.bytes_transferred() == OBJECT_BYTES


def test_bitmaps_say_which_keys_are_there(adapters, pool, l1):
    driver = adapters(l1, pool=pool.path)
    keys, objects = keys_of("a", 9), l1.objects(9, seed=1)
    there = [0, 1, 4, 8]
    driver.store([keys[at] for at in there], [objects[at] for at in there])
    expected = [at in there for at in range(9)]
    answers = l1.objects(9)
    assert driver.lookup(keys) == expected
    assert driver.load(keys, answers) == expected
    assert equal(objects, answers) == expected


@pytest.mark.parametrize("inside", [True, False])
def test_only_objects_outside_of_l1_are_staged(adapters, pool, l1, monkeypatch, inside):
    staged = []
    stage = Buffers._stage
    monkeypatch.setattr(Buffers, "_stage", lambda self, size: staged.append(size) or stage(self, size))
    driver = adapters(l1, pool=pool.path)
    keys, objects, answers = keys_of("a", 4), l1.objects(4, seed=1, inside=inside), l1.objects(4, inside=inside)
    assert driver.store(keys, objects).is_successful()
    assert driver.load(keys, answers) == [True] * 4
    assert all(equal(objects, answers))
    assert len(staged) == (0 if inside else 8)


def test_without_an_l1_buffer_all_is_staged(adapters, pool, l1):
    driver = adapters(pool=pool.path, workers=1)
    sizes = [100, OBJECT_BYTES, 5000]  # the staging buffer grows
    keys = keys_of("a", 3)
    objects = [l1.object(size, seed=size) for size in sizes]
    answers = [l1.object(size) for size in sizes]
    assert driver.store(keys, objects).is_successful()
    assert driver.load(keys, answers) == [True] * 3
    assert all(equal(objects, answers))


def test_an_object_across_the_end_of_l1_is_staged(adapters, pool, l1):
    l1.desc = type(l1.desc)(ptr=l1.desc.ptr, size=OBJECT_BYTES + 1000, align_bytes=1)
    driver = adapters(l1, pool=pool.path)
    keys, objects, answers = keys_of("a", 2), l1.objects(2, seed=1), l1.objects(2)
    assert driver.store(keys, objects).is_successful()
    assert driver.load(keys, answers) == [True, True]
    assert all(equal(objects, answers))


def test_only_the_used_bytes_of_an_object_are_stored(adapters, pool, l1):
    driver = adapters(l1, pool=pool.path)
    keys, objects, answers = keys_of("a", 1), l1.objects(1, seed=1), l1.objects(1)
    objects[0].set_used_size(1000)
    assert driver.store(keys, objects).bytes_transferred() == 1000
    answers[0].set_used_size(1000)
    assert driver.load(keys, answers) == [True]
    assert torch.equal(answers[0].raw_data[:1000], objects[0].raw_data[:1000])
    assert not answers[0].raw_data[1000:].any()


def test_an_object_of_another_size_is_not_loaded(adapters, pool, l1):
    driver = adapters(l1, pool=pool.path)
    keys, objects = keys_of("a", 2), l1.objects(2, seed=1)
    driver.store(keys, objects)
    answers = [l1.object(OBJECT_BYTES // 2), l1.object()]
    assert driver.load(keys, answers) == [False, True]
    assert not answers[0].raw_data.any() and equal(objects, answers)[1]


def test_an_object_over_a_block_fails_its_store_and_no_other(adapters, pool, l1):
    driver = adapters(l1, pool=pool.path)
    keys = keys_of("a", 2)
    objects = [l1.object(2 * OBJECT_BYTES, seed=1), l1.object(seed=2)]
    assert not driver.store(keys, objects).is_successful()
    assert driver.lookup(keys) == [False, True]


def test_fewer_objects_than_keys_fail_the_rest(adapters, pool, l1):
    driver = adapters(l1, pool=pool.path, workers=1)
    keys, objects = keys_of("a", 3), l1.objects(3, seed=1)
    assert not driver.store(keys, objects[:1]).is_successful()
    assert driver.load(keys, l1.objects(1)) == [True, False, False]


def test_memory_of_a_gpu_is_refused(adapters, pool, l1):
    class OnGpu:
        is_cpu = False

        @staticmethod
        def data_ptr():
            return l1.buffer.data_ptr()

    driver = adapters(l1, pool=pool.path)
    keys, objects = keys_of("a", 2), l1.objects(2, seed=1)
    objects[0].raw_data = OnGpu()
    assert not driver.store(keys, objects).is_successful()
    assert driver.lookup(keys) == [False, True]


FIELDS = {"chunk_hash": b"hash", "model_name": "m", "kv_rank": 1, "object_group_id": 2, "cache_salt": "tenant"}
OTHER = {"chunk_hash": b"hasi", "model_name": "n", "kv_rank": 2, "object_group_id": 1, "cache_salt": "other"}


@pytest.mark.parametrize("field", FIELDS)
def test_an_object_with_another_field_is_not_hit(adapters, pool, l1, field):
    driver = adapters(l1, pool=pool.path)
    key, other = ObjectKey(**FIELDS), ObjectKey(**{**FIELDS, field: OTHER[field]})
    driver.store([key], l1.objects(1, seed=1))
    assert driver.lookup([key, other]) == [True, False]
    assert driver.load([other], l1.objects(1)) == [False]


def test_fields_do_not_run_into_each_other():
    ones = ObjectKey(b"ab", "c", 1, 23, "x"), ObjectKey(b"a", "bc", 1, 23, "x"), ObjectKey(b"ab", "c", 12, 3, "x")
    assert len({name_of(one) for one in ones}) == 3
    assert name_of(ObjectKey(b"ab", "c", 1, 23, "x")) == name_of(ones[0])


def test_the_name_of_an_object_stays_the_same():
    """Pools outlive the library: a change of this needs another format in names.py."""
    assert name_of(ObjectKey(b"\x01\x02", "meta/llama", 0x01000100, 3, "s")).hex() == NAME


NAME = "ea072aa8a395f60fb347d8895ea893b60772be3320cd5f682c7e4cef91395c9d"


def test_another_salt_option_shares_nothing(adapters, pool, l1):
    one, two, same = (adapters(l1, pool=pool.path, salt=salt) for salt in ("a", "b", "a"))
    keys = keys_of("a", 2)
    one.store(keys, l1.objects(2, seed=1))
    assert two.lookup(keys) == [False, False]
    assert two.load(keys, l1.objects(2)) == [False, False]
    assert same.lookup(keys) == [True, True]


def test_what_is_evicted_after_the_lookup_is_missing_in_the_load(adapters, pool, l1):
    driver = adapters(l1, pool=pool.path)
    keys, objects, answers = keys_of("a", 4), l1.objects(4, seed=1), l1.objects(4)
    driver.store(keys, objects)
    assert driver.lookup(keys) == [True] * 4
    pool.evict_all()
    assert driver.load(keys, answers) == [False] * 4
    driver.adapter.submit_unlock(keys)
    assert driver.store(keys[:2], objects[:2]).is_successful()
    assert driver.load(keys, answers) == [True, True, False, False]
    assert equal(objects, answers)[:2] == [True, True]


def test_a_full_pool_evicts_the_oldest(adapters, pools, l1):
    driver = adapters(l1, pool=pools(blocks=64).path)
    keys, objects = keys_of("a", 160), l1.objects(80, seed=1)
    for at in range(0, 160, 8):
        driver.store(keys[at:at + 8], objects[at % 80:at % 80 + 8])
    hits = driver.lookup(keys)
    assert not all(hits) and any(hits[-32:])
    answers = l1.objects(8)
    loaded = driver.load(keys[-8:], answers)
    assert equal(objects[-8:], answers) == loaded


def test_damaged_objects_are_missing(adapters, pool, l1):
    driver = adapters(l1, pool=pool.path, checksums=True)
    keys = keys_of("a", 4)
    driver.store(keys, l1.objects(4, seed=1))
    pool.damage()
    assert driver.load(keys, l1.objects(4)) == [False] * 4


def test_many_tasks_at_a_time_give_each_the_right_bytes(adapters, pool, l1):
    driver = adapters(l1, pool=pool.path, workers=3)
    adapter, wrong = driver.adapter, []
    batches = [(keys_of(f"b{n}", 4), l1.objects(4, seed=n)) for n in range(24)]
    stores = {adapter.submit_store_task(*batch) for batch in batches}
    results = {}
    driver.wait(adapter.get_store_event_fd(),
                lambda: results.update(adapter.pop_completed_store_tasks()) or (True if stores <= set(results) else None))
    assert all(result.is_successful() for result in results.values())
    tasks = [(adapter.submit_load_task(keys, answers), keys, objects, answers)
             for (keys, objects), answers in zip(batches, [l1.objects(4) for _ in batches])]

    def look_up():
        task = adapter.submit_lookup_and_lock_task(batches[0][0], {})
        bitmap = driver.wait(adapter.get_lookup_and_lock_event_fd(), lambda: adapter.query_lookup_and_lock_result(task))
        if bitmap.popcount() != 4:
            wrong.append(bitmap)

    thread = threading.Thread(target=look_up)
    thread.start()
    for task, keys, objects, answers in reversed(tasks):
        assert driver.loaded(task, keys) == [True] * 4
        assert all(equal(objects, answers))
    thread.join()
    assert not wrong
