"""The linker without an engine: what SGLang's scheduler would ask of it."""

import logging
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


class Pool:
    """An attachment and its client in one. It has all pages, and notes what it was asked for."""

    device = None

    def __init__(self):
        self.loaded = []

    def get(self):
        return self

    def get_with(self):
        return self, None

    def lookup(self, hashes):
        return len(hashes)

    def load(self, cache, hashes, pages, **options):
        self.loaded.append(hashes.tobytes())
        return len(hashes)


class Trainer:
    def update(self):
        pass


weight_updates.watch(Trainer, "update")


@pytest.fixture
def linker():
    """As its constructor leaves it, in an engine of one rank."""
    made = object.__new__(CachalotLinker)
    made.__dict__.update(
        log=RateLimitedLog(logging.getLogger(__name__)), options=SimpleNamespace(load_timeout=1, store_timeout=1), _ranks=1,
        _page_tokens=PAGE, _attachment=Pool(), _mask=np.zeros(2, np.uint64), _updates=weight_updates.count(), _is_stale=False,
        _queued=set(), _offloads=[], _batch=-1, _metrics=Metrics(False, Place(0, 1, 0, 1), 1))
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
