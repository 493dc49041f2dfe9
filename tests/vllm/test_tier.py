"""CachalotTier under vLLM's OffloadingConnector: what one engine has computed the next one promotes from the pool."""

import itertools
import os
import time

import pytest
from processes import DEADLINE_S

TOKENS = 1500
FULL = TOKENS // 128 * 128


def external_hits(answer):
    return answer["metrics"].get("vllm:external_prefix_cache_hits", 0)


def counted(answer, name):
    return answer["metrics"].get(f"vllm:cachalot_tier_{name}", 0)


@pytest.fixture
def tiered(engines, models):
    """Starts an engine with vLLM's OffloadingConnector and the tier."""
    made = []

    def start(tier, model=None, extra=None, transfer=None, **arguments):
        made.append(f"cachalot_tier_{os.getpid()}_{next(numbers)}")
        settings = {"spec_name": "MemcpyTieringSpec", "spec_module_path": "memcpy_offload",
                    "cpu_bytes_to_use": 64 << 20, **(extra or {}),
                    "secondary_tiers": [{"type": "CachalotTier", "module_path": "cachalot.connectors.vllm.tier", **tier}]}
        return engines(model or models(), settings, transfer={"kv_connector": "OffloadingConnector",
                                                              "engine_id": made[-1], **(transfer or {})}, **arguments)

    yield start
    for name in made:
        path = f"/dev/shm/vllm_offload_{name}.mmap"
        if os.path.exists(path):
            os.unlink(path)


numbers = itertools.count()


def store(engine, prompt, chunks=FULL // 128):
    """Computes a prompt; further steps carry its chunks to the pool."""
    answer = engine.answer([prompt])
    until = time.monotonic() + DEADLINE_S
    while counted(last := engine.answer([[5, 6, 7]]), "stored_chunks") < chunks:
        assert time.monotonic() < until, (chunks, last["metrics"], engine.text()[-3000:])
    return answer


def test_the_second_engine_promotes_every_full_chunk(models, engines, tiered, pools, prompt):
    pool = pools()
    one = prompt(1, TOKENS)
    computed = store(tiered({"pool": pool.path}), one)
    assert external_hits(computed) == 0
    assert len(set(computed["tokens"][0])) > 3
    assert engines(models()).answer([one])["tokens"] == computed["tokens"]
    second = tiered({"pool": pool.path})
    answer = second.answer([one])
    assert answer["tokens"] == computed["tokens"]
    assert external_hits(answer) == FULL, second.text()[-3000:]
    assert counted(second.answer([[1, 2]]), "loaded_chunks") == FULL // 128


def test_several_groups_in_chunks_of_two_blocks(models, tiered, pools, prompt):
    pool = pools(4 << 20, 128)
    one = prompt(1, TOKENS)
    arguments = {"model": models("gemma3"), "extra": {"blocks_per_chunk": 2}}
    # Of groups with a window, vLLM offloads the last chunks only.
    computed = store(tiered({"pool": pool.path}, **arguments), one, TOKENS // 256 + 5)
    assert len(set(computed["tokens"][0])) > 3
    answer = tiered({"pool": pool.path}, **arguments).answer([one])
    assert answer["tokens"] == computed["tokens"]
    assert external_hits(answer) == TOKENS // 256 * 256


def test_two_ranks(models, tiered, pools, prompt):
    """A chunk holds the bytes of both ranks. Engines of one rank hold other bytes."""
    pool = pools()
    one = prompt(1, TOKENS)
    computed = store(tiered({"pool": pool.path}, tensor_parallel_size=2), one)
    answer = tiered({"pool": pool.path}, tensor_parallel_size=2).answer([one])
    assert answer["tokens"] == computed["tokens"]
    assert external_hits(answer) == FULL
    assert external_hits(tiered({"pool": pool.path}).answer([one])) == 0


OTHERS = {
    "weights": {"model": "llama-retrained"},
    "dtype": {"dtype": "float32"},
    "block": {"block_size": 64},
    "chunk": {"extra": {"blocks_per_chunk": 2}},
}


def test_engines_that_differ_never_meet(models, engines, tiered, pools, prompt):
    pool = pools(4 << 20, 128)
    one = prompt(1, TOKENS)
    store(tiered({"pool": pool.path}), one)
    for name, arguments in OTHERS.items():
        given = dict(arguments)
        given["model"] = models(given.get("model", "llama"))
        answer = tiered({"pool": pool.path}, **given).answer([one])
        assert external_hits(answer) == 0, name
        if name == "weights":
            assert answer["tokens"] == engines(given["model"]).answer([one])["tokens"]
    assert external_hits(tiered({"pool": pool.path, "salt": "x"}).answer([one])) == 0


def test_damaged_chunks_are_computed(tiered, pools, prompt):
    """Every data block is changed behind the pool's back: each load fails, and is not tried again."""
    pool = pools(1 << 20, 64)
    tier = {"pool": pool.path, "checksums": True}
    one = prompt(1, TOKENS)
    computed = store(tiered(tier), one)
    damage(pool.path, (64 + 16) << 20)  # a pool of this capacity has 16 spare blocks
    engine = tiered(tier)
    answer = engine.answer([one])
    assert answer["tokens"] == computed["tokens"]
    assert answer["reasons"] == ["length"]
    failed = counted(engine.answer([[1, 2]]), "failed_loads")
    assert failed == FULL // 128
    assert external_hits(answer) == 0
    # Its own store finds the damaged blocks in its place: they stay a miss.
    assert engine.answer([one + [9]])["reasons"] == ["length"]
    assert counted(engine.answer([[3, 4]]), "failed_loads") == failed


def damage(path, blocks_bytes):
    """The blocks are at the end of a pool's file."""
    with open(path, "r+b") as file:
        size = os.path.getsize(path)
        for at in range(size - blocks_bytes, size, 65536):
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 0x55]))


