"""Nothing that goes wrong in the pool changes a token of a model with attention and state layers: a state is never taken
without the KV before it, nor the KV without the state after it.

One engine serves most tests. Its own prefix cache is emptied, so what it has stored comes back from the pool. Requests come
one after the other: vLLM 0.32's short convolutions on the CPU compute otherwise if several are in a step, without a connector,
too (0.1 in the logarithms of probabilities), so a preemption cannot be compared.
"""

import os
import random
import signal
import threading
import time

import numpy as np
import pytest

BLOCK = 128
#: One token is computed after a hit: a wrong state cannot be forgotten before the answer begins.
TOKENS = 11 * BLOCK + 1
FULL = 11 * BLOCK
#: Of a prompt: the KV of each block, and the state after the last one.
STORED = 11 + 1


def metric(answer, name):
    return answer["metrics"].get(f"vllm:{name}", 0)


def external_hits(answer):
    return metric(answer, "external_prefix_cache_hits")


class Sharing:
    """An engine that shares through a pool, and one without a connector that says what is right."""

    def __init__(self, alone, engine, pool):
        self.alone, self.engine, self.pool = alone, engine, pool

    def ask(self, prompts, **options):
        """Returns the hits of these prompts in the pool and the failed loads, after comparing the tokens."""
        before = self.engine.answer([[5, 6]])
        for one in prompts:
            answer = self.engine.answer([one], **options)
            assert answer["tokens"] == self._expected(one, **options), self.engine.text()[-3000:]
            assert answer["reasons"] == ["length"]
        return (external_hits(answer) - external_hits(before),
                metric(answer, "cachalot_failed_loads") - metric(before, "cachalot_failed_loads"))

    def _expected(self, prompt, **options):
        """Of an engine that has nothing in its cache."""
        assert self.alone.answer([], reset=True) == {"reset": True}
        tokens = self.alone.answer([prompt], **options)["tokens"]
        assert len(set(tokens[0])) > 3
        return tokens

    def forget(self):
        """Empties the engine's own prefix cache. A step of the engine frees the pages of stores that have ended."""
        until = time.monotonic() + 60
        while not self.engine.answer([], reset=True, connector=False)["reset"]:
            assert time.monotonic() < until, "pages are held by stores that do not end"
            self.engine.answer([[5, 6]])

    def store(self, prompts):
        """Computes these prompts, which the pool does not have. Returns the pool's blocks that it has written since."""
        before, live = blocks_of(self.pool), self.pool.live_blocks()
        assert self.ask(prompts) == (0, 0)
        self.pool.wait_for_blocks(live + STORED * len(prompts))
        self.forget()
        return written(before, blocks_of(self.pool))


def blocks_of(pool):
    """A copy of the pool's data, a row a block."""
    geometry = pool.info()["geometry"]
    data = np.fromfile(pool.path, np.uint8, offset=pool.data_begin())
    return data[: geometry["blocks"] * geometry["block_bytes"]].reshape(geometry["blocks"], -1)


def written(before, after):
    """The numbers of the blocks that have changed: a state is small, so the end of its block has not."""
    changed = (before != after).any(axis=1)
    has_new_end = (before[:, 1 << 16 :] != after[:, 1 << 16 :]).any(axis=1)
    return {"KV": np.flatnonzero(has_new_end), "state": np.flatnonzero(changed & ~has_new_end)}


OPTIONS = {"checksums": True, "keeper_timeout": 1.0}
#: With 16 bits, tokens that are computed in other steps than by the engine alone round otherwise, without a pool, too.
EXACT = {"dtype": "float32"}


@pytest.fixture(scope="module")
def alone(models, lasting_engines):
    return lasting_engines(models("lfm2"), **EXACT)


@pytest.fixture(scope="module")
def lasting(models, lasting_engines, lasting_pools):
    pool = lasting_pools(1 << 18, 256)
    return lasting_engines(models("lfm2"), {"pool": pool.path, **OPTIONS}, **EXACT), pool


@pytest.fixture
def sharing(alone, lasting):
    made = Sharing(alone, *lasting)
    made.pool.evict_all()
    made.forget()
    return made


@pytest.mark.parametrize("part,seed", [("KV", 1), ("state", 2)])
def test_one_part_is_damaged(sharing, prompt, part, seed):
    """All is computed, and replaces what was damaged."""
    one = prompt(seed, TOKENS)
    blocks = sharing.store([one])
    assert {name: len(found) for name, found in blocks.items()} == {"KV": 11, "state": 1}
    sharing.pool.damage(blocks[part])
    assert sharing.ask([one])[1] == 1
    sharing.pool.wait_for_blocks(STORED)
    sharing.forget()
    assert sharing.ask([one]) == (FULL, 0)


def test_the_last_block_of_kv_is_damaged(sharing, prompt):
    """The state after it is right, and of no use."""
    one = prompt(11, TOKENS)
    blocks = sharing.store([one])
    sharing.pool.damage(blocks["KV"][-1:])
    assert sharing.ask([one])[1] == 1
    sharing.forget()
    assert sharing.ask([one]) == (FULL, 0)


