"""Engines of different tensor parallelism in one pool: share_tp."""

import numpy as np
import pytest

import cachalot
import cachalot.tier
from conftest import GEOMETRY, Engine, attach, tokens_of

BLOCKS = 6


class Rank:
    """One of tp_size ranks of the engine of conftest: its tensors are the whole ones' heads."""

    def __init__(self, pool, tp_rank=0, tp_size=1, seed=1, **options):
        heads = 2 // tp_size
        self.heads = slice(tp_rank * heads, (tp_rank + 1) * heads)
        geometry = cachalot.KvGeometry(layers=3, kv_heads=heads, head_dim=32, dtype="f16", block_tokens=4,
                                       tp_rank=tp_rank, tp_size=tp_size)
        self.client = attach(pool, geometry=geometry, **{"share_tp": 2, **options})
        random = np.random.default_rng(seed)
        whole = [random.random((2, 16, 4, 2, 32)).astype(np.float16) for _ in range(3)]
        self.tensors = [np.ascontiguousarray(tensor[..., self.heads, :]) for tensor in whole]
        self.cache = self.client.register_cache("vllm_kbnhc", self.tensors, pages=16)

    def hashes(self, blocks=BLOCKS):
        return self.client.hash_tokens(tokens_of(1, 4 * blocks))

    def store(self, blocks=BLOCKS):
        return self.client.store(self.cache, self.hashes(blocks), range(blocks))

    def load(self):
        return self.client.load(self.cache, self.hashes(), range(10, 10 + BLOCKS))

    def holds(self, whole, blocks):
        """Whether a load has brought this rank's heads of another one's first pages."""
        return all(np.array_equal(mine[:, 10 : 10 + blocks], theirs[:, :blocks, :, self.heads])
                   for mine, theirs in zip(self.tensors, whole.tensors))


def test_what_one_rank_stores_each_of_two_ranks_loads(pool):
    whole = Rank(pool)
    assert whole.client.block_bytes == GEOMETRY.block_bytes // 2
    assert whole.store().written == BLOCKS
    for tp_rank in range(2):
        half = Rank(pool, tp_rank, 2, seed=2)
        assert half.hashes() == whole.hashes()
        assert half.client.lookup(half.hashes()) == BLOCKS
        assert half.load() == BLOCKS and half.holds(whole, BLOCKS)


def test_what_two_ranks_store_one_rank_loads_as_far_as_both_have_it(pool):
    first, second, whole = Rank(pool, 0, 2), Rank(pool, 1, 2), Rank(pool, seed=2)
    assert first.store().blocks == BLOCKS
    assert whole.client.lookup(whole.hashes()) == 0
    assert second.store(4).blocks == 4
    assert whole.load() == 4
    for half in (first, second):
        assert all(np.array_equal(whole.tensors[layer][:, 10:14, :, half.heads], half.tensors[layer][:, :4])
                   for layer in range(3))
    assert second.client.store_async(second.cache, second.hashes(), range(BLOCKS)).result() == BLOCKS
    assert whole.client.load_async(whole.cache, whole.hashes(), range(BLOCKS)).result() == BLOCKS


def test_layers_and_tokens(pool):
    whole = Rank(pool)
    storing = whole.client.begin_store(whole.cache, whole.hashes(), range(BLOCKS))
    for layer in range(3):
        storing.store_layer(layer)
    assert storing.finish().blocks == BLOCKS
    half = Rank(pool, 1, 2, seed=2)
    loading = half.client.begin_load(half.cache, half.hashes(), range(10, 10 + BLOCKS))
    assert [loading.load_layer(layer) for layer in range(3)] == [BLOCKS] * 3
    assert half.holds(whole, BLOCKS)
    some = Rank(pool, 0, 2, seed=3)
    before = some.tensors[0].copy()
    assert some.client.load_tokens(some.cache, some.hashes(), range(10, 16), [[(1, 3)]] * BLOCKS) == BLOCKS
    assert np.array_equal(some.tensors[0][:, 10:16, 1:3], whole.tensors[0][:, :BLOCKS, 1:3, :1])
    assert np.array_equal(some.tensors[0][:, 10:16, 0], before[:, 10:16, 0])


def test_without_share_tp_nothing_is_found(pool, stored):
    engine, hashes = stored
    assert Rank(pool).client.lookup(hashes) == 0
    assert Rank(pool).store().written == BLOCKS
    assert engine.client.lookup(Rank(pool).hashes()) == 0
    assert len({name.rpartition("shard=")[2].split()[0] for name in engine.client.namespaces()}) == 2


def test_a_geometry_knows_its_head_groups():
    eighth = cachalot.KvGeometry.of_model("Qwen3-32B", "bf16", 16, tp_rank=5, tp_size=8)
    half = cachalot.KvGeometry.of_model("Qwen3-32B", "bf16", 16, tp_rank=1, tp_size=2)
    assert half.head_group(8).tp_rank == 4 and half.head_group(8).block_bytes == eighth.block_bytes
    assert eighth.head_group(8) == eighth
    assert half.fingerprint(8) == eighth.fingerprint(share_tp=8) != half.fingerprint()
    assert half.is_first_replica
    sixteenth = cachalot.KvGeometry.of_model("Qwen3-32B", "bf16", 16, tp_rank=5, tp_size=16)
    assert not sixteenth.is_first_replica and sixteenth.head_group(8).tp_rank == 2


@pytest.mark.parametrize("share_tp, words", [
    (3, "share_tp: is 3, expected a divisor of the 2 KV heads"),
    (1, "share_tp: is 1, expected a multiple of 2"),
    (-1, "share_tp: -1"),
    (2**32, "share_tp: 4294967296"),
])
def test_groups_that_do_not_fit_are_refused(pool, share_tp, words):
    with pytest.raises(cachalot.InvalidArgumentError, match=words):
        Rank(pool, 0, 2, share_tp=share_tp)


def test_objects_are_refused(pool):
    half = Rank(pool, 0, 2)
    memory = np.zeros(64, np.uint8)
    half.client.register_buffer(memory)
    with pytest.raises(cachalot.UnsupportedError, match="share_tp is 2"):
        half.client.put("key", [memory])


def test_the_tiers_of_an_engine(pool):
    tensors = [np.zeros((2, 16, 4, 2, 32), np.float16) for _ in range(3)]
    with cachalot.tier.open("vllm_kbnhc", tensors, pages=16, model="test@1", geometry=GEOMETRY, pool=pool,
                            share_tp=2) as tiers:
        prompt = tokens_of(1, 4 * BLOCKS + 1)
        with tiers.request(prompt) as request:
            start = request.start()
            for layer, tensor in enumerate(tensors):
                tensor[:, start.pages] = np.arange(2)[:, None] + layer  # the head's number, and the layer's
            request.commit(prompt)
        tiers.flush(20)
    half = Rank(pool, 1, 2)
    assert half.load() == BLOCKS
    assert all((tensor[:, 10:16] == 1 + layer).all() for layer, tensor in enumerate(half.tensors))
    with pytest.raises(cachalot.InvalidArgumentError, match="share_tp: is 4"):
        cachalot.tier.open("vllm_kbnhc", tensors, pages=16, model="test@1", geometry=GEOMETRY, share_tp=4)
