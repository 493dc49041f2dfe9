"""Nothing that goes wrong in the pool costs a request or changes a token."""

import os
import signal
import subprocess
import threading
import time

import pytest

from cachalot.command import PROGRAM


def external_hits(answer):
    return answer["metrics"].get("vllm:external_prefix_cache_hits", 0)


@pytest.fixture(scope="module")
def reference(models, lasting_engines):
    return lasting_engines(models())


def expect_same(answer, reference, prompts):
    assert answer["tokens"] == reference.answer(prompts)["tokens"]
    assert set(answer["reasons"]) == {"length"}


def test_no_pool_at_the_start_and_one_later(models, engines, pools, prompt, reference):
    pool = pools()
    pool.close()
    engine = engines(models(), {"pool": pool.path})
    one = prompt(1)
    expect_same(engine.answer([one]), reference, [one])
    assert "no pool" in engine.text()
    pool.serve(*pool.create)
    other = engines(models(), {"pool": pool.path}).wait_ready()  # meanwhile the first one attaches
    two = prompt(2)
    expect_same(engine.answer([two]), reference, [two])
    time.sleep(1)
    assert external_hits(other.answer([two])) == 1408


#: Each with what its engines need, the hit of 1,500 tokens, and how many tokens must be those of an engine alone: MLA's
#: attention over a loaded context rounds otherwise (test_share.py).
KINDS = {
    "llama": ("llama", {}, 1408, 16),
    "two ranks": ("llama", {"tensor_parallel_size": 2}, 1408, 16),
    "window": ("mistral", {}, 1408, 16),
    "six groups": ("gemma3", {}, 1408, 16),
    "latent": ("deepseek", {"attention_backend": "CPU_MLA"}, 1488, 8),  # AMX_MLA, where there is AMX, has other blocks
}


class Kind:
    """A model, and an engine of it without a connector."""

    def __init__(self, name, models, lasting_engines):
        self.model, self.arguments, self.hit, self.exact = KINDS[name]
        self.model = models(self.model)
        self._alone = lasting_engines(self.model, **self.arguments)

    def close(self):
        self._alone.close()

    def expect_same(self, answer, prompts):
        for said, expected in zip(answer["tokens"], self._alone.answer(prompts)["tokens"]):
            assert len(set(expected)) > 3
            assert said[: self.exact] == expected[: self.exact]
        assert set(answer["reasons"]) == {"length"}


@pytest.fixture(params=KINDS, scope="module")
def kind(request, models, lasting_engines):
    made = Kind(request.param, models, lasting_engines)
    yield made
    made.close()


@pytest.fixture
def start(kind, engines):
    return lambda options: engines(kind.model, options, **kind.arguments)


def failed_loads(answer):
    return answer["metrics"].get("vllm:cachalot_failed_loads", 0)


def wait_until_stored(pool, before, wait_s=60):
    """Until there are more blocks than before, and no more come."""
    until, last = time.monotonic() + wait_s, before
    while (live := pool.live_blocks()) == before or live != last:
        assert time.monotonic() < until, f"{live} blocks, {before} before"
        last = live
        time.sleep(1)


def test_the_keeper_is_killed(kind, start, pools, prompt):
    pool = pools(1 << 18, 512)
    options = {"pool": pool.path, "keeper_timeout": 1.0}
    first, second = start(options), start(options)
    one, two, three = prompt(1), prompt(2), prompt(3)
    first.answer([one])
    second.wait_ready()
    time.sleep(1)
    pool.kill()
    answer = second.answer([one])  # readers need no keeper
    kind.expect_same(answer, [one])
    assert external_hits(answer) == kind.hit
    kind.expect_same(second.answer([two]), [two])
    pool.serve()
    time.sleep(2)  # the engine stores nothing for a second after a store that failed
    before = pool.live_blocks()
    kind.expect_same(second.answer([three]), [three])
    wait_until_stored(pool, before)
    assert external_hits(first.answer([three])) == kind.hit


