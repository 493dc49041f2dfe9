"""Whatever the layout and the dtype: what comes out of the pool is what went in."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cachalot
from conftest import attach, pool_path, tokens_of
from layouts import CASES, DTYPES, FORMS, Paged

BLOCK_TOKENS, PAGES = 4, 12
prompts = itertools.count()


@pytest.fixture(scope="module")
def pool():
    with cachalot.EmbeddedKeeper(pool=pool_path(), block_bytes=8192, capacity_blocks=512) as keeper:
        yield keeper.pool


def geometry_of(attention, dtype, layers=2):
    sizes = {"kv_heads": 2, "head_dim": 16} if attention == "grouped" else {"kv_lora_rank": 32, "qk_rope_head_dim": 16}
    return cachalot.KvGeometry(layers=layers, attention=attention, dtype=dtype, block_tokens=BLOCK_TOKENS, **sizes)


def round_trip(pool, geometry, source, target, page_tokens, seed, blocks=3):
    """Stores from random pages in one layout, loads into random pages of another.

    Of a prompt that no other round has: the bytes follow from all the arguments, and of two rounds that
    give one name to different bytes the second would load what the first one stored.
    """
    random = np.random.default_rng(seed)
    per_block = BLOCK_TOKENS // page_tokens
    writer = Paged(source, geometry, PAGES, page_tokens, seed)
    reader = Paged(target, geometry, PAGES, page_tokens, seed + 1)
    out, into = (random.permutation(PAGES)[: blocks * per_block].astype(np.uint32) for _ in range(2))
    options = {"model": "layouts", "geometry": geometry}
    with attach(pool, **options) as a, attach(pool, **options) as b:
        hashes = a.hash_tokens(tokens_of(next(prompts), blocks * BLOCK_TOKENS))
        written = a.register_cache(source, writer.tensors, pages=PAGES, page_tokens=page_tokens)
        read = b.register_cache(target, reader.tensors, pages=PAGES, page_tokens=page_tokens)
        assert a.store(written, hashes, out).written == blocks
        assert b.load(read, hashes, into) == blocks
    for i in range(blocks):
        part = slice(i * per_block, (i + 1) * per_block)
        assert reader.block(into[part]) == writer.block(out[part])


def test_every_layout_is_known_here():
    assert sorted(cachalot.layout_names()) == sorted(FORMS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("layout", "attention"), CASES)
def test_round_trip(pool, layout, attention, dtype):
    round_trip(pool, geometry_of(attention, dtype), layout, layout, BLOCK_TOKENS, seed=7)


@settings(max_examples=80)
@given(data=st.data())
def test_what_one_layout_stores_another_loads(pool, data):
    attention = data.draw(st.sampled_from(["grouped", "latent"]))
    names = [name for name, of in CASES if of == attention]
    round_trip(
        pool,
        geometry_of(attention, data.draw(st.sampled_from(list(DTYPES))), data.draw(st.integers(1, 4))),
        data.draw(st.sampled_from(names)),
        data.draw(st.sampled_from(names)),
        data.draw(st.sampled_from([1, 2, 4])),
        data.draw(st.integers(0, 2**31)),
    )
