"""A prefix that stays in the pool until a time, by a handle."""

import time

import pytest

import cachalot
from conftest import Engine, tokens_of


def test_a_kept_prefix_stays_under_pressure_until_it_is_dropped(pool):
    engine = Engine(pool)

    def store(prompt):
        hashes = engine.client.hash_tokens(tokens_of(prompt, 32))
        engine.client.store(engine.cache, hashes, list(range(8)))
        return hashes

    hashes = store(1)
    handle, blocks, expires = engine.client.create_context(hashes[:3], 600)
    assert blocks == 3 and time.time() < expires <= time.time() + 600
    for prompt in range(100, 200):
        store(prompt)
    assert engine.client.lookup(hashes) == 3
    assert engine.client.renew_context(handle, 1200)[2] > expires
    engine.client.drop_context(handle)
    for prompt in range(200, 300):
        store(prompt)
    assert engine.client.lookup(hashes) == 0


def test_what_a_session_retains_goes_last_until_its_next_state(pool):
    engine = Engine(pool)

    def store(prompt):
        hashes = engine.client.hash_tokens(tokens_of(prompt, 32))
        engine.client.store(engine.cache, hashes, list(range(8)))
        return hashes

    first = store(1)
    assert engine.client.retain("agent-7", first, 600) == 8
    for prompt in range(100, 200):
        store(prompt)
    assert engine.client.lookup(first) == 8
    second = store(2)
    assert engine.client.retain("agent-7", second, 600) == 8
    for prompt in range(200, 300):
        store(prompt)
    assert engine.client.lookup(first) == 0 and engine.client.lookup(second) == 8
    assert engine.client.retain("agent-7", second, 0) == 0
    for prompt in range(300, 400):
        store(prompt)
    assert engine.client.lookup(second) == 0
    with pytest.raises(cachalot.NotFoundError, match="not in the pool"):
        engine.client.retain("agent-7", second, 60)


def test_what_cannot_be_kept_says_why(pool):
    engine = Engine(pool)
    absent = engine.client.hash_tokens(tokens_of(9, 4))
    with pytest.raises(cachalot.NotFoundError, match="not in the pool"):
        engine.client.create_context(absent, 60)
    with pytest.raises(cachalot.InvalidArgumentError, match="hashes: are empty"):
        engine.client.create_context([], 60)
    with pytest.raises(cachalot.InvalidArgumentError, match="at most"):
        engine.client.create_context(absent, 1 << 40)
    with pytest.raises(cachalot.NotFoundError, match="none with this handle"):
        engine.client.drop_context(99)
