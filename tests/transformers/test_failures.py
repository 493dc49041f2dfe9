"""Failures of the pool under transformers engines: every answer is that of an engine alone."""

import os
import random
import signal
import time

import pytest
from conftest import BLOCK_BYTES, whole_blocks

TOKENS, BLOCKS = 600, whole_blocks(600)
WAIT_S = 30


@pytest.fixture
def same(alone):
    def check(engine, prompt):
        answer = engine.answer([prompt])
        assert answer["tokens"] == alone.answer([prompt])["tokens"], engine.text()[-3000:]
        return answer

    return check


@pytest.fixture
def wait_for_hit(same, prompt):
    def wait(one, two):
        """Until two loads a new prompt of one."""
        until = time.monotonic() + WAIT_S
        for seed in range(1000, 2000):
            same(one, prompt(seed, TOKENS))
            if same(two, prompt(seed, TOKENS))["used"] == BLOCKS:
                return
            assert time.monotonic() < until, one.text()[-3000:]

    return wait


def test_loads_continue_without_a_keeper_and_stores_with_the_next(models, engines, pools, prompt, same, wait_for_hit):
    pool = pools()
    one, two = engines(models(), pool.path), engines(models(), pool.path)
    same(one, prompt(1, TOKENS))
    pool.kill()
    assert same(two, prompt(1, TOKENS))["used"] == BLOCKS
    same(one, prompt(2, TOKENS))
    assert same(two, prompt(2, TOKENS))["used"] == 0
    assert "no keeper" in one.text()
    pool.serve()
    wait_for_hit(one, two)


def test_a_keeper_that_hangs(models, engines, pools, prompt, same):
    pool = pools()
    one = engines(models(), pool.path)
    same(one, prompt(1, TOKENS))
    os.kill(pool.keeper.pid, signal.SIGSTOP)
    try:
        for seed in range(2, 5):
            same(one, prompt(seed, TOKENS))
    finally:
        os.kill(pool.keeper.pid, signal.SIGCONT)


def test_a_pool_that_comes_late_goes_and_comes_again(models, engines, pools, prompt, same, wait_for_hit):
    path = f"/dev/shm/cachalot_transformers_late_{os.getpid()}"
    one, two = engines(models(), path), engines(models(), path)
    for engine in (one, two):
        same(engine, prompt(1, TOKENS))
        assert "No such file" in engine.text()
    for _ in range(2):
        pool = pools(path=path)
        wait_for_hit(one, two)
        pool.close()
        same(one, prompt(2, TOKENS))
        same(two, prompt(3, TOKENS))


@pytest.mark.parametrize("fault", ["short", "timeout"])
def test_a_load_that_ends_early(models, engines, pools, prompt, same, fault):
    pool = pools()
    one, two = engines(models(), pool.path), engines(models(), pool.path, fault=fault)
    same(one, prompt(1, TOKENS))
    answer = same(two, prompt(1, TOKENS))
    assert (answer["asked"], answer["used"]) == (BLOCKS, 2)


def test_a_pool_that_is_smaller_than_the_prompts(models, engines, pools, prompt, same):
    pool = pools(blocks=50)
    one, two = engines(models(), pool.path), engines(models(), pool.path, config={"num_blocks": 112})
    used = 0
    for seed in [*range(6)] * 2:
        same(one, prompt(seed, TOKENS))
        used += same(two, prompt(seed, TOKENS))["used"]
    assert used > 0
    longer = prompt(9, 1500)
    same(one, longer)
    same(two, longer)


@pytest.mark.parametrize("rounds", [int(os.environ.get("CACHALOT_TRANSFORMERS_ROUNDS", "60"))])
def test_conversations_between_two_engines_while_the_keeper_is_killed(models, engines, pools, same, rounds):
    pool, source = pools(BLOCK_BYTES, 300), random.Random(7)
    pair = [engines(models(), pool.path, config={"num_blocks": 200}) for _ in range(2)]
    talks = [[source.randrange(3, 250) for _ in range(source.randrange(20, 300))] for _ in range(8)]
    hits = 0
    for number in range(rounds):
        talk = source.choice(talks)
        talk += [source.randrange(3, 250) for _ in range(source.randrange(5, 120))]
        answer = same(source.choice(pair), talk)
        hits += answer["used"] > 0
        talk += answer["tokens"][0]
        if len(talk) > 2000:
            talk[:] = [source.randrange(3, 250) for _ in range(100)]
        if number % 10 == 7:
            pool.kill()
        if number % 10 == 9:
            pool.serve()
    assert hits > rounds // 8, hits
