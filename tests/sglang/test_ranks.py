"""Engines of two ranks, or two stages, that find different pages, or of which one has no pool: they go on together, and every answer
is right.

SGLang's ranks take the same decisions, each for itself. A rank that took more pages than the other would wait for it for ever:
the deadline of an answer is EngineProcess's.
"""

import mmap

import numpy as np
import pytest
from test_hicache import hicache
from test_metrics import counted
from test_share import from_pool, full_pages

from cachalot import Client, KvGeometry, PartStrides

TOKENS, PAGE = 600, 16
PAGES = full_pages(PAGE, TOKENS) // PAGE
HEAD = 64
BLOCK_BYTES = PAGE * 4 * 2 * HEAD * 4  # keys and values of one head of all layers, or of all heads of half of them, float32
#: SGLang's ranks on a CPU use gloo where there is no NCCL, and want to know their cores.
ENVIRONMENT = {"SGLANG_NCCL_SO_PATH": "none", "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
MISSING = 20


#: What a rank has of the model.
SHARDS = {"tp_size": {"layers": 4, "kv_heads": 1}, "pp_size": {"layers": 2, "kv_heads": 2}}


def two_ranks(engines, model, way, pool, kind="tp_size", **arguments):
    options = {"pool": pool.path, "checksums": True}
    given = {"linker": options} if way == "linker" else hicache(**options)
    return engines(model, environment=ENVIRONMENT, **{kind: 2}, **given, **arguments)


class RankPages:
    """The first prompt's pages of one rank, taken out of the pool by a client of the same namespace."""

    def __init__(self, pool, rank, kind="tp_size"):
        name, digest = sorted((one["name"], one["digest"]) for one in pool.info()["namespaces"])[rank]
        shard = SHARDS[kind]
        geometry = KvGeometry(attention="grouped", head_dim=HEAD, dtype="f32", block_tokens=PAGE, **shard, **{kind: 2},
                              **{kind.replace("size", "rank"): rank})
        self._client = Client(pool=pool.path, model=name.split(" | ")[0], geometry=geometry)
        self._kv = np.zeros((PAGES, shard["layers"], 2, PAGE, shard["kv_heads"], HEAD), np.float32)
        steps = self._kv.strides
        strides = [PartStrides(tensor=0, layer_tensors=0, offset=part * steps[2], page=steps[0], layer=steps[1], token=steps[3],
                               head=steps[4]) for part in (0, 1)]
        cache = self._client.register_cache(None, [self._kv], pages=PAGES, strides=strides)
        after = {block["parent"]: block["hash"] for block in pool.blocks() if block["namespace"] == digest}
        chain, last = [], None
        while len(chain) < PAGES:
            last = after[last]
            chain.append(int(last, 16))
        self._hashes = np.array([(one & (1 << 64) - 1, one >> 64) for one in chain], np.uint64)
        assert self._client.load(cache, self._hashes, np.arange(PAGES)) == PAGES
        self._cache = cache

    def give(self, pages):
        assert self._client.store(self._cache, self._hashes[:pages], np.arange(pages)).blocks == pages

    def damage(self, path, page):
        """Changes a byte in the pool, behind its back."""
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as pool:
            at = pool.find(self._kv[page, 0, 0, 0, 0].tobytes())
            assert at > 0
            pool[at] ^= 0x55

    def close(self):
        self._client.detach()


@pytest.mark.parametrize(("way", "kind"), [("linker", "tp_size"), ("hicache", "tp_size"), ("hicache", "pp_size")])
def test_ranks_that_find_different_pages_take_those_that_all_have(models, engines, pools, prompt, way, kind):
    pool, one = pools(BLOCK_BYTES, 1000), prompt(1, TOKENS)
    engine = two_ranks(engines, models(), way, pool, kind)
    computed = engine.answer([one])
    assert computed["cached"] == [0] and len(set(computed["tokens"][0])) > 3
    pool.wait_for_blocks(2 * PAGES)
    both = [RankPages(pool, rank, kind) for rank in (0, 1)]
    for found in ((PAGES, MISSING), (MISSING // 2, PAGES), (PAGES, 0), (0, PAGES), (PAGES, PAGES)):
        pool.wait_for_blocks(2 * PAGES)  # the engine stores what it has computed
        assert engine.answer([], flush=True)["flush"]
        pool.evict_all()
        for rank, pages in zip(both, found):
            if pages:
                rank.give(pages)
        answer = engine.answer([one])
        assert answer["tokens"] == computed["tokens"], found
        assert from_pool(answer) == min(found) * PAGE, (found, answer["details"], engine.text()[-3000:])
    for rank in both:
        rank.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_of_which_one_cannot_load_compute(models, engines, pools, prompt, rank):
    """Both find the prompt. A page of one rank is damaged: the other one must not take its own."""
    pool, one = pools(BLOCK_BYTES, 1000), prompt(2, TOKENS)
    engine = two_ranks(engines, models(), "linker", pool, enable_metrics=True)
    computed = engine.answer([one])
    pool.wait_for_blocks(2 * PAGES)
    pages = RankPages(pool, rank)
    pages.damage(pool.path, MISSING)
    pages.close()
    assert engine.answer([], flush=True)["flush"]
    answer = engine.answer([one])
    assert answer["tokens"] == computed["tokens"] and from_pool(answer) == 0
    now = counted(engine)
    assert now["loads"] == 2 and now["failed_loads"] == 1


@pytest.mark.parametrize("way", ["linker", "hicache"])
def test_an_engine_of_which_one_rank_has_no_pool_computes(models, engines, pools, prompt, way):
    """The pool has room for one client. The rank that is attached stores alone, and must free the slots of its stores."""
    prompts = [prompt(seed, TOKENS) for seed in range(10, 18)]
    alone = engines(models(), environment=ENVIRONMENT, tp_size=2)
    right = [alone.answer([one])["tokens"] for one in prompts]
    alone.close()
    pool = pools(BLOCK_BYTES, 1000, "--clients", "1")
    engine = two_ranks(engines, models(), way, pool, max_total_tokens=2048)
    engine.wait_ready()
    for _ in range(2):
        for one, tokens in zip(prompts, right):
            answer = engine.answer([one])
            assert answer["tokens"] == tokens and from_pool(answer) == 0, engine.text()[-3000:]
