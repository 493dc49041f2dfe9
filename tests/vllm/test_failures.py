"""Nothing that goes wrong in the pool costs a request or changes a token."""

import os
import signal
import subprocess
import time

import pytest

from cachalot.command import PROGRAM


def external_hits(answer):
    return answer["metrics"].get("vllm:external_prefix_cache_hits", 0)


@pytest.fixture
def reference(models, engines):
    return engines(models())


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


def test_the_keeper_is_killed(models, engines, pools, prompt, reference):
    pool = pools()
    options = {"pool": pool.path, "keeper_timeout": 1.0}
    first, second = engines(models(), options), engines(models(), options)
    one, two = prompt(1), prompt(2)
    first.answer([one])
    pool.kill()
    answer = second.answer([one])  # readers need no keeper
    expect_same(answer, reference, [one])
    assert external_hits(answer) == 1408
    expect_same(second.answer([two]), reference, [two])
    pool.serve()
    three = prompt(3)
    expect_same(second.answer([three]), reference, [three])
    time.sleep(2)
    assert external_hits(first.answer([three])) == 1408


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


def test_a_pool_that_is_removed_and_made_anew(models, engines, pools, prompt, reference):
    pool = pools()
    options = {"pool": pool.path, "keeper_timeout": 1.0}
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
    assert external_hits(engines(models(), options).answer([two])) == 1408, engine.text()[-2000:]


def test_damaged_blocks_are_computed(models, engines, pools, prompt, reference):
    """Every byte of the data blocks is changed behind the pool's back."""
    pool = pools(1 << 20, 64)
    options = {"pool": pool.path, "checksums": True}
    one = prompt(1)
    engines(models(), options).answer([one])
    with open(pool.path, "r+b") as file:
        size = os.path.getsize(pool.path)
        for at in range(size // 2, size - 4096, 65536):
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 0x55]))
    engine = engines(models(), options)
    expect_same(engine.answer([one]), reference, [one])
    expect_same(engine.answer([one]), reference, [one])


def test_preemption(models, engines, pools, prompt, reference):
    pool = pools()
    options = {"pool": pool.path}
    prompts = [prompt(seed, 201) for seed in range(6)]
    small = engines(models(), options, block_size=32, kv_cache_memory_bytes=4 << 20, max_model_len=1024)
    answer = small.answer(prompts, max_tokens=300)
    whole = engines(models(), block_size=32, max_model_len=1024).answer(prompts, max_tokens=300)
    assert answer["tokens"] == whole["tokens"]


BAD = {
    "unknown option": ({"pool": "/dev/shm/x", "polo": 1}, "unknown option 'polo'; did you mean pool?"),
    "no pool": ({}, "pool: None, expected a path"),
    "create without a size": ({"pool": "/dev/shm/x", "create": {}}, "expected either"),
    "another type": ({"pool": "/dev/shm/x", "workers": "two"}, "workers: 'two', expected a int"),
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


def test_no_permission_ends_the_engine(models, engines, pools):
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    pool = pools()
    os.chmod(pool.path, 0)
    with pytest.raises(AssertionError):
        engines(models(), {"pool": pool.path}).wait_ready()


def test_a_file_that_is_no_pool_ends_the_engine(models, engines, tmp_path):
    path = tmp_path / "pool"
    path.write_bytes(b"nothing" * 10000)
    engine = engines(models(), {"pool": str(path)})
    with pytest.raises(AssertionError):
        engine.wait_ready()
    assert "not a pool" in engine.text().lower() or "pool" in engine.text()
    assert subprocess.run([str(PROGRAM), "pool", "info", str(path)], capture_output=True).returncode == 2
