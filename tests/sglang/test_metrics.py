"""The connector's counters, as SGLang's /metrics gathers them from its processes."""

from test_hicache import hicache
from test_share import full_pages

TOKENS, PAGE = 800, 16
PAGES = full_pages(PAGE, TOKENS) // PAGE
PAGE_BYTES = PAGE * 4 * 2 * 2 * 64 * 4  # tokens, layers, keys and values, heads, numbers, float32


def counted(engine):
    found = engine.answer([], metrics=True)["metrics"]
    return {name.removeprefix("sglang:cachalot_").removesuffix("_total"): value for name, value in found.items()
            if name.startswith("sglang:cachalot_")}


def test_lookups_loads_and_stores_are_counted(models, engines, pools, prompt):
    pool = pools(PAGE_BYTES, 600)
    linked, stored = engines(models(), {"pool": pool.path}, enable_metrics=True), engines(
        models(), **hicache(pool.path), enable_metrics=True)
    linked.answer([prompt(1, TOKENS)], max_tokens=1)
    pool.wait_for_blocks(TOKENS // PAGE)
    stored.answer([prompt(1, TOKENS)], max_tokens=1)
    stored.answer([prompt(2, TOKENS)], max_tokens=1)
    pool.wait_for_blocks(2 * (TOKENS // PAGE))
    linked.answer([prompt(2, TOKENS)], max_tokens=1)
    for engine in (linked, stored):
        now = counted(engine)
        assert now["lookups"] >= 2 and now["lookup_seconds"] > 0 and now["load_seconds"] > 0
        assert now["found_blocks"] >= PAGES
        assert now["loads"] >= 1 and now["loaded_blocks"] == PAGES and now["loaded_bytes"] == PAGES * PAGE_BYTES
        # One of its two prompts came from the pool whole.
        assert now["prompts"] == 2 and now["prompt_blocks"] == 2 * PAGES
        assert now["used_pool_blocks"] == PAGES and now["used_storage_blocks"] == 0
        assert now["stores"] >= 1 and now["stored_bytes"] == now["stored_blocks"] * PAGE_BYTES
        assert now["failed_loads"] == now["failed_stores"] == now["skipped_stores"] == 0
    assert counted(linked)["stored_blocks"] >= TOKENS // PAGE and counted(linked)["store_seconds"] > 0
