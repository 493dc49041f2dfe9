"""KV memory without a page table, through cachalot.vmm."""

import ctypes
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest

import cachalot
from cachalot import vmm

ROOT = Path(__file__).parents[2]
ROW = 2048


def small(**options):
    return vmm.open(**{"layers": 2, "part_bytes": (ROW, ROW), "max_tokens": 8192, "layout": "per_layer", **options})


def array(request, layer, part):
    return np.asarray(request.rows(layer, part, (8, 128), "<i2"))


@pytest.mark.parametrize("layout", ["per_layer", "folded", "folded_parts"])
def test_rows_lie_where_the_view_says(layout):
    with small(layout=layout) as memory:
        request = memory.reserve(700)
        everything = np.asarray(request.all_rows((8, 128), "<i2"))
        assert everything.shape == (2, 2, 8192, 8, 128)
        for layer in range(2):
            for part in range(2):
                rows = array(request, layer, part)
                offset, stride = memory.view(layer, part)
                assert rows.ctypes.data == request.base + offset and rows.strides[0] == stride
                rows[:700] = np.arange(700, dtype=np.int16)[:, None, None] + 1000 * layer + 7000 * part
        for layer in range(2):
            for part in range(2):
                assert (everything[layer, part, :700, 3, 5] == np.arange(700) + 1000 * layer + 7000 * part).all()


def test_a_request_grows_and_keeps_what_it_has():
    with small(max_tokens=4096) as memory:
        request = memory.reserve(1000)
        rows = array(request, 1, 0)
        rows[:1000] = 7
        for tokens in range(1001, 2100):
            request.prepare(tokens + 1)
            request.commit(tokens)
            rows[tokens - 1] = tokens
        assert (rows[:1000] == 7).all() and (rows[1000:2099, 0, 0] == np.arange(1001, 2100)).all()
        assert memory.statistics().maps == 12
        request.decommit(0)
        request.release()
        request.release()
        assert memory.statistics().ranges == 0


def test_a_prefix_is_shared():
    with small() as memory:
        first, second = memory.reserve(1500), memory.reserve()
        array(first, 0, 1)[:1500] = np.arange(1500, dtype=np.int16)[:, None, None]
        assert second.alias(first, 1499) == 1499
        second.commit(1600)
        rows = array(second, 0, 1)
        assert (rows[:1499, 7, 127] == np.arange(1499)).all()
        rows[1499] = -1
        assert array(first, 0, 1)[1499, 0, 0] == 1499
        assert memory.statistics().shared_bytes == 4 * (2 << 20)  # the full chunk of each plane
        with pytest.raises(cachalot.InvalidArgumentError):
            first.decommit(10)


def test_a_copy_of_the_callers():
    copied = []

    def copy(to, source, count):
        copied.append(count)
        np.frombuffer((ctypes.c_char * count).from_address(to), np.uint8)[:] = np.frombuffer(
            (ctypes.c_char * count).from_address(source), np.uint8)

    def fail(to, source, count):
        raise ZeroDivisionError("the copy's own")

    with small(copy=copy) as memory:
        first, second = memory.reserve(1500), memory.reserve()
        assert second.alias(first, 1499) == 1499
        assert sum(copied) == memory.statistics().copied_bytes > 0
    with small(copy=fail) as memory:
        first, second = memory.reserve(1500), memory.reserve()
        with pytest.raises(ZeroDivisionError, match="the copy's own"):
            second.alias(first, 1499)
        second.commit(5)


