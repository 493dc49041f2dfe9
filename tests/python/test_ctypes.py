"""Memory of ctypes: arrays whose buffers say nothing of their strides."""

import ctypes
import multiprocessing

import numpy as np
import pytest

import cachalot
from conftest import attach, tokens_of

PAGES = 16
SHAPE = (2, PAGES, 4, 2, 32)
NUMBERS = int(np.prod(SHAPE))


def filled(array, values):
    array[:] = list(map(int, values))
    return array


def ctypes_array(kind, values):
    return filled((kind * len(values))(), values)


def raw_array(kind, values):
    return filled(multiprocessing.RawArray(kind, len(values)), values)


def nested(kind, rows):
    return (kind * len(rows[0]) * len(rows))(*[tuple(map(int, row)) for row in rows])


BOTH = pytest.mark.parametrize("make", [ctypes_array, raw_array])


@BOTH
def test_tokens_and_pages_are_read(stored, make):
    engine, hashes = stored
    for kind in (ctypes.c_uint32, ctypes.c_int64, ctypes.c_uint16):
        assert engine.client.hash_tokens(make(kind, tokens_of(1, 32) % 30_000)) == engine.client.hash_tokens(
            tokens_of(1, 32) % 30_000
        )
        assert engine.client.load(engine.cache, hashes, make(kind, range(15, 7, -1))) == 8
    assert [engine.block(page) for page in range(15, 7, -1)] == [engine.block(page) for page in range(8)]


def test_hashes_and_a_parent_are_read(stored):
    engine, hashes = stored
    client, rows = engine.client, np.asarray(hashes)
    assert client.lookup(nested(ctypes.c_uint64, rows)) == 8
    longer = client.hash_tokens(np.concatenate([tokens_of(1, 32), tokens_of(2, 8)]))
    parent = ctypes_array(ctypes.c_uint64, rows[7])
    assert client.store(engine.cache, longer[8:], [8, 9], parent=parent).blocks == 2
    with pytest.raises(cachalot.InvalidArgumentError, match=r"hashes: an array \(4,\) of uint64, expected \(n, 2\)"):
        client.lookup((ctypes.c_uint64 * 4)())
    with pytest.raises(cachalot.InvalidArgumentError, match=r"parent: an array \(1, 2\) of uint64"):
        client.store(engine.cache, longer[8:], [8, 9], parent=nested(ctypes.c_uint64, rows[:1]))


@BOTH
def test_a_cache_is_loaded_into_it(stored, pool, make):
    engine, hashes = stored
    tensors = [make(ctypes.c_uint16, [0] * NUMBERS) for _ in range(3)]
    with attach(pool) as client:
        cache = client.register_cache("vllm_kbnhc", tensors, pages=PAGES)
        assert client.load(cache, hashes, range(8)) == 8
    for got, wanted in zip(tensors, engine.tensors):
        assert np.array_equal(np.frombuffer(got, np.float16).reshape(SHAPE)[:, :8], wanted[:, :8])


@BOTH
def test_objects_lie_in_it(engine, make):
    client = engine.client
    memory, answer = make(ctypes.c_uint8, range(100)), make(ctypes.c_uint8, [0] * 100)
    for buffer in (memory, answer):
        client.register_buffer(buffer)
    assert client.put("whole", memory) == client.put("in parts", [memory]) == 100
    assert client.get("whole", answer) == 100 and bytes(answer) == bytes(range(100))
    assert client.get("in parts", [answer]) == 100
    for buffer in (memory, answer):
        client.unregister_buffer(buffer)


def test_other_shapes_are_taken_for_what_they_are(engine):
    client = engine.client
    for buffer in (ctypes.create_string_buffer(100), (ctypes.c_float * 2 * 3 * 4)(), ctypes.c_uint64()):
        client.register_buffer(buffer)
        client.unregister_buffer(buffer)
    assert len(client.hash_tokens((ctypes.c_uint32 * 0)())) == 0
    for tokens, words in (
        ((ctypes.c_uint32 * 4 * 2)(), r"tokens: an array \(2, 4\) of uint32"),
        (ctypes.c_uint32(5), r"tokens: an array \(\) of uint32"),
        ((ctypes.c_float * 4)(), r"tokens: an array \(4,\) of float32"),
        (ctypes.create_string_buffer(4), r"tokens: an array \(4,\) of another type"),
    ):
        with pytest.raises(cachalot.InvalidArgumentError, match=words):
            client.hash_tokens(tokens)
