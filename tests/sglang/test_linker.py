"""The linker without an engine: what SGLang's scheduler would ask of it."""

import logging
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cachalot.connectors.access import weight_updates
from cachalot.connectors.access.log import RateLimitedLog
from cachalot.connectors.sglang.linker import CachalotLinker
from cachalot.connectors.sglang.metrics import Metrics
from cachalot.connectors.sglang.namespace import Place

PAGE = 16
KEYS = [64 * digit for digit in "ab"]


class Done:
    """A store that has ended."""

    def __init__(self, stored, reason=None):
        self._stored, self.reason = stored, reason

    def done(self):
        return True

    def result(self):
        return self._stored


class Pool:
    """An attachment and its client in one. It has all pages, and notes what it was asked for."""

    device = None

    def __init__(self):
        self.loaded, self.parents = [], []
        self.refuses_parents = False

    def get(self):
        return self

    def get_with(self):
        return self, None

    def lookup(self, hashes):
        return len(hashes)

    def load(self, cache, hashes, pages, **options):
        self.loaded.append(hashes.tobytes())
        return len(hashes)

    def store_async(self, cache, hashes, pages, parent, **options):
        self.parents.append(None if parent is None else parent.tobytes())
        return Done(0, "refused") if self.refuses_parents and parent is not None else Done(len(hashes))


class NoPool(Pool):
    def get(self):
        return None

    def get_with(self):
        return None, None


class Trainer:
    def update(self):
        pass


weight_updates.watch(Trainer, "update")


@pytest.fixture
def linker():
    """As its constructor leaves it, in an engine of one rank."""
    made = object.__new__(CachalotLinker)
    made.__dict__.update(
        log=RateLimitedLog(logging.getLogger(__name__)), options=SimpleNamespace(load_timeout=1, store_timeout=1, store_held=0.5),
        _ranks=1, _page_tokens=PAGE, _pages=6, _attachment=Pool(), _mask=np.zeros(2, np.uint64), _updates=weight_updates.count(),
        _is_stale=False, _queued=set(), _offloads=deque(), _held_slots=0, _stores_at=0.0, parent=None, _orphans={}, _batch=-1,
        _metrics=Metrics(False, Place(0, 1, 0, 1), 1))
    return made


TRANSFERS = [SimpleNamespace(keys=KEYS, device_indices=torch.arange(2 * PAGE))]


def test_what_the_pool_has_is_found_and_loaded(linker):
    assert linker.lookup("a", TRANSFERS) == [1, 2]
    assert linker.load("a", TRANSFERS)
    assert linker.cancel_queued_load("a")


def test_pages_that_were_found_before_an_update_are_not_loaded_after_it(linker):
    """SGLang loads later than it looks up. Nothing else asks the linker between the two."""
    assert linker.lookup("a", TRANSFERS) == [1, 2]
    Trainer().update()
    assert not linker.load("a", TRANSFERS)
    assert linker._attachment.loaded == [] and not linker.cancel_queued_load("a")


def test_after_an_update_and_a_flush_other_keys_are_asked_for(linker):
    assert linker.load("a", TRANSFERS)
    Trainer().update()
    assert linker.lookup("b", TRANSFERS) == []
    linker.reset()
    assert linker.lookup("b", TRANSFERS) == [1, 2] and linker.load("b", TRANSFERS)
    before, after = linker._attachment.loaded
    assert before != after


def offload(linker, parent=None):
    linker.parent = parent
    return linker.offload(TRANSFERS)


def test_a_rank_without_a_pool_takes_the_same_offloads_as_others(linker):
    """SGLang goes on when all ranks have a result. One that refused would have none."""
    linker._attachment = NoPool()
    assert [offload(linker) for _ in range(2)] == [True, False]  # of six pages three may be held
    assert linker.num_completed_offloads() == 1 and not linker.pop_completed_offload()
    linker._attachment = Pool()
    assert [offload(linker) for _ in range(2)] == [True, False]
    assert linker.num_completed_offloads() == 1 and linker.pop_completed_offload()
    Trainer().update()
    assert offload(linker)
    assert linker.num_completed_offloads() == 1 and not linker.pop_completed_offload()


def test_pages_whose_parent_the_pool_has_lost_are_stored_without_it(linker):
    pool, before = linker._attachment, 64 * "c"
    pool.refuses_parents = True
    assert offload(linker, before) and not linker.pop_completed_offload()
    assert offload(linker, before) and linker.pop_completed_offload()
    assert pool.parents == [bytes(16 * [0xcc]), None]
    # It is stored again.
    pool.refuses_parents = False
    linker.parent = None
    assert linker.offload([SimpleNamespace(keys=[before], device_indices=torch.arange(PAGE))]) and linker.pop_completed_offload()
    assert offload(linker, before) and linker.pop_completed_offload()
    assert pool.parents[2:] == [None, bytes(16 * [0xcc])]