def test_errors_are_the_packages():
    with small(limit_bytes=16 << 20) as memory:
        with pytest.raises(cachalot.NoSpaceError):
            memory.reserve(8192)
        request = memory.reserve(1)
        with pytest.raises(cachalot.InvalidArgumentError, match="part 2 of layer 0"):
            memory.view(0, 2)
        with pytest.raises(cachalot.InvalidArgumentError, match="tokens: -1"):
            request.commit(-1)
        with pytest.raises(cachalot.InvalidArgumentError, match="are 256 bytes, expected 2048"):
            request.rows(0, 0, (128,), "<i2")
        with pytest.raises(cachalot.InvalidArgumentError, match="tokens: 8193"):
            request.rows(0, 0, (8, 128), "<i2", tokens=8193)
        with pytest.raises(cachalot.InvalidArgumentError, match='numbers "bfloat16"'):
            request.rows(0, 0, (8, 128), "bfloat16")
        with pytest.raises(TypeError, match="tokens: 1.5, expected an int"):
            request.commit(1.5)
        with pytest.raises(TypeError, match="shape: 8, expected a sequence of ints"):
            request.rows(0, 0, 8, "<f2")
        with pytest.raises(cachalot.InvalidArgumentError, match='numbers "None"'):
            request.rows(0, 0, (8, 128), None)
        with pytest.raises(TypeError, match="alias: None, expected a range"):
            request.alias(None, 1)
        request.release()
        for call in (lambda: request.commit(1), lambda: request.rows(0, 0, (8, 128), "<i2"), lambda: memory.reserve().alias(request, 1)):
            with pytest.raises(cachalot.InvalidArgumentError, match="released"):
                call()
    with pytest.raises(cachalot.InvalidArgumentError, match='device "tape"'):
        small(device="tape")
    with pytest.raises(cachalot.InvalidArgumentError, match="contains a zero byte"):
        small(device="memfd\0")
    with pytest.raises(TypeError, match="part_bytes: 5, expected a sequence of ints"):
        small(part_bytes=5)
    with pytest.raises(cachalot.InvalidArgumentError, match="3 numbers"):
        small(part_bytes=(1, 2, 3))
    with pytest.raises(cachalot.InvalidArgumentError, match="layers: 4294967296"):
        small(layers=2**32)
    with small(device="model") as memory, pytest.raises(cachalot.UnsupportedError, match="no memory"):
        memory.reserve(1).rows(0, 0, (8, 128), "<i2")
    with small(part_bytes=(ROW, 128)) as memory, pytest.raises(cachalot.InvalidArgumentError, match="one size"):
        memory.reserve(1).all_rows((8, 128), "<i2")
    with small(part_bytes=(1152,), layout="folded") as memory:  # a latent
        assert np.asarray(memory.reserve(3).all_rows((576,), "<i2")).shape == (2, 1, 8192, 576)


def test_nothing_is_called_after_the_end():
    memory = small()
    request = memory.reserve(10)
    memory.close()
    memory.close()
    for call in (request.release, request.release):
        call()
    with small() as another, pytest.raises(cachalot.InvalidArgumentError, match="two vmms"):
        another.reserve().alias(request, 5)  # what it pointed to is gone
    request = small().reserve(10)  # it keeps its memory open
    array(request, 0, 0)[:10] = 1
    request._vmm.close()
    with pytest.raises(cachalot.InvalidArgumentError, match="closed"):
        request.commit(11)


def test_a_forked_child_is_refused_and_ends():
    memory = small()
    request = memory.reserve(10)
    child = os.fork()
    if child == 0:
        try:
            request.commit(20)
        except cachalot.UnsupportedError:
            memory.close()
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    memory.close()


def test_threads_and_a_close_that_waits_for_them():
    memory = small(limit_bytes=1 << 30)
    failed = []

    def serve(seed):
        random = np.random.default_rng(seed)
        try:
            for _ in range(30):
                request = memory.reserve(int(random.integers(1, 2000)))
                rows = array(request, 0, 0)
                rows[:1] = seed
                request.prepare(2100)
                request.commit(2050)
                if rows[0, 0, 0] != seed:
                    failed.append(seed)
                request.release()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=serve, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert memory.statistics().ranges == 0
    memory.close()


def test_the_structs_are_the_headers():
    header = (ROOT / "include/cachalot/vmm.h").read_text()
    header = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    for name, ours in (("options", vmm._Options), ("statistics", vmm._Statistics)):
        body = re.search(rf"typedef struct cachalot_vmm_{name} \{{(.*?)\}}", header, re.DOTALL).group(1)
        words = [re.search(r"(\w+)\s*(?:\[\d+\]\s*)?$", each.strip()).group(1)
                 for line in body.split(";") if line.strip() for each in line.split(",")]
        assert words == [field[0] for field in ours._fields_], name
    functions = set(re.findall(r"cachalot_vmm_(\w+)\(", header))
    assert set(vmm._FUNCTIONS) == functions