def test_chunks_that_are_evicted_between_lookup_and_load(tiered, pools, prompt):
    pool = pools(1 << 20, 24)
    one = prompt(1, TOKENS)
    computed = store(tiered({"pool": pool.path}), one)
    engine = tiered({"type": "EvictingTier", "module_path": "evicting_tier", "pool": pool.path})
    answer = store(engine, one)  # the chunks are stored again
    assert answer["tokens"] == computed["tokens"]
    assert answer["reasons"] == ["length"]
    assert counted(engine.answer([[1, 2]]), "failed_loads") == FULL // 128
    assert external_hits(tiered({"pool": pool.path}).answer([one])) == FULL


def test_the_keeper_is_killed(engines, models, tiered, pools, prompt):
    pool = pools()
    tier = {"pool": pool.path, "keeper_timeout": 1.0, "store_timeout": 2.0}
    one, two, three = prompt(1, TOKENS), prompt(2, TOKENS), prompt(3, TOKENS)
    computed = store(tiered(tier), one)
    engine = tiered(tier).wait_ready()
    pool.kill()
    answer = engine.answer([one])  # readers need no keeper
    assert answer["tokens"] == computed["tokens"]
    assert external_hits(answer) == FULL
    reference = engines(models())
    assert engine.answer([two])["tokens"] == reference.answer([two])["tokens"]
    until = time.monotonic() + DEADLINE_S
    while not counted(engine.answer([[5, 6]]), "failed_stores"):
        assert time.monotonic() < until
    pool.serve()
    answer = store(engine, three)
    assert answer["tokens"] == reference.answer([three])["tokens"]
    assert external_hits(tiered(tier).answer([three])) == FULL


def test_no_pool_at_the_start_and_one_later(engines, models, tiered, pools, prompt):
    pool = pools()
    pool.close()
    engine = tiered({"pool": pool.path})
    one, two = prompt(1, TOKENS), prompt(2, TOKENS)
    reference = engines(models())
    assert engine.answer([one])["tokens"] == reference.answer([one])["tokens"]
    assert "no pool" in engine.text()
    pool.serve(*pool.create)
    other = tiered({"pool": pool.path}).wait_ready()  # meanwhile the first one attaches
    answer = store(engine, two)
    assert answer["tokens"] == reference.answer([two])["tokens"]
    assert external_hits(other.answer([two])) == FULL


def test_a_small_pool_evicts_all_the_time(engines, models, tiered, pools, prompt):
    pool = pools(1 << 20, 24)
    tiers = [tiered({"pool": pool.path}, extra={"cpu_bytes_to_use": 8 << 20}) for _ in range(2)]
    reference = engines(models())
    for round in range(2):
        for seed in range(4):
            one = prompt(seed, TOKENS)
            answer = tiers[(round + seed) % 2].answer([one])
            assert answer["tokens"] == reference.answer([one])["tokens"]
            assert answer["reasons"] == ["length"]


def test_the_first_engine_makes_the_pool(tiered, prompt, tmp_path):
    tier = {"pool": f"/dev/shm/cachalot_vllm_tier_{tmp_path.name}", "create": {"size": "64MiB"}}
    one = prompt(1, TOKENS)
    first = tiered(tier)
    computed = store(first, one)
    second = tiered(tier)
    answer = second.answer([one])
    for engine in (first, second):  # before the pool is removed: an engine that runs makes it anew
        engine.close()
    os.unlink(tier["pool"])
    assert answer["tokens"] == computed["tokens"]
    assert external_hits(answer) == FULL
    assert "this engine keeps the pool" in first.text()


def test_with_adapters_nothing_is_shared(tiered, pools, prompt):
    """vLLM does not tell a tier which adapter a request has."""
    pool = pools()
    one = prompt(1, TOKENS)
    engine = tiered({"pool": pool.path}, enable_lora=True, max_loras=1, max_lora_rank=8)
    assert engine.answer([one])["reasons"] == ["length"]
    assert "nothing is shared by the tier" in engine.text()


BAD = {
    "unknown option": ({"pool": "/dev/shm/x", "polo": 1}, "CachalotTier: unknown option 'polo'; did you mean pool?"),
    "no pool": ({}, "CachalotTier: pool: None, expected a path"),
    "an option of the connector": ({"pool": "/dev/shm/x", "load": "sync"}, "CachalotTier: unknown option 'load'"),
    "head groups": ({"pool": "/dev/shm/x", "share_tp": "auto"}, "CachalotTier: unknown option 'share_tp'"),
    "another type": ({"pool": "/dev/shm/x", "workers": "two"}, "CachalotTier: workers: 'two', expected a int"),
    "locality": ({"pool": "/dev/shm/x", "locality": "here"}, "locality: 'here', expected LOCAL or REMOTE"),
    "create without a size": ({"pool": "/dev/shm/x", "create": {}}, "expected either"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options_end_the_engine_with_one_clear_error(tiered, case):
    tier, expected = BAD[case]
    engine = tiered(tier)
    with pytest.raises(AssertionError):
        engine.wait_ready()
    assert expected in engine.text()


def test_blocks_that_do_not_fit_end_the_engine(tiered, pools):
    pool = pools(4096, 64)
    engine = tiered({"pool": pool.path})
    with pytest.raises(AssertionError):
        engine.wait_ready()
    assert "block" in engine.text() and "4096" in engine.text()
