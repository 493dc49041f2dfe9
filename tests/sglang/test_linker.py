"""The linker without an engine: what SGLang's scheduler would ask of it."""

import logging
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cachalot.connectors.access import weight_updates
from cachalot.connectors.access.log import RateLimitedLog
from cachalot.connectors.sglang import weight_updates as updates
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

    def wait(self):
        return True

    def result(self):
        return self._stored


class Late(Done):
    """A store that ends when it has been asked twice, or, if it hangs, after it was cancelled."""

    def __init__(self, stored, hangs=False):
        super().__init__(stored)
        self.hangs, self._asked = hangs, 0
        self.has_ended = False

    def done(self):
        self._asked += 1
        self.has_ended |= not self.hangs and self._asked > 2
        return self.has_ended

    def cancel(self):
        self.hangs = False

    def wait(self):
        assert not self.hangs
        self.has_ended = True
        return True


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


def updater_of(*, keeps_weights=False, released=None):
    """SGLang's updater of a version that has one way more to update weights, watched."""

    def noted(self, request=None):
        if released is not None:
            released(request)

    class Updater:
        release_memory_occupation = noted

        def begin_weight_update(self, request=None):
            pass

        def end_weight_update(self, request=None):
            pass

        def commit_weight_update(self, request=None):
            pass

        update_weights_from_disk = update_weights_from_ipc = begin_weight_update
        update_weights_from_tensor = update_weights_from_distributed = begin_weight_update

    for _ in range(2):
        updates.watch_updater(Updater, keeps_weights)
    return Updater()


@pytest.mark.parametrize("hangs", [False, True], ids=["in-time", "cancelled"])
def test_offloads_have_ended_when_sglang_releases_the_memory_of_its_pages(linker, monkeypatch, hangs):
    """Their results stay for SGLang, which drops them with its flush, and asks for them if it refuses the release."""
    linker.options.store_timeout = 0.05 if hangs else 10
    calls = [Late(2, hangs)]
    monkeypatch.setattr(linker._attachment, "store_async", lambda *arguments, **options: calls[0])
    assert offload(linker) and linker.num_completed_offloads() == 0
    had_ended = []
    updates.at_release(linker._end_copies)
    updater_of(released=lambda request: had_ended.append(calls[0].has_ended)).release_memory_occupation(SimpleNamespace(tags=None))
    assert had_ended == [True]
    assert linker.num_completed_offloads() == 1 and linker.pop_completed_offload()


def test_an_update_by_a_method_of_a_later_version_is_noticed_once(linker):
    assert linker.load("a", TRANSFERS)
    updater = updater_of()
    before = weight_updates.count()
    updater.commit_weight_update()
    assert weight_updates.count() == before + 1 and not linker.load("a", TRANSFERS)
    linker.reset()
    updater.end_weight_update()
    assert weight_updates.count() == before + 1 and linker.load("a", TRANSFERS)


@pytest.mark.parametrize(("keeps_weights", "tags", "updates_weights"), [
    (False, None, True), (False, ["weights"], True), (False, ["kv_cache"], False), (True, None, False), (True, ["weights"], False)])
def test_weights_that_were_released_without_a_copy_are_others(linker, keeps_weights, tags, updates_weights):
    before = weight_updates.count()
    updater_of(keeps_weights=keeps_weights).release_memory_occupation(SimpleNamespace(tags=tags))
    assert weight_updates.count() - before == updates_weights
    assert linker.load("a", TRANSFERS) != updates_weights
