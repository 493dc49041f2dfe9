"""KV of which some layers are in host memory, through cachalot.layerwise."""

import ctypes
import os
import re
from pathlib import Path

import numpy as np
import pytest

import cachalot
from cachalot import layerwise

ROOT = Path(__file__).parents[2]
ROW, LAYERS = 4096, 6  # 512 rows a chunk


def small(**options):
    return layerwise.open(**{"layers": LAYERS, "part_bytes": (ROW, ROW), "max_tokens": 2000, **options})


def arrays(request):
    return [[np.asarray(request.rows(layer, part, (ROW // 8,), "<i8")) for part in (0, 1)] for layer in range(LAYERS)]


def step(kv, views, tokens, before):
    """Writes the new rows of each request and layer and compares all rows."""
    with kv.step(tokens):
        for layer in range(LAYERS):
            with kv.layer(layer):
                for number, (request, count) in enumerate(tokens.items()):
                    for part, rows in enumerate(views[request][layer]):
                        end = before[request] + count
                        wanted = np.arange(end) + 10**6 * (100 * number + 10 * layer + part)
                        rows[before[request]:end] = wanted[before[request]:, None]
                        assert (rows[:end] == wanted[:, None]).all(), (layer, part)
    for request, count in tokens.items():
        before[request] += count


@pytest.mark.parametrize("layout", ["per_layer", "folded"])
@pytest.mark.parametrize("resident", [0, 1, 3, 6])
def test_rows_come_back_and_the_bound_holds(layout, resident):
    with small(layout=layout, resident=resident) as kv:
        requests = [kv.add(), kv.add(700)]
        views, before = {each: arrays(each) for each in requests}, dict.fromkeys(requests, 0)
        step(kv, views, {requests[0]: 600, requests[1]: 10}, before)
        for _ in range(3):
            step(kv, views, dict.fromkeys(requests, 1), before)
        now = kv.statistics()
        assert now.requests == 2 and now.resident == resident
        assert 0 < now.peak_device_bytes * LAYERS <= min(LAYERS, resident + 2) * now.all_bytes
        assert (now.loaded_bytes > 0) == (now.offloaded_bytes > 0) == (resident < 4)
        requests[0].remove()
        requests[0].remove()
        assert kv.statistics().requests == 1


def test_a_step_that_fails_is_cancelled():
    with small() as kv:
        request = kv.add()
        views, before = {request: arrays(request)}, {request: 0}
        step(kv, views, {request: 5}, before)
        with pytest.raises(ZeroDivisionError):
            with kv.step({request: 3}):
                with kv.layer(0):
                    1 / 0  # noqa: B018
        step(kv, views, {request: 4}, before)
        kv.set_resident(2)
        step(kv, views, {request: 1}, before)


def test_bad_calls_are_named():
    with small(host_bytes=24 << 20) as kv, small() as other:
        request = kv.add()
        with pytest.raises(cachalot.InvalidArgumentError, match="0 new tokens"):
            kv.begin({request: 0})
        with pytest.raises(cachalot.NoSpaceError, match="host memory"):
            kv.begin({request: 513})
        with pytest.raises(cachalot.InvalidArgumentError, match="another LayerwiseKv"):
            other.begin({request: 1})
        with pytest.raises(TypeError, match="expected a request"):
            kv.begin({"one": 1})
        with pytest.raises(cachalot.InvalidArgumentError, match="expected begin"):
            kv.acquire(0)
        with pytest.raises(cachalot.InvalidArgumentError, match="layer 6, expected one of 6"):
            request.rows(6, 0, (ROW,), "|u1")
        with pytest.raises(cachalot.InvalidArgumentError, match="part 2"):
            request.rows(0, 2, (ROW,), "|u1")
        with pytest.raises(cachalot.InvalidArgumentError, match="expected 4096"):
            request.rows(0, 0, (7,), "<f4")
        request.remove()
        with pytest.raises(cachalot.InvalidArgumentError, match="removed"):
            kv.begin({request: 1})
    with pytest.raises(cachalot.InvalidArgumentError, match="closed"):
        kv.add()
    with pytest.raises(cachalot.InvalidArgumentError, match='"disk"'):
        small(device="disk")
    with pytest.raises(cachalot.InvalidArgumentError, match="part_bytes: 3 numbers"):
        small(part_bytes=(1, 1, 1))


def test_the_callers_copy_moves_the_rows_and_its_error_is_raised():
    moved = []

    def copy(to, source, count):
        if len(moved) == 40:
            raise RuntimeError("the copy engine is gone")
        moved.append(count)
        ctypes.memmove(to, source, count)

    with small(copy=copy) as kv:
        request = kv.add()
        views, before = {request: arrays(request)}, {request: 0}
        with pytest.raises(RuntimeError, match="the copy engine is gone"):
            for _ in range(50):
                step(kv, views, {request: 1}, before)
        assert len(moved) == 40


def test_a_forked_child_is_refused():
    with small() as kv:
        child = os.fork()
        if child == 0:
            try:
                kv.add()
            except cachalot.UnsupportedError:
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_as_few_layers_stay_as_the_computation_hides():
    assert layerwise.fewest_resident(12, 1000, 9_500_000, 1e6) == 3
    assert layerwise.fewest_resident(12, 1000, 12_000_000, 1e6) == 0
    with pytest.raises(cachalot.InvalidArgumentError, match="bytes_per_second: -1"):
        layerwise.fewest_resident(12, 1000, 1, -1)


def test_the_structs_are_the_headers():
    header = re.sub(r"/\*.*?\*/", "", (ROOT / "include/cachalot/layerwise.h").read_text(), flags=re.DOTALL)
    for name, struct in (("options", layerwise._Options), ("statistics", layerwise._Statistics)):
        body = re.search(rf"typedef struct cachalot_layerwise_{name} \{{(.*?)\}}", header, re.DOTALL).group(1)
        words = [re.search(r"(\w+)\s*(?:\[\d+\]\s*)?$", each.strip()).group(1)
                 for line in body.split(";") if line.strip() for each in line.split(",")]
        assert words == [field[0] for field in struct._fields_], name
    assert set(re.findall(r"cachalot_layerwise_(\w+)\(", header)) == set(layerwise._FUNCTIONS)
