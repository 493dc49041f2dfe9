"""Memory of objects that know DLPack alone."""

import gc
import weakref

import numpy as np
import pytest

import cachalot
from conftest import attach, tokens_of


class Dlpack:
    """An array without the buffer protocol."""

    def __init__(self, array, device=(1, 0)):
        self._array, self._device = array, device

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._device


def zeros(dtype=np.float16):
    return [np.zeros((2, 16, 4, 2, 32), dtype) for _ in range(3)]


def test_blocks_are_loaded_into_it(stored, pool):
    engine, hashes = stored
    arrays = zeros()
    with attach(pool) as client:
        cache = client.register_cache("vllm_kbnhc", map(Dlpack, arrays), pages=16)
        assert client.load(cache, hashes, Dlpack(np.arange(8))) == 8
        assert all(np.array_equal(a[:, :8], b[:, :8]) for a, b in zip(arrays, engine.tensors))
        assert client.hash_tokens(Dlpack(tokens_of(1, 32).astype(np.int64))) == hashes
        alive = weakref.ref(arrays[0])
        del arrays
        gc.collect()
        assert alive() is not None
    gc.collect()
    assert alive() is None


def test_what_does_not_fit_is_named(engine):
    def register(tensors):
        engine.client.register_cache("vllm_kbnhc", tensors, pages=16)

    with pytest.raises(cachalot.InvalidArgumentError, match="tensor 0: has numbers of 4 bytes"):
        register(map(Dlpack, zeros(np.float32)))
    with pytest.raises(cachalot.InvalidArgumentError, match="tensor 0: is not contiguous"):
        register([Dlpack(array.swapaxes(0, 1)) for array in zeros()])
    with pytest.raises(cachalot.InvalidArgumentError, match="tensor 0: lies on .* type 2.*memory of the CPU"):
        register([Dlpack(array, device=(2, 0)) for array in zeros()])
    fixed = zeros()
    fixed[2].flags.writeable = False
    with pytest.raises(cachalot.InvalidArgumentError, match="tensor 2"):
        register(map(Dlpack, fixed))
