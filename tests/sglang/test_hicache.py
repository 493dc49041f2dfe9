"""The pool as a storage of SGLang's HiCache: a second engine takes every full page through its host pool, and says the same."""

import json

import pytest
from test_share import from_pool, full_pages

TOKENS = 800


def hicache(pool, layout="page_first_direct", **options):
    """Arguments of an engine. The default threshold of 256 tokens hides short tests."""
    given = {"backend_name": "cachalot", "module_path": "cachalot.connectors.sglang", "class_name": "CachalotStorage",
             "interface_v1": 1, "prefetch_threshold": 16, "pool": pool, **options}
    return {"enable_hierarchical_cache": True, "hicache_ratio": 2.0, "hicache_io_backend": "direct",
            "hicache_mem_layout": layout, "hicache_storage_backend": "dynamic",
            "hicache_storage_prefetch_policy": "wait_complete", "hicache_write_policy": "write_through",
            "hicache_storage_backend_extra_config": json.dumps(given)}


@pytest.mark.parametrize(("layout", "page"), [("page_first_direct", 16), ("layer_first", 64)])
def test_a_second_engine_takes_every_full_page(models, engines, pools, prompt, layout, page):
    pool = pools(512 << 10, 600)
    first = engines(models(), **hicache(pool.path, layout), page_size=page)
    computed = first.answer([prompt(1, TOKENS)])
    assert from_pool(computed) == 0
    pool.wait_for_blocks(TOKENS // page)
    second = engines(models(), **hicache(pool.path, layout), page_size=page)
    answer = second.answer([prompt(1, TOKENS)])
    assert answer["tokens"] == computed["tokens"]
    assert from_pool(answer) == full_pages(page, TOKENS), (answer["details"], second.text()[-3000:])


def test_the_linker_and_hicache_share_pages(models, engines, pools, prompt):
    pool = pools(512 << 10, 600)
    linked = engines(models(), {"pool": pool.path})
    computed = linked.answer([prompt(2, TOKENS)])
    pool.wait_for_blocks(TOKENS // 16)
    answer = engines(models(), **hicache(pool.path)).answer([prompt(2, TOKENS)])
    assert answer["tokens"] == computed["tokens"]
    assert from_pool(answer) == full_pages(16, TOKENS)


def test_calls_that_fail_and_are_late_cost_no_answer(models, engines, pools, prompt):
    """SGLang's own injector: every fifth call of the backend fails, and each is up to 20 ms late."""
    pool, alone = pools(512 << 10, 1200), engines(models())
    wrong = engines(models(), **hicache(pool.path), environment={
        "SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE": "0.2", "SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY": "0.02"})
    hits = 0
    for number in range(100):
        if number % 25 == 24:
            wrong.answer([], flush=True)
        one = prompt(number % 20, 200 + 16 * (number % 7))
        answer = wrong.answer([one], max_tokens=4)
        assert answer["tokens"] == alone.answer([one], max_tokens=4)["tokens"], number
        hits += from_pool(answer) > 0
    assert hits > 0