def test_damaged_blocks_are_computed(kind, start, pools, prompt):
    pool = pools(1 << 18, 512)
    options = {"pool": pool.path, "checksums": True}
    one = prompt(1)
    start(options).answer([one])
    pool.damage()
    engine = start(options)
    answer = engine.answer([one])
    kind.expect_same(answer, [one])
    assert failed_loads(answer) >= 1
    kind.expect_same(engine.answer([one]), [one])


def test_blocks_are_evicted_at_any_moment(kind, start, pools, prompt):
    pool = pools(1 << 18, 512)
    options = {"pool": pool.path, "checksums": True}
    engines = [start(options), start(options)]
    prompts = [prompt(seed, 700) for seed in range(3)]
    is_over = threading.Event()

    def evict():
        while not is_over.is_set():
            pool.evict_all()

    thread = threading.Thread(target=evict)
    thread.start()
    try:
        for round in range(6):
            kind.expect_same(engines[round % 2].answer(prompts), prompts)
    finally:
        is_over.set()
        thread.join()


def test_the_keeper_is_stopped(models, engines, pools, prompt, reference):
    pool = pools()
    engine = engines(models(), {"pool": pool.path, "keeper_timeout": 1.0, "store_timeout": 1.0})
    engine.wait_ready()
    os.kill(pool.keeper.pid, signal.SIGSTOP)
    try:
        for seed in range(4):
            one = prompt(seed)
            expect_same(engine.answer([one]), reference, [one])
    finally:
        os.kill(pool.keeper.pid, signal.SIGCONT)
    time.sleep(2)
    one = prompt(9)
    expect_same(engine.answer([one]), reference, [one])


def test_a_small_pool_evicts_all_the_time(models, engines, pools, prompt, reference):
    pool = pools(blocks=24)
    options = {"pool": pool.path}
    first, second = engines(models(), options), engines(models(), options)
    for round in range(3):
        for seed in range(4):
            one = prompt(seed)
            expect_same((first if round % 2 == 0 else second).answer([one]), reference, [one])


@pytest.mark.parametrize("storage_wait", [0, 2])
def test_a_pool_that_is_removed_and_made_anew(models, engines, pools, prompt, reference, storage_wait):
    pool = pools()
    options = {"pool": pool.path, "keeper_timeout": 1.0, "storage_wait": storage_wait}
    engine = engines(models(), options)
    one, two = prompt(1), prompt(2)
    expect_same(engine.answer([one]), reference, [one])
    pool.close()
    pool.serve(*pool.create)
    for seed in range(3, 6):
        expect_same(engine.answer([prompt(seed)]), reference, [prompt(seed)])
        time.sleep(1)
    expect_same(engine.answer([two]), reference, [two])
    time.sleep(1)
    other = engines(models(), options)
    assert external_hits(other.answer([two])) == 1408, engine.text()[-2000:]
    # It also reads the new one.
    three, before = prompt(9), pool.live_blocks()
    expect_same(other.answer([three]), reference, [three])
    wait_until_stored(pool, before)
    time.sleep(6)  # it looks every five seconds
    engine.answer([prompt(10)])  # the look
    time.sleep(1)
    hits = external_hits(engine.answer([prompt(11)]))
    answer = engine.answer([three])
    expect_same(answer, reference, [three])
    assert external_hits(answer) - hits == 1408, engine.text()[-2000:]


def test_damaged_blocks_are_stored_again(models, engines, pools, prompt, reference):
    """What a reader has found damaged is dropped, so the next engine finds what was computed instead."""
    pool = pools()
    options = {"pool": pool.path, "checksums": True}
    one = prompt(1)
    engines(models(), options).answer([one])
    pool.damage()
    second = engines(models(), {**options, "load": "sync"}).answer([one])
    expect_same(second, reference, [one])
    assert failed_loads(second) == 1
    time.sleep(1)
    answer = engines(models(), options).answer([one])
    expect_same(answer, reference, [one])
    assert (external_hits(answer), failed_loads(answer)) == (1408, 0)


