"""Memory of objects that know DLPack alone."""

import ctypes
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


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int), ("device", ctypes.c_int), ("ndim", ctypes.c_int),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    ]  # fmt: skip


class Counted:
    """A producer that counts what it hands out, and what it is given back."""

    def __init__(self, array, device=(1, 0), bits=16):
        self.array, self.device = array, device
        self.handed_out = self.given_back = 0
        self._shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self._deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._take_back)
        self._tensor = _Tensor(
            array.ctypes.data, *device, array.ndim, 2, bits, 1, self._shape, None, 0, None,
            ctypes.cast(self._deleter, ctypes.c_void_p))  # fmt: skip

    def _take_back(self, _):
        self.given_back += 1

    def __dlpack__(self, **options):
        if options:
            raise TypeError("an old producer")
        self.handed_out += 1
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self._tensor), b"dltensor", None)

    def __dlpack_device__(self):
        return self.device


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


def test_what_is_handed_out_is_given_back_once(pool):
    def are_back(producers):
        gc.collect()
        return all(one.handed_out == one.given_back != 0 for one in producers)

    with attach(pool) as client:
        good = [Counted(array) for array in zeros()]
        cache = client.register_cache("vllm_kbnhc", good, pages=16)
        assert all(one.handed_out == one.given_back + 1 for one in good), "it is held while it is registered"
        client.unregister_cache(cache)
        assert are_back(good)
        same = zeros()[0]
        for refused, options in (
            ([Counted(same) for _ in range(3)], {}),  # they overlap
            ([Counted(array) for array in zeros()][:1], {"pages": 15}),
            ([Counted(array, bits=32) for array in zeros()][:1], {}),
            ([Counted(array, device=(2, 0)) for array in zeros()], {"device": 0}),
            ([Counted(array, device=(2, 0)) for array in zeros()][:2], {"device": 0, "stream": 0x5000}),
        ):
            with pytest.raises(cachalot.Error):
                client.register_cache("vllm_kbnhc", refused, **{"pages": 16, **options})
            assert are_back(refused)
        last = [Counted(array) for array in zeros()]
        client.register_cache("vllm_kbnhc", last, pages=16)
    assert are_back(last)
