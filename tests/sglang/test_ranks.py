"""Engines of two ranks that find different pages, or of which one has no pool: they go on together, and every answer is right.

SGLang's ranks take the same decisions, each for itself. A rank that took more pages than the other would wait for it for ever:
the deadline of an answer is EngineProcess's.
"""

import mmap
import subprocess

import pytest
from engine_process import PROGRAM
from test_hicache import hicache
from test_share import from_pool, full_pages

TOKENS, PAGE = 600, 16
PAGES = full_pages(PAGE, TOKENS) // PAGE
BLOCK_BYTES = PAGE * 4 * 2 * 1 * 64 * 4  # tokens, layers, keys and values, heads of a rank, numbers, float32
#: SGLang's ranks on a CPU use gloo where there is no NCCL, and want to know their cores.
ENVIRONMENT = {"SGLANG_NCCL_SO_PATH": "none", "SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
MISSING = 20


def two_ranks(engines, model, way, pool, **arguments):
    options = {"pool": pool.path, "checksums": True}
    given = {"linker": options} if way == "linker" else hicache(**options)
    return engines(model, environment=ENVIRONMENT, tp_size=2, **given, **arguments)


def chain_of(pool, rank):
    """Hashes of the blocks of one rank's namespace, from the first page of the only prompt on."""
    listed = pool.blocks()
    namespaces = sorted({block["namespace"] for block in listed})
    assert len(namespaces) == 2, namespaces
    after = {block["parent"]: block["hash"] for block in listed if block["namespace"] == namespaces[rank]}
    chain, last = [], None
    while last in after:
        last = after[last]
        chain.append(last)
    return namespaces[rank], chain


def evict_from(pool, rank, page):
    """A page of one rank, and all after it."""
    namespace, chain = chain_of(pool, rank)
    assert len(chain) >= PAGES, len(chain)
    subprocess.run([str(PROGRAM), "evict", chain[page], "--pool", pool.path, "--namespace", namespace], check=True, capture_output=True)


def damage(pool, rank, page):
    """Changes a byte of one rank's page, behind the pool's back."""
    namespace, chain = chain_of(pool, rank)
    block = subprocess.run([str(PROGRAM), "get", chain[page], "--pool", pool.path, "--namespace", namespace], check=True,
                           capture_output=True).stdout
    with open(pool.path, "r+b") as file, mmap.mmap(file.fileno(), 0) as bytes_of_all:
        at = bytes_of_all.find(block[:4096])
        assert at > 0 and bytes_of_all[at:at + len(block)] == block
        bytes_of_all[at] ^= 0x55


@pytest.mark.parametrize("way", ["linker", "hicache"])
def test_ranks_that_find_different_pages_take_those_that_all_have(models, engines, pools, prompt, way):
    pool, one = pools(BLOCK_BYTES, 1000), prompt(1, TOKENS)
    engine = two_ranks(engines, models(), way, pool)
    computed = engine.answer([one])
    assert computed["cached"] == [0] and len(set(computed["tokens"][0])) > 3
    for rank, page in ((1, MISSING), (0, MISSING // 2), (1, 0), (0, 0)):
        pool.wait_for_blocks(2 * PAGES)
        evict_from(pool, rank, page)
        assert engine.answer([], flush=True)["flush"]
        answer = engine.answer([one])
        assert answer["tokens"] == computed["tokens"], (rank, page)
        assert from_pool(answer) == page * PAGE, (rank, page, answer["details"], engine.text()[-3000:])
    pool.wait_for_blocks(2 * PAGES)
    assert engine.answer([], flush=True)["flush"]
    answer = engine.answer([one])
    assert from_pool(answer) == full_pages(PAGE, TOKENS) and answer["tokens"] == computed["tokens"]


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_of_which_one_cannot_load_compute(models, engines, pools, prompt, rank):
    """Both find the prompt. A page of one rank is damaged: the other one must not take its own."""
    pool, one = pools(BLOCK_BYTES, 1000), prompt(2, TOKENS)
    engine = two_ranks(engines, models(), "linker", pool)
    computed = engine.answer([one])
    pool.wait_for_blocks(2 * PAGES)
    damage(pool, rank, MISSING)
    assert engine.answer([], flush=True)["flush"]
    answer = engine.answer([one])
    assert answer["tokens"] == computed["tokens"] and from_pool(answer) == 0
    assert "damaged" in engine.text()


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
