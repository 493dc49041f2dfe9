"""Failures of the pool under SGLang engines: every answer is that of an engine alone."""

import os
import signal
import time
from pathlib import Path

import pytest
from conftest import Engine, Pool
from test_share import from_pool, full_pages

TOKENS = 600
WAIT_S = 30


class Stage:
    """Two engines on one pool, and one alone; the pool's tests leave it served."""

    def __init__(self, model):
        self.pool = Pool(f"/dev/shm/cachalot_sglang_stage_{os.getpid()}", 512 << 10, 600)
        options = {"pool": self.pool.path, "keeper_timeout": 1.0, "checksums": True}
        self.one, self.two, self.alone = Engine(model, options), Engine(model, options), Engine(model)
        self.engines = [self.one, self.two, self.alone]

    def same(self, engine, prompt):
        """The answer of this engine, which must be that of the engine alone."""
        answer = engine.answer([prompt])
        assert answer["tokens"] == self.alone.answer([prompt])["tokens"], engine.text()[-3000:]
        return answer

    def store(self, prompts):
        """The first of these prompts that is in the pool whole: after a failure nothing is stored for a second."""
        for prompt in prompts:
            wanted = self.pool.live_blocks() + full_pages(16, len(prompt)) // 16
            self.same(self.one, prompt)
            until = time.monotonic() + 1.0
            while time.monotonic() < until:
                if self.pool.live_blocks() >= wanted:
                    return prompt
                time.sleep(0.05)
        raise AssertionError("no prompt was stored: " + self.one.text()[-3000:])

    def close(self):
        for engine in self.engines:
            engine.close()
        self.pool.close()


@pytest.fixture(scope="module")
def stage(models):
    made = Stage(models())
    yield made
    made.close()


def test_loads_go_on_without_a_keeper_and_stores_come_back_with_the_next(stage, prompt):
    known, new = prompt(1, TOKENS), prompt(2, TOKENS)
    stage.same(stage.one, known)
    stage.pool.wait_for_blocks(full_pages(16, TOKENS) // 16)
    stage.pool.kill()
    assert from_pool(stage.same(stage.two, known)) == full_pages(16, TOKENS)
    stage.same(stage.one, new)
    stage.pool.serve()
    # The clients attach to the next keeper by themselves.
    later = stage.store(prompt(seed, TOKENS) for seed in range(100, 200))
    assert from_pool(stage.same(stage.two, later)) == full_pages(16, TOKENS)


def test_a_keeper_that_hangs_delays_no_answer_for_long(stage, prompt):
    os.kill(stage.pool.keeper.pid, signal.SIGSTOP)
    try:
        for seed in range(4, 8):
            began = time.monotonic()
            stage.same(stage.one, prompt(seed, TOKENS))
            assert time.monotonic() - began < WAIT_S
    finally:
        os.kill(stage.pool.keeper.pid, signal.SIGCONT)


def test_damaged_pages_are_computed(stage, prompt):
    known = stage.store(prompt(seed, TOKENS) for seed in range(200, 300))
    stage.pool.damage()
    assert from_pool(stage.same(stage.two, known)) == 0
    stage.pool.evict_all()


def test_a_pool_that_is_smaller_than_the_prompts(models, stage, prompt, pools, engines):
    pool = pools(512 << 10, 50)
    small = engines(models(), {"pool": pool.path})
    for _ in range(2):
        for seed in range(20, 26):
            stage.same(small, prompt(seed, TOKENS))
            small.answer([], flush=True)


def test_a_pool_that_comes_late_and_goes(models, stage, prompt, engines, tmp_path):
    path = f"/dev/shm/cachalot_sglang_late_{os.getpid()}"
    late = engines(models(), {"pool": path})
    stage.same(late, prompt(30, TOKENS))
    assert "no pool yet at" in late.text()
    pool = Pool(path, 512 << 10, 200)
    try:
        until = time.monotonic() + WAIT_S
        while "attached to the pool" not in late.text():
            assert time.monotonic() < until, late.text()[-3000:]
            time.sleep(0.1)
        stage.same(late, prompt(31, TOKENS))
        late.answer([], flush=True)
        assert from_pool(stage.same(late, prompt(31, TOKENS))) == full_pages(16, TOKENS)
    finally:
        pool.close()
    assert not Path(path).exists()
    for seed in (31, 32):
        late.answer([], flush=True)
        stage.same(late, prompt(seed, TOKENS))


def test_a_pool_by_the_engines_and_an_engine_that_is_killed(models, stage, prompt, engines):
    path = f"/dev/shm/cachalot_sglang_made_{os.getpid()}"
    options = {"pool": path, "create": {"size": "64MiB"}, "keeper_timeout": 1.0}
    first, second = engines(models(), options), engines(models(), options)
    first.wait_ready()
    try:
        stage.same(second, prompt(40, TOKENS))
        assert from_pool(stage.same(first, prompt(40, TOKENS))) == full_pages(16, TOKENS)
        assert 0.8 * (64 << 20) < os.path.getsize(path) <= 64 << 20
        os.killpg(first.process.pid, signal.SIGKILL)  # perhaps the keeper
        until = time.monotonic() + WAIT_S
        seed = 41
        while True:
            stage.same(second, prompt(seed, TOKENS))
            second.answer([], flush=True)
            if from_pool(stage.same(second, prompt(seed, TOKENS))) == full_pages(16, TOKENS):
                break
            seed += 1
            assert time.monotonic() < until, second.text()[-3000:]
    finally:
        second.close()
        Path(path).unlink(missing_ok=True)


@pytest.mark.parametrize(("options", "says"), [
    ({"pol": "/dev/shm/kv"}, "did you mean pool?"),
    ({}, "expected a path"),
    ({"pool": "/dev/shm/kv", "workers": 0}, "workers: 0, expected 1 to 256"),
])
def test_a_wrong_option_is_one_error_before_the_engine_serves(models, engines, options, says):
    engine = engines(models(), options)
    with pytest.raises(AssertionError, match="the engine has ended"):
        engine.answer([[1, 2, 3]])
    assert says in engine.text()
