"""The tier alone, with a real pool and a primary tier of the test: jobs, their end, and the order of eviction."""

import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
from vllm.v1.kv_offload.tiering.base import TransferJob

from cachalot import KvGeometry
from cachalot.connectors.access import weight_updates as access_updates
from cachalot.connectors.access.group import Group
from cachalot.connectors.vllm.tier import CachalotTier, cachalot_tier, names

CHUNKS, ROW = 32, 4096


@pytest.fixture
def tiers(monkeypatch):
    """Makes tiers; each has a primary tier of 32 chunks, of which chunk i holds bytes i."""
    geometry = KvGeometry(attention="grouped", layers=1, kv_heads=1, head_dim=ROW // 2, dtype="i8", block_tokens=1)
    monkeypatch.setattr(cachalot_tier, "group_of", lambda *_: Group(0, (), geometry, "m", 0))
    group = SimpleNamespace(group_id=0, tokens_per_block=16, layer_names=("a",))
    spec = SimpleNamespace(blocks_per_chunk=1, config=SimpleNamespace(groups=(group,)))
    made = []

    def make(pool, **options):
        rows = np.repeat(np.arange(CHUNKS, dtype=np.int8), ROW).reshape(CHUNKS, ROW)
        made.append(CachalotTier(offloading_spec=spec, primary_kv_view=memoryview(rows), tier_type="CachalotTier",
                                 pool=pool.path, **options))
        made[-1].rows = rows
        return made[-1]

    yield make
    for tier in made:
        tier.shutdown()


def keys_of(prompt, count):
    return [make_offload_key(b"%s %d" % (prompt, i), 0) for i in range(count)]


def context_of(keys):
    context = ReqContext("r")
    for i, key in enumerate(keys):
        context.set_offload_key_position(key, (i + 1) * 16)
    return context


def run(tier, submit, number, keys, chunks, context):
    """One job, to its end."""
    submit(TransferJob(number, keys, np.array(chunks), submit == tier.submit_load, context))
    while not (results := list(tier.get_finished_jobs())):
        tier._loads.wait_idle()
        tier._stores.wait_idle()
    assert [result.job_id for result in results] == [number]
    return results[0]


def found(tier, keys):
    return [tier.lookup(key, ReqContext("r")) is LookupResult.HIT for key in keys]


def test_chunks_come_back_in_other_slots(tiers, pools):
    tier = tiers(pools(ROW, 64))
    keys = keys_of(b"one", 6)
    assert run(tier, tier.submit_store, 1, keys, range(6), context_of(keys)).success
    assert found(tier, keys) == [True] * 6
    result = run(tier, tier.submit_load, 2, keys, range(20, 26), context_of(keys))
    assert result.success and result.transfer_bytes == 6 * ROW
    assert tier.rows[20:26].tolist() == tier.rows[:6].tolist()


def test_of_a_load_the_chunks_that_are_there_count(tiers, pools):
    tier = tiers(pools(ROW, 64))
    keys = keys_of(b"one", 6)
    run(tier, tier.submit_store, 1, [keys[0], keys[1], keys[4]], [0, 1, 4], context_of(keys))
    result = run(tier, tier.submit_load, 2, keys, range(20, 26), context_of(keys))
    assert not result.success
    assert list(result.successful_keys) == [keys[0], keys[1], keys[4]]
    assert tier.rows[24].tolist() == tier.rows[4].tolist()
    # Another engine may store them: this one tries again after a store of its own.
    assert run(tier, tier.submit_store, 3, keys, range(6), context_of(keys)).success
    assert found(tier, keys) == [True] * 6


def test_a_failed_load_is_a_miss_until_this_engine_stores_the_chunk(tiers, pools):
    pool = pools(ROW, 64)
    tier, other = tiers(pool), tiers(pool)
    keys = keys_of(b"one", 3)
    assert not run(tier, tier.submit_load, 1, keys, range(3), context_of(keys)).success
    run(other, other.submit_store, 1, keys, range(3), context_of(keys))
    assert found(other, keys) == [True] * 3
    assert found(tier, keys) == [False] * 3
    run(tier, tier.submit_store, 2, keys, range(3), context_of(keys))
    assert found(tier, keys) == [True] * 3


def test_the_end_of_a_prompt_is_evicted_first(tiers, pools):
    """Jobs come in any order; each chunk is stored behind the one before it."""
    tier = tiers(pools(ROW, 24))
    keys, others = keys_of(b"one", 8), keys_of(b"other", 40)
    context = context_of(keys)
    run(tier, tier.submit_store, 1, [keys[i] for i in (2, 0, 1)], [2, 0, 1], context)
    run(tier, tier.submit_store, 2, [keys[i] for i in (4, 3)], [4, 3], context)
    run(tier, tier.submit_store, 3, keys[5:], [5, 6, 7], context)
    lengths = set()
    for number, key in enumerate(others):
        run(tier, tier.submit_store, 10 + number, [key], [9], context_of([key]))
        present = found(tier, keys)
        lengths.add(sum(present))
        assert present == [True] * sum(present) + [False] * (8 - sum(present))
    assert len(lengths) > 3


def test_with_a_keeper_that_stands_still_no_call_waits_and_all_jobs_end(tiers, pools):
    pool = pools(ROW, 64)
    tier = tiers(pool, keeper_timeout=1.0, store_timeout=1.0, store_held=0.5)
    keys = keys_of(b"one", 60)
    os.kill(pool.keeper.pid, signal.SIGSTOP)
    try:
        for number in range(60):
            tier.submit_store(TransferJob(number, keys[number : number + 1], np.array([number % CHUNKS]), False,
                                          context_of(keys)))
        tier.drain_jobs()
        results = list(tier.get_finished_jobs())
    finally:
        os.kill(pool.keeper.pid, signal.SIGCONT)
    assert sorted(result.job_id for result in results) == list(range(60))
    skipped = tier.get_stats().reduce()["vllm:cachalot_tier_skipped_stores"]
    assert 60 - CHUNKS / 2 - 1 <= skipped < 60


def test_after_shutdown_the_memory_can_be_released(tiers, pools):
    tier = tiers(pools(ROW, 64))
    view = tier._primary_kv_view
    tier.shutdown()
    view.release()


def test_without_the_engines_configuration_there_is_no_namespace():
    spec = SimpleNamespace(config=SimpleNamespace(engine_id="e"))
    with pytest.raises(RuntimeError, match="no vllm_config of this engine"):
        names.engine_config(spec)


def test_after_a_reset_nothing_of_before_is_found(tiers, pools):
    """vLLM drains the tiers when it resets its caches, as after an update of the weights, and does not reset them."""
    pool = pools(ROW, 64)
    tier, other = tiers(pool), tiers(pool)
    keys = keys_of(b"a", 4)
    context = context_of(keys)
    assert run(tier, tier.submit_store, 1, keys, range(4), context).success
    assert [each.lookup(keys[0], context) for each in (tier, other)] == [LookupResult.HIT] * 2
    tier.drain_jobs()
    assert [each.lookup(keys[0], context) for each in (tier, other)] == [LookupResult.MISS, LookupResult.HIT]
    assert run(tier, tier.submit_store, 2, keys, range(4), context).success
    assert tier.lookup(keys[0], context) == LookupResult.HIT


def test_after_an_update_of_the_weights_the_tier_has_nothing_and_takes_nothing(tiers, pools, monkeypatch):
    """vLLM's primary tier may keep chunks of before, and gives them to this one as others."""
    monkeypatch.setattr(access_updates, "_count", 0)
    pool = pools(ROW, 64)
    tier, other = tiers(pool), tiers(pool)
    keys, new = keys_of(b"one", 6), keys_of(b"new", 2)
    run(tier, tier.submit_store, 1, keys, range(6), context_of(keys))
    load = tier._load

    def load_during_an_update(*given):
        load(*given)
        access_updates._count += 1

    monkeypatch.setattr(tier, "_load", load_during_an_update)
    result = run(tier, tier.submit_load, 2, keys, range(20, 26), context_of(keys))
    assert not result.success and not result.successful_keys
    assert found(tier, keys) == [False] * 6
    assert not run(tier, tier.submit_store, 3, new, range(2), context_of(new)).success
    access_updates._count = 0  # the other tier is of another process
    assert found(other, keys) == [True] * 6 and found(other, new) == [False] * 2