@pytest.mark.parametrize("load", ["async", "sync"])
def test_a_load_fails_for_requests_that_share_its_blocks(models, engines, pools, prompt, reference, load):
    """The second request begins as the first one, so vLLM gives it the blocks of a load that fails. The third one ends
    where their common beginning ends, and the last one has nothing of it."""
    pool = pools()
    options = {"pool": pool.path, "checksums": True}
    one = prompt(1)
    asked = [one, one[:900] + prompt(2, 600), one[:897], prompt(3)]
    engines(models(), options).answer([one])
    pool.damage()
    engine = engines(models(), {**options, "load": load})
    answer = engine.answer(asked)
    expect_same(answer, reference, asked)
    assert failed_loads(answer) >= 1
    expect_same(engine.answer(asked), reference, asked)


@pytest.mark.parametrize("load", ["async", "sync"])
def test_requests_that_fill_the_engine_s_cache_one_at_a_time(models, engines, pools, prompt, load):
    """Each of 8 requests that come together needs 30 blocks of an engine that has 40; the pool has the blocks of all."""
    pool = pools(blocks=512)
    options = {"pool": pool.path, "load": load}
    same = {"block_size": 32, "max_model_len": 1024, "dtype": "float32"}
    prompts = [prompt(seed, 30 * 32 - 20) for seed in range(8)]
    expected = engines(models(), {**options, "store_held": 0.9}, **same).answer(prompts)  # stores what comes at once
    pool.wait_for_blocks(8 * 29)
    small = engines(models(), options, num_gpu_blocks_override=40, **same)
    answer = small.answer(prompts)
    assert answer["tokens"] == expected["tokens"]
    assert external_hits(answer) >= 8 * 29 * 32, small.text()[-3000:]


@pytest.mark.parametrize("load", ["async", "sync"])
def test_requests_are_aborted_while_they_load(models, engines, pools, prompt, reference, load):
    """Their pages are used again at once: a copy that goes on would change another request's tokens."""
    pool = pools()
    options = {"pool": pool.path, "load": load}
    stored = [prompt(seed) for seed in range(3)]
    engines(models(), options).answer(stored)
    small = engines(models(), options, kv_cache_memory_bytes=16 << 20)
    for steps in (0, 1, 1, 2, 1, 3, 1):
        assert small.answer(stored, abort_after=steps) == {}
        others = [prompt(100 + steps), stored[steps % 3]]
        expect_same(small.answer(others), reference, others)


def test_after_a_reset_an_engine_shares_with_no_other(models, engines, pools, prompt, reference):
    """Its weights may be others now."""
    pool = pools()
    options = {"pool": pool.path}
    engine = engines(models(), options)
    one = prompt(1)
    engines(models(), options).answer([one])
    time.sleep(1)
    hits = external_hits(engine.answer([one]))
    assert hits == 1408
    assert engine.answer([], reset=True) == {"reset": True}
    answer = engine.answer([one])
    expect_same(answer, reference, [one])
    assert external_hits(answer) == hits
    assert "it shares with no other engine" in engine.text()


def test_an_engine_is_forked(models, engines, pools, prompt, reference):
    pool = pools()
    options = {"pool": pool.path}
    engine = engines(models(), options)
    one, two = prompt(1), prompt(2)
    expect_same(engine.answer([one]), reference, [one])
    assert engine.answer([], fork=True) == {"exit": 0}
    expect_same(engine.answer([two]), reference, [two])
    time.sleep(1)
    answer = engines(models(), options).answer([one, two])
    expect_same(answer, reference, [one, two])
    assert external_hits(answer) == 2 * 1408


def test_preemption(models, engines, pools, prompt, reference):
    pool = pools()
    prompts = [prompt(seed, 201) for seed in range(6)]
    # With 16 bits, tokens that are computed again in a prefill may round otherwise, in vLLM without a pool, too.
    same = {"block_size": 32, "max_model_len": 1024, "dtype": "float32"}
    small = engines(models(), {"pool": pool.path}, kv_cache_memory_bytes=8 << 20, **same)
    answer = small.answer(prompts, max_tokens=300)
    whole = engines(models(), **same).answer(prompts, max_tokens=300)
    assert answer["tokens"] == whole["tokens"]


