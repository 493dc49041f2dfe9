"""Pools and engines of a few pages, for the tests."""

import itertools
import json
import os
import subprocess

import numpy as np
import pytest
from hypothesis import settings

import cachalot
from cachalot.command import PROGRAM

# No files are left behind; a failure prints what reproduces it.
settings.register_profile("cachalot", database=None, print_blob=True, deadline=None)
settings.load_profile("cachalot")

# 4 tokens, 3 layers, 2 heads of 32 numbers: 3,072 bytes a block.
GEOMETRY = cachalot.KvGeometry(layers=3, kv_heads=2, head_dim=32, dtype="f16", block_tokens=4)
_numbers = itertools.count()


def pool_path():
    return f"/dev/shm/cachalot_python_test.{os.getpid()}.{next(_numbers)}"


class Engine:
    """A client and a paged cache of random numbers, a tensor a layer."""

    def __init__(self, pool, pages=16, seed=1, **options):
        self.client = attach(pool, **options)
        shape = (2, pages, 4, 2, 32)
        random = np.random.default_rng(seed)
        # NumPy has no bfloat16.
        dtype = np.uint16 if self.client.geometry.dtype == "bf16" else np.float16
        self.tensors = [random.random(shape).astype(np.float16).view(dtype) for _ in range(3)]
        self.cache = self.client.register_cache("vllm_kbnhc", self.tensors, pages=pages)

    def block(self, page):
        return b"".join(tensor[:, page].tobytes() for tensor in self.tensors)


def attach(pool, **options):
    return cachalot.Client(**{"pool": pool, "model": "test@1", "geometry": GEOMETRY, **options})


def tokens_of(prompt, count):
    return np.random.default_rng(prompt).integers(0, 50_000, count, dtype=np.uint32)


def pool_totals(pool):
    """What `cachalot pool info` says of all clients."""
    done = subprocess.run([str(PROGRAM), "pool", "info", pool, "--json", "-"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["totals"]


@pytest.fixture
def pool():
    with cachalot.EmbeddedKeeper(pool=pool_path(), block_bytes=GEOMETRY.block_bytes, capacity_blocks=256) as keeper:
        yield keeper.pool


@pytest.fixture
def engine(pool):
    engine = Engine(pool)
    yield engine
    engine.client.detach()


@pytest.fixture
def stored(engine):
    """The engine, and the hashes of 8 blocks that it stored from its pages 0 to 7."""
    hashes = engine.client.hash_tokens(tokens_of(1, 32))
    assert engine.client.store(engine.cache, hashes, range(8)).written == 8
    return engine, hashes
