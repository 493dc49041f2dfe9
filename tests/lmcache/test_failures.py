"""Failures of the pool under the adapter: no call raises, and what works later works again."""

import subprocess
import time

from conftest import WAIT_S, equal, keys_of

from cachalot.command import PROGRAM
from cachalot.connectors.lmcache.buffers import Buffers


def test_a_pool_that_is_missing_at_the_start_is_attached_later(adapters, pools, l1, tmp_path):
    path = f"/dev/shm/cachalot_lmcache_late_{tmp_path.name}"
    driver = adapters(l1, pool=path)
    keys, objects, answers = keys_of("a", 2), l1.objects(2, seed=1), l1.objects(2)
    assert not driver.adapter.report_status()["is_attached"] and driver.adapter.report_status()["is_healthy"]
    assert driver.lookup(keys) == [False, False]
    assert not driver.store(keys, objects).is_successful()
    assert driver.load(keys, answers) == [False, False]
    pools(path=path)
    driver.until_attached()
    assert driver.store(keys, objects).is_successful()
    assert driver.load(keys, answers) == [True, True] and all(equal(objects, answers))


def test_without_a_keeper_loads_go_on_and_stores_fail(adapters, pool, l1, monkeypatch):
    puts, put = [], Buffers.put
    monkeypatch.setattr(Buffers, "put", lambda self, *given: puts.append(given) or put(self, *given))
    driver = adapters(l1, pool=pool.path, keeper_timeout=0.2)
    keys, new = keys_of("a", 4), keys_of("n", 4)
    objects, answers = l1.objects(4, seed=1), l1.objects(4)
    assert driver.store(keys, objects).is_successful()
    pool.kill()
    tasks = [driver.adapter.submit_store_task(keys_of(f"n{n}", 4), objects) for n in range(20)]
    assert driver.lookup(keys) == [True] * 4
    assert driver.load(keys, answers) == [True] * 4 and all(equal(objects, answers))
    before = len(puts)
    # Blocks that the keeper has granted before may still be written; without it none of them is published.
    assert not any(driver.stored(task).is_successful() for task in tasks)
    # A call that waited for the keeper in vain fails those that are queued: LMCache holds their memory meanwhile.
    assert len(puts) - before < 20, "80 objects waited for the keeper one after another"
    pool.serve()
    until = time.monotonic() + WAIT_S
    while not driver.store(new, objects).is_successful():  # the client attaches to the next keeper by itself
        assert time.monotonic() < until
    answers = l1.objects(4)
    assert driver.load(new, answers) == [True] * 4 and all(equal(objects, answers))


def test_after_the_pool_was_removed_the_next_one_at_its_path_is_used(adapters, pool, pools, l1):
    driver = adapters(l1, pool=pool.path, keeper_timeout=0.2)
    keys, objects, answers = keys_of("a", 2), l1.objects(2, seed=1), l1.objects(2)
    assert driver.store(keys, objects).is_successful()
    pool.kill()
    subprocess.run([str(PROGRAM), "pool", "destroy", pool.path], check=True, capture_output=True)
    assert not driver.store(keys_of("b", 2), objects).is_successful()
    pools(path=pool.path)
    until = time.monotonic() + WAIT_S
    while not driver.store(keys_of("b", 2), objects).is_successful():
        assert time.monotonic() < until
    assert driver.lookup(keys) == [False, False]  # they were in the other pool
    assert driver.load(keys_of("b", 2), answers) == [True, True] and all(equal(objects, answers))


def test_a_repeated_failure_is_one_line_in_the_log(adapters, pool, l1, caplog):
    driver = adapters(l1, pool=pool.path)
    for n in range(20):
        assert not driver.store(keys_of(f"a{n}", 1), [l1.object(2 * l1.object().get_size())]).is_successful()
    lines = [record for record in caplog.records if "a store failed" in record.getMessage()]
    assert len(lines) == 1
