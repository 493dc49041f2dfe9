"""Fixtures: pools, adapters, LMCache's objects and processes, which end with the test."""

import argparse
import json
import os
import select
import sys
import time
from pathlib import Path

import pytest
import torch
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.internal_api import L1MemoryDesc
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.platform import consume_fd

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "engines"))
import fixtures  # noqa: E402
from engine_process import EngineProcess  # noqa: E402

WAIT_S = 60
OBJECT_BYTES = 64 << 10


def spec(**parameters):
    return {"type": "plugin", "module_path": "cachalot.connectors.lmcache", "class_name": "CachalotL2Adapter",
            "adapter_params": parameters}


class L1:
    """LMCache's L1 buffer, and objects in it or elsewhere."""

    def __init__(self, size=16 << 20):
        self.buffer = torch.zeros(size, dtype=torch.uint8)
        self.desc = L1MemoryDesc(ptr=self.buffer.data_ptr(), size=size, align_bytes=1)
        self._at = 0

    def object(self, size=OBJECT_BYTES, seed=None, inside=True):
        """seed: of random bytes; None: zeros."""
        if inside:
            data = self.buffer[self._at:self._at + size]
            assert data.numel() == size, "the L1 buffer of the test is full"
            self._at += size
        else:
            data = torch.zeros(size, dtype=torch.uint8)
        if seed is not None:
            data.copy_(torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)))
        return TensorMemoryObj(data, MemoryObjMetadata(torch.Size([size]), torch.uint8, 0, size, 1, fmt=MemoryFormat.KV_2LTD), None)

    def objects(self, count, seed=None, **more):
        return [self.object(seed=None if seed is None else 1000 * seed + n, **more) for n in range(count)]


def equal(ones, others):
    return [torch.equal(one.raw_data, other.raw_data) for one, other in zip(ones, others)]


def keys_of(name, count, **fields):
    return [ObjectKey(**{"chunk_hash": f"{name}/{n}".encode(), "model_name": "m", "kv_rank": 0, **fields}) for n in range(count)]


class Driver:
    """An adapter, made as LMCache makes it and called as its controllers call it."""

    def __init__(self, l1=None, **parameters):
        config = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[json.dumps(spec(**parameters))]))
        self.adapter = create_l2_adapter(config.adapters[0], l1_memory_desc=l1.desc if l1 is not None else None)
        self._stored = {}

    def wait(self, event_fd, ask):
        """What `ask` answers, when the eventfd says that it is there."""
        until = time.monotonic() + WAIT_S
        poller = select.poll()
        poller.register(event_fd, select.POLLIN)
        while (answer := ask()) is None:
            left = until - time.monotonic()
            assert left > 0 and poller.poll(1000 * left), "the adapter says nothing"
            consume_fd(event_fd)
        return answer

    def stored(self, task):
        def ask():
            self._stored.update(self.adapter.pop_completed_store_tasks())
            return self._stored.pop(task, None)

        return self.wait(self.adapter.get_store_event_fd(), ask)

    def store(self, keys, objects):
        return self.stored(self.adapter.submit_store_task(keys, objects))

    def lookup(self, keys):
        task = self.adapter.submit_lookup_and_lock_task(keys, {})
        return self._bits(self.adapter.get_lookup_and_lock_event_fd(), self.adapter.query_lookup_and_lock_result, task, keys)

    def load(self, keys, objects):
        return self.loaded(self.adapter.submit_load_task(keys, objects), keys)

    def loaded(self, task, keys):
        return self._bits(self.adapter.get_load_event_fd(), self.adapter.query_load_result, task, keys)

    def _bits(self, event_fd, query, task, keys):
        bitmap = self.wait(event_fd, lambda: query(task))
        assert query(task) is None, "a result was given twice"
        assert len(bitmap) == len(keys)
        return [bitmap.test(at) for at in range(len(keys))]

    def close(self):
        self.adapter.close()

    def until_attached(self):
        until = time.monotonic() + WAIT_S
        while not self.adapter.report_status()["is_attached"]:
            assert time.monotonic() < until, "the adapter does not attach"
            time.sleep(0.02)
        return self


@pytest.fixture
def l1():
    return L1()


def manager(**parameters):
    """A process with LMCache's StorageManager."""
    return EngineProcess(HERE / "lmcache_process.py", spec(**parameters), {**os.environ, "OMP_NUM_THREADS": "1"})


adapters = pytest.fixture(fixtures.closed_at_the_end(Driver))
managers = pytest.fixture(fixtures.closed_at_the_end(manager))
pools = pytest.fixture(fixtures.pools_of("lmcache", OBJECT_BYTES))


def wait_for_objects(pool, count):
    """Until the pool has so many; LMCache stores in the background."""
    until = time.monotonic() + WAIT_S
    while (live := pool.info()["accounting"]["live_blocks"]) < count:
        assert time.monotonic() < until, f"{live} objects in {pool.path}, expected {count}"
        time.sleep(0.05)


@pytest.fixture
def pool(pools):
    return pools()