BAD = {
    "unknown option": ({"pool": "/dev/shm/x", "polo": 1}, "unknown option 'polo'; did you mean pool?"),
    "no pool": ({}, "pool: None, expected a path"),
    "create without a size": ({"pool": "/dev/shm/x", "create": {}}, "expected either"),
    "another type": ({"pool": "/dev/shm/x", "workers": "two"}, "workers: 'two', expected a int"),
    "groups of another type": ({"pool": "/dev/shm/x", "share_tp": "all"}, "share_tp: 'all', expected a number of groups"),
    "groups that do not fit the heads": ({"pool": "/dev/shm/x", "share_tp": 3}, "share_tp: is 3, expected a divisor of the 2"),
    "out of range": ({"pool": "/dev/shm/x", "load": "maybe"}, "load: 'maybe', expected async or sync"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options_end_the_engine_with_one_clear_error(models, engines, case):
    options, expected = BAD[case]
    engine = engines(models(), options)
    with pytest.raises(AssertionError):
        engine.wait_ready()
    assert expected in engine.text()


def test_blocks_that_do_not_fit_end_the_engine(models, engines, pools):
    pool = pools(4096, 64)
    engine = engines(models(), {"pool": pool.path})
    with pytest.raises(AssertionError):
        engine.wait_ready()
    assert "block" in engine.text() and "4096" in engine.text()


def expect_refusal(engine, *expected):
    with pytest.raises(AssertionError):
        engine.wait_ready()
    for text in expected:
        assert text in engine.text(), engine.text()[-3000:]


def test_no_permission_ends_the_engine(models, engines, pools, tmp_path):
    pool = pools(path=str(tmp_path / "pool"))
    is_root = os.geteuid() == 0
    subprocess.run(["chattr", "+i", pool.path] if is_root else ["chmod", "0", pool.path], check=True)
    try:
        expect_refusal(engines(models(), {"pool": pool.path}), "PermissionError", pool.path)
    finally:
        subprocess.run(["chattr", "-i", pool.path] if is_root else ["chmod", "600", pool.path], check=True)


def test_another_format_version_ends_the_engine(models, engines, pools):
    pool = pools()
    with open(pool.path, "r+b") as file:
        file.seek(8)
        file.write((99).to_bytes(4, "little"))
    try:
        expect_refusal(engines(models(), {"pool": pool.path}), "VersionMismatchError", "version 99")
    finally:
        os.unlink(pool.path)  # no program destroys a pool that it does not know


def test_two_engines_that_make_the_pool_with_other_sizes(models, engines, prompt, reference, tmp_path):
    path = f"/dev/shm/cachalot_vllm_two_{os.getpid()}"
    made = [engines(models(), {"pool": path, "create": {"blocks": blocks}}) for blocks in (128, 256)]
    serving = []
    try:
        for engine in made:
            try:
                serving.append(engine.wait_ready())
            except AssertionError:
                assert "exists with other capacity in blocks" in engine.text(), engine.text()[-3000:]
        assert len(serving) == 1
        one = prompt(1)
        expect_same(serving[0].answer([one]), reference, [one])
    finally:
        for engine in made:
            engine.close()
        os.unlink(path)


def test_a_file_that_is_no_pool_ends_the_engine(models, engines, tmp_path):
    path = tmp_path / "pool"
    path.write_bytes(b"nothing" * 10000)
    engine = engines(models(), {"pool": str(path)})
    with pytest.raises(AssertionError):
        engine.wait_ready()
    assert "not a pool" in engine.text().lower() or "pool" in engine.text()
    assert subprocess.run([str(PROGRAM), "pool", "info", str(path)], capture_output=True).returncode == 2
