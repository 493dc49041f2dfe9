"""`cachalot serve --storage`: blocks survive eviction, the keeper's death, and the pool's."""

import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from cachalot.command import PROGRAM
from conftest import GEOMETRY, Engine, pool_path, tokens_of

CAPACITY = 64
WAIT_S = 20.0


def cachalot(*command):
    return subprocess.run([str(PROGRAM), *map(str, command)], capture_output=True, text=True, timeout=60)


class Served:
    """A pool with storage, served by a process that may be killed."""

    def __init__(self, folder, *flags):
        self.pool, self.folder, self._flags = pool_path(), folder, flags
        self.keeper = None
        self.start()

    def start(self, *more):
        command = [str(PROGRAM), "serve", "--pool", self.pool, "--create", "--block-bytes", GEOMETRY.block_bytes,
                   "--capacity-blocks", CAPACITY, "--storage", f"file:{self.folder}", "--log-level", "info",
                   *self._flags, *more]
        self.keeper = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True)
        assert self.keeper.stdout.readline().startswith("ready")

    def kill(self):
        self.keeper.kill()
        self.keeper.communicate()

    def lose_pool(self):
        self.kill()
        Path(self.pool).unlink(missing_ok=True)


@pytest.fixture
def served(tmp_path):
    served = Served(tmp_path / "objects")
    yield served
    served.lose_pool()


class Prompts:
    """An engine whose pages hold, for each prompt and block, bytes that follow from them."""

    def __init__(self, pool):
        self.engine = Engine(pool, pages=CAPACITY)

    def hashes(self, prompt, blocks):
        return self.engine.client.hash_tokens(tokens_of(prompt, blocks * GEOMETRY.block_tokens))

    def _fill(self, prompt, blocks):
        random = np.random.default_rng(prompt)
        for page in range(blocks):
            for tensor in self.engine.tensors:
                tensor[:, page] = random.random(tensor[:, page].shape)

    def store(self, prompt, blocks):
        self._fill(prompt, blocks)
        return self.engine.client.store(self.engine.cache, self.hashes(prompt, blocks), range(blocks)).blocks

    def load(self, prompt, blocks):
        """Loads what is in the pool and compares every byte. Returns the blocks."""
        self._fill(prompt, blocks)
        right = [self.engine.block(page) for page in range(blocks)]
        for tensor in self.engine.tensors:
            tensor[:] = 0
        hit = self.engine.client.load(self.engine.cache, self.hashes(prompt, blocks), range(blocks))
        assert [self.engine.block(page) for page in range(hit)] == right[:hit]
        return hit

    def prefetch(self, prompt, blocks, wait=WAIT_S):
        """A keeper that has just begun may still open its storage."""
        until = time.monotonic() + WAIT_S
        while True:
            found = self.engine.client.prefetch(self.hashes(prompt, blocks), wait=wait)
            if sum(found) == blocks or time.monotonic() > until:
                return found
            time.sleep(0.05)


def test_evicted_blocks_come_back(served):
    prompts = Prompts(served.pool)
    for prompt in range(6):
        assert prompts.store(prompt, 30) == 30
        prompts.prefetch(prompt, 30)
        time.sleep(0.3 if prompt else 1.5)  # the storage joins within a second; what it has not written is lost
    assert prompts.engine.client.lookup(prompts.hashes(1, 30)) < 30
    assert prompts.prefetch(1, 30) == (30, 0)
    assert prompts.load(1, 30) == 30


def test_a_new_pool_is_warm_after_the_keeper_was_killed(served):
    prompts = Prompts(served.pool)
    assert prompts.store(1, 40) == 40
    until = time.monotonic() + WAIT_S
    while cachalot("lookup", "--pool", served.pool, "x").returncode == 1 and time.monotonic() < until:
        if any(served.folder.glob("segment-*")):
            break
        time.sleep(0.1)
    time.sleep(1.0)
    served.lose_pool()
    served.start()
    prompts = Prompts(served.pool)
    assert prompts.engine.client.lookup(prompts.hashes(1, 40)) == 0
    assert prompts.prefetch(1, 40) == (40, 0)
    assert prompts.load(1, 40) == 40
    # One prompt, whose blocks storage brought, however often it was asked for; an equal one takes them from the pool.
    now = prompts.engine.client.statistics
    assert (now.prompts, now.prompt_blocks, now.used_pool_blocks, now.used_storage_blocks) == (1, 40, 0, 40)
    assert prompts.engine.client.lookup(prompts.hashes(1, 40)) == 40
    assert prompts.load(1, 40) == 40
    now = prompts.engine.client.statistics
    assert (now.prompts, now.prompt_blocks, now.used_pool_blocks, now.used_storage_blocks) == (2, 80, 40, 40)