def test_the_keeper_is_killed(sharing, prompt):
    one, two, three = (prompt(seed, TOKENS) for seed in (21, 22, 23))
    sharing.store([one])
    sharing.pool.kill()
    assert sharing.ask([one]) == (FULL, 0)  # readers need no keeper
    assert sharing.ask([two])[0] == 0
    sharing.pool.serve()
    time.sleep(2)  # the engine stores nothing for a second after a store that failed
    sharing.forget()
    sharing.store([three])
    assert sharing.ask([one, three]) == (2 * FULL, 0)


def test_the_keeper_is_stopped(sharing, prompt):
    one, two, three = (prompt(seed, TOKENS) for seed in (31, 32, 33))
    sharing.store([one])
    os.kill(sharing.pool.keeper.pid, signal.SIGSTOP)
    try:
        assert sharing.ask([one]) == (FULL, 0)
        assert sharing.ask([two])[0] == 0
    finally:
        os.kill(sharing.pool.keeper.pid, signal.SIGCONT)
    time.sleep(2)
    sharing.forget()
    live = sharing.pool.live_blocks()
    assert live >= STORED
    sharing.store([three])
    assert sharing.ask([three]) == (FULL, 0)


def while_it_happens(sharing, prompts, happen, rounds=6):
    """Asks again and again, each time with an empty prefix cache of the engine. Returns the hits."""
    is_over, hits = threading.Event(), 0

    def go_on():
        while not is_over.is_set():
            happen()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        for _ in range(rounds):
            hits += sharing.ask(prompts)[0]
            sharing.forget()
    finally:
        is_over.set()
        thread.join()
    return hits


def test_blocks_are_evicted_at_any_moment(sharing, prompt):
    prompts = [prompt(seed, 5 * BLOCK + 1) for seed in range(40, 43)]
    while_it_happens(sharing, prompts, sharing.pool.evict_all)


def test_the_keeper_is_killed_at_any_moment(sharing, prompt):
    prompts = [prompt(seed, 5 * BLOCK + 1) for seed in range(50, 53)]

    def kill():
        time.sleep(0.2)
        sharing.pool.kill()
        sharing.pool.serve()

    while_it_happens(sharing, prompts, kill)
    time.sleep(2)
    sharing.store([prompt(53, TOKENS)])
    assert sharing.ask([prompt(53, TOKENS)]) == (FULL, 0)


def test_requests_are_aborted_while_they_load(sharing, prompt):
    """Their pages are used again at once: a copy that goes on would change another request's tokens."""
    stored = [prompt(seed, TOKENS) for seed in range(60, 63)]
    sharing.store(stored)
    for steps in (0, 1, 2, 1):
        assert sharing.engine.answer(stored, abort_after=steps) == {}
        sharing.ask([prompt(70 + steps, TOKENS), stored[steps]])
        sharing.forget()
    assert sharing.ask(stored) == (3 * FULL, 0)


def parts_in(pool):
    """The hashes of the KV and of the states that a pool publishes. A state is small; its hash differs from that of its
    block's KV by the constants of their groups."""
    from cachalot.connectors.vllm.messages import hashes_of

    marks = [int.from_bytes(hashes_of(bytes(16), group).tobytes(), "little") for group in range(2)]
    kv, states = set(), set()
    for block in pool.blocks():
        (states if block["bytes"] < 1 << 16 else kv).add(int(block["hash"], 16))
    return kv, {state ^ marks[0] ^ marks[1] for state in states}


def test_a_small_pool_evicts_one_part_without_the_other(models, engines, pools, alone, prompt):
    """It has room for two of four prompts."""
    pool = pools(1 << 18, 2 * STORED)
    sharing = Sharing(alone, engines(models("lfm2"), {"pool": pool.path, **OPTIONS}, **EXACT), pool)
    source, seen, has_kv_alone, has_state_alone, hits = random.Random(1), set(), False, False, 0
    for _ in range(16):
        number = source.randrange(4)
        hits += sharing.ask([prompt(number, TOKENS)])[0]
        sharing.forget()
        kv, states = parts_in(pool)
        seen |= states
        has_state_alone |= bool(states - kv)
        has_kv_alone |= bool(kv & (seen - states))
    assert has_kv_alone and has_state_alone and hits > 0 and hits % FULL == 0


def test_chunked_prefill(models, engines, pools, prompt):
    """Each step computes two blocks, and vLLM is told to keep the state after each, so a prompt that has ten blocks of another
    one's takes these."""
    pool = pools(1 << 18, 256)
    chunks = {"max_num_batched_tokens": 2 * BLOCK, "prefix_cache_retention_interval": 2 * BLOCK, **EXACT}
    sharing = Sharing(engines(models("lfm2"), **chunks), engines(models("lfm2"), {"pool": pool.path, **OPTIONS}, **chunks),
                      pool)
    one = prompt(1, TOKENS)
    assert sharing.ask([one]) == (0, 0)
    pool.wait_for_blocks(11 + 6)
    sharing.forget()
    assert sharing.ask([one[: 10 * BLOCK] + prompt(2, 500)]) == (10 * BLOCK, 0)
    assert sharing.ask([one]) == (BLOCK, 0)  # the rest is in the engine's own cache
    sharing.forget()
    assert sharing.ask([one]) == (FULL, 0)
