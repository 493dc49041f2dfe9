"""Why prompts miss, as `cachalot pool info` says it: each cause is planted."""

import json
import re
import subprocess
import time
import urllib.request

import pytest
from conftest import GEOMETRY, Engine, attach, pool_path, tokens_of

import cachalot
from cachalot.command import PROGRAM

MODEL = "vllm/1 model=files:ab kv={kv}"


def info(pool):
    done = subprocess.run([str(PROGRAM), "pool", "info", pool, "--json", "-"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def causes(pool):
    return {one["cause"]: one["detail"] for one in info(pool)["misses"]["causes"]}


def reasons(address):
    """The metric of each cause."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        found = re.findall(r'cachalot_miss_cause\{.*reason="(\w+)"\} (\d)', answer.read().decode())
    return {reason: value == "1" for reason, value in found}


@pytest.fixture
def small_pool():
    with cachalot.EmbeddedKeeper(pool=pool_path(), block_bytes=GEOMETRY.block_bytes, capacity_blocks=32) as keeper:
        yield keeper.pool


def test_prompts_that_come_for_the_first_time(small_pool):
    with Engine(small_pool).client as client:
        assert client.lookup(client.hash_tokens(tokens_of(1, 32))) == 0
    assert info(small_pool)["misses"]["missed_blocks"] == 8
    assert list(causes(small_pool)) == ["never_stored"]


def test_prompts_shorter_than_a_block(small_pool):
    with Engine(small_pool).client as client:
        assert client.lookup(client.hash_tokens(tokens_of(1, 3))) == 0
        assert list(causes(small_pool)) == ["short_prompt"]


def test_blocks_that_were_evicted(small_pool):
    engine = Engine(small_pool)
    with engine.client as client:
        for prompt in range(8):
            client.store(engine.cache, client.hash_tokens(tokens_of(prompt, 32)), range(8))
        assert client.lookup(client.hash_tokens(tokens_of(0, 32))) == 0
    # The keeper publishes its counters some milliseconds later.
    until = time.monotonic() + 10
    while "evicted" not in (found := causes(small_pool)) and time.monotonic() < until:
        time.sleep(0.01)
    assert list(found) == ["evicted"] and found["evicted"].endswith("blocks evicted because the pool is full")


def test_an_engine_with_another_kv_dtype(small_pool):
    writer = Engine(small_pool, model=MODEL.format(kv="auto"))
    reader = Engine(small_pool, model=MODEL.format(kv="fp8"))
    with writer.client as client:
        client.store(writer.cache, client.hash_tokens(tokens_of(1, 32)), range(8))
    with reader.client as client:
        assert client.lookup(client.hash_tokens(tokens_of(1, 32))) == 0
    assert causes(small_pool)["other_namespace"] == "namespaces 1 and 2 share no block: they differ in kv (auto, fp8)"


def geometry(**fields):
    return cachalot.KvGeometry(**{**GEOMETRY.__getstate__(), **fields})


def test_an_engine_with_more_ranks(small_pool):
    one = cachalot.Client(pool=small_pool, model=MODEL.format(kv="auto"), geometry=GEOMETRY)
    two = cachalot.Client(pool=small_pool, model=MODEL.format(kv="auto"), geometry=geometry(kv_heads=1, tp_size=2))
    with one, two:
        two.lookup(two.hash_tokens(tokens_of(1, 32)))
    assert causes(small_pool)["other_namespace"] == (
        "namespaces 1 and 2 share no block: they differ in stored heads (2, 1), stored shard (0/1, 0/2)")


def test_an_engine_with_another_salt(small_pool):
    writer = Engine(small_pool)
    with writer.client as client:
        client.store(writer.cache, client.hash_tokens(tokens_of(1, 32)), range(8))
    with attach(small_pool, salt="another") as client:
        client.lookup(client.hash_tokens(tokens_of(1, 32)))
    assert causes(small_pool)["other_namespace"] == (
        "namespaces 1 and 2 share no block: they differ in what names do not show (salt, hash, block order)")


def test_of_several_namespaces_one_of_the_same_model_is_compared(small_pool):
    """The one of another model differs in one part, that of the same model in two."""
    for model, fields in (("A@1", dict(layers=2)), ("B@1", {}), ("A@1", dict(kv_heads=1, tp_size=2, layers=2))):
        with cachalot.Client(pool=small_pool, model=model, geometry=geometry(**fields)) as client:
            client.lookup(client.hash_tokens(tokens_of(1, 32)))
    assert [one["model"] for one in info(small_pool)["namespaces"]] == ["A@1", "B@1", "A@1"]
    assert [one.get("differs_from", {}).get("id") for one in info(small_pool)["namespaces"]] == [3, None, 1]
    assert causes(small_pool)["other_namespace"] == (
        "namespaces 1 and 3 share no block: they differ in stored heads (2, 1), stored shard (0/1, 0/2)")


def test_of_other_models_it_is_said_that_none_is_of_this_one(small_pool):
    writer = Engine(small_pool, model="A@1")
    with writer.client as client:
        client.store(writer.cache, client.hash_tokens(tokens_of(1, 32)), range(8))
    with attach(small_pool, model="B@1", geometry=geometry(layers=2)) as client:
        client.lookup(client.hash_tokens(tokens_of(1, 32)))
    assert causes(small_pool)["other_namespace"] == (
        "no other namespace is of the model of namespace 2 (B@1), to which nothing was stored")


def test_engines_of_two_models_that_both_store_are_no_cause(small_pool):
    for model in ("A@1", "B@1"):
        engine = Engine(small_pool, model=model)
        with engine.client as client:
            hashes = client.hash_tokens(tokens_of(1, 32))
            assert client.lookup(hashes) == 0
            client.store(engine.cache, hashes, range(8))
    assert list(causes(small_pool)) == ["never_stored"]


@pytest.mark.parametrize("one, other", [
    (("layers=ab", dict(pp_rank=0, pp_size=2)), ("layers=cd", dict(pp_rank=1, pp_size=2, layers=2))),
    (("layers=ab", {}), ("layers=ab state=ef", dict(block_tokens=1))),
])
def test_ranks_and_states_of_one_engine_are_no_cause(small_pool, one, other):
    for names, fields in (one, other):
        with cachalot.Client(pool=small_pool, model=f"{MODEL.format(kv='auto')} {names}", geometry=geometry(**fields)) as client:
            client.lookup(client.hash_tokens(tokens_of(1, 32)))
    assert len(info(small_pool)["namespaces"]) == 2
    assert list(causes(small_pool)) == ["never_stored"]


def test_storage_that_does_not_answer():
    pool = pool_path()
    keeper = subprocess.Popen(
        [str(PROGRAM), "serve", "--pool", pool, "--create", "--block-bytes", str(GEOMETRY.block_bytes), "--capacity-blocks",
         "32", "--storage", "redis://127.0.0.1:1", "--metrics", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        ready = keeper.stdout.readline()
        assert ready.startswith("ready")
        address = next(word.removeprefix("metrics=") for word in ready.split() if word.startswith("metrics="))
        assert set(reasons(address)) == {"source_down", "other_namespace", "not_stored", "evicted", "short_prompt", "never_stored"}
        assert not any(reasons(address).values())
        while info(pool)["storage"] is None:
            assert keeper.poll() is None
        with Engine(pool).client as client:
            client.lookup(client.hash_tokens(tokens_of(1, 32)))
        assert causes(pool)["source_down"] == "the storage is out of use"
        assert [reason for reason, is_there in reasons(address).items() if is_there] == ["source_down"]
    finally:
        keeper.terminate()
        keeper.communicate(timeout=60)
        subprocess.run([str(PROGRAM), "pool", "destroy", pool], check=True, capture_output=True)


def test_a_keeper_that_brings_a_block_is_no_engine_of_short_prompts(tmp_path):
    pool = pool_path()

    def run(*words, **options):
        return subprocess.run([str(PROGRAM), *words, "--pool", pool], capture_output=True, check=True, timeout=60, **options)

    keeper = subprocess.Popen(
        [str(PROGRAM), "serve", "--pool", pool, "--create", "--block-bytes", "4096", "--capacity-blocks", "32", "--storage",
         f"file:{tmp_path}/storage"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert keeper.stdout.readline().startswith("ready")
        run("put", "key", input=b"bytes")
        while (info(pool)["storage"] or {}).get("objects") != 1:
            assert keeper.poll() is None
        run("evict", "key")
        assert run("get", "key", "--storage-wait", "10").stdout == b"bytes"
        assert [one["pid"] for one in info(pool)["attached"]] == [keeper.pid]
        assert causes(pool) == {}
    finally:
        keeper.terminate()
        keeper.communicate(timeout=60)
        subprocess.run([str(PROGRAM), "pool", "destroy", pool], check=True, capture_output=True)


def test_a_namespace_that_fills_less_of_a_block_is_warned_of():
    with cachalot.EmbeddedKeeper(pool=pool_path(), block_bytes=8192, capacity_blocks=32) as keeper:
        with Engine(keeper.pool).client as client:
            client.lookup(client.hash_tokens(tokens_of(1, 32)))
            (space,) = info(keeper.pool)["namespaces"]
            assert space["block_bytes"] == GEOMETRY.block_bytes == client.block_bytes
            said = subprocess.run([str(PROGRAM), "pool", "info", keeper.pool], capture_output=True, text=True, check=True).stdout
    assert "namespace 1 fills 38 % of a block: its own pool would have --block-bytes 3072" in said
