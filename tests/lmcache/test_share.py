"""LMCache's own StorageManager in two processes on one pool: what one stores, the other loads."""

import os
import signal

from conftest import HERE, EngineProcess, spec, wait_for_objects

KEYS = 8


def stored(pool, process, seed, expected):
    assert process.answer(None, do="store", seed=seed, keys=KEYS) == {"written": KEYS}
    wait_for_objects(pool, expected)


def test_one_process_loads_what_another_one_stored(managers, pool):
    one, two, other = managers(pool=pool.path), managers(pool=pool.path), managers(pool=pool.path, salt="other")
    stored(pool, one, 1, KEYS)
    assert two.answer(None, do="load", seed=1, keys=KEYS) == {"hits": KEYS, "from_l2": KEYS, "right": KEYS}
    assert other.answer(None, do="load", seed=1, keys=KEYS)["hits"] == 0
    # A longer prompt: the leading part of it.
    assert two.answer(None, do="load", seed=1, keys=2 * KEYS) == {"hits": KEYS, "from_l2": KEYS, "right": KEYS}
    # LMCache goes on when the pool has lost what it had.
    pool.evict_all()
    assert two.answer(None, do="load", seed=1, keys=KEYS)["hits"] == 0
    stored(pool, two, 1, KEYS)
    assert one.answer(None, do="load", seed=1, keys=KEYS) == {"hits": KEYS, "from_l2": KEYS, "right": KEYS}
    assert one.answer(None, do="status")["is_attached"]


def test_the_objects_of_a_process_that_was_killed_stay(managers, pool):
    one, two = managers(pool=pool.path), managers(pool=pool.path)
    stored(pool, one, 1, KEYS)
    one.answer(None, do="store", seed=2, keys=KEYS)  # perhaps in the middle of it
    os.killpg(one.process.pid, signal.SIGKILL)
    one.process.wait()
    assert two.answer(None, do="load", seed=1, keys=KEYS) == {"hits": KEYS, "from_l2": KEYS, "right": KEYS}
    part = two.answer(None, do="load", seed=2, keys=KEYS)
    assert part["right"] == part["hits"]
    stored(pool, two, 3, 2 * KEYS)
    assert two.answer(None, do="load", seed=3, keys=KEYS)["right"] == KEYS


def test_lmcache_takes_a_load_that_misses_what_the_lookup_found(managers, pool):
    """LMCache's wrapper that makes loads fail: the same that an eviction after the lookup does."""
    one = managers(pool=pool.path)
    stored(pool, one, 1, KEYS)
    faulty = {"type": "fault_inject", "inner": spec(pool=pool.path), "gap_indices": [5]}
    two = EngineProcess(HERE / "lmcache_process.py", faulty, dict(os.environ))
    try:
        assert two.answer(None, do="load", seed=1, keys=KEYS) == {"hits": 5, "from_l2": 5, "right": 5}
    finally:
        two.close()