def test_a_second_keeper_is_refused_the_directory(served, tmp_path):
    pool = pool_path()
    refused = cachalot("serve", "--pool", pool, "--create", "--block-bytes", "4096", "--capacity-blocks", "16",
                       "--storage", f"file:{served.folder}")
    assert refused.returncode == 3
    assert "another process uses it" in refused.stderr and str(served.folder) in refused.stderr
    assert not Path(pool).exists()


@pytest.mark.parametrize("uri, says", [
    ("flie:/tmp/x", "flie"),
    ("file:", "file:"),
    ("file:/no/such/folder", "/no/such/folder"),
    ("file:/dev/shm/x?sync=maybe", "sync"),
    ("file:/dev/shm/x?snyc=1", "snyc"),
    ("nothing", "nothing"),
])
def test_a_wrong_storage_is_one_clear_error_and_nothing_is_left(uri, says):
    pool = pool_path()
    refused = cachalot("serve", "--pool", pool, "--create", "--block-bytes", "4096", "--capacity-blocks", "16",
                       "--storage", uri)
    assert refused.returncode in (2, 3), refused.stderr
    assert says in refused.stderr and refused.stderr.count("\n") == 1
    assert not Path(pool).exists() and not Path("/dev/shm/x").exists()


@pytest.mark.parametrize("flags, says", [
    (["--storage-capacity", "0"], "--storage-capacity"),
    (["--storage-capacity", "lots"], "--storage-capacity"),
    (["--write-policy", "often"], "--write-policy"),
])
def test_wrong_limits_are_refused(flags, says, tmp_path):
    refused = cachalot("serve", "--pool", pool_path(), "--create", "--block-bytes", "4096", "--capacity-blocks", "16",
                       "--storage", f"file:{tmp_path}/objects", *flags)
    assert refused.returncode == 2 and says in refused.stderr
    assert not (tmp_path / "objects").exists()


def test_a_standby_takes_the_storage_over(served):
    prompts = Prompts(served.pool)
    assert prompts.store(1, 40) == 40
    time.sleep(2.0)
    standby = subprocess.Popen([str(PROGRAM), "serve", "--pool", served.pool, "--standby", "--storage",
                                f"file:{served.folder}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert standby.stdout.readline().startswith("standby")
        served.kill()
        assert standby.stdout.readline().startswith("ready")
        for prompt in range(2, 6):
            prompts.store(prompt, 40)
        assert prompts.prefetch(1, 40) == (40, 0)
        assert prompts.load(1, 40) == 40
    finally:
        standby.kill()
        standby.communicate()


def test_head_groups_come_back_as_far_as_all_are_stored(served):
    from test_share_tp import Rank

    first, second = Rank(served.pool, 0, 2), Rank(served.pool, 1, 2)
    assert first.store().blocks == 6 and second.store(4).blocks == 4
    until = time.monotonic() + WAIT_S
    while not any(served.folder.glob("segment-*")) and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(1.5)
    served.lose_pool()
    served.start()
    whole = Rank(served.pool, seed=2)
    assert whole.client.lookup(whole.hashes()) == 0
    found = (0, 0)
    while found != (4, 0) and time.monotonic() < until + WAIT_S:
        found = whole.client.prefetch(whole.hashes(), wait=WAIT_S)
    assert found == (4, 0)
    assert whole.load() == 4
    assert np.array_equal(whole.tensors[0][:, 10:14, :, :1], first.tensors[0][:, :4])
    assert np.array_equal(whole.tensors[2][:, 10:14, :, 1:], second.tensors[2][:, :4])
