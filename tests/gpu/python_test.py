"""Caches on a GPU through the Python package, on a libcuda.so.1 of emulated GPUs.

usage: python_test.py FAKE_LIBCUDA    (with the package on the path)
"""

import ctypes
import os
import sys

import numpy as np

fake = ctypes.CDLL(sys.argv[1])  # from now on, whoever opens libcuda.so.1 gets it
fake.fake_add_copy_kernels()

import cachalot  # noqa: E402

GEOMETRY = cachalot.KvGeometry(layers=3, kv_heads=2, head_dim=32, dtype="f16", block_tokens=4)
SHAPE = (2, 16, 4, 2, 32)
DEVICE = 1


class CudaArray:
    """Memory of the fake device, which the host may look at, and what torch shows of it."""

    def __init__(self, seed):
        at = ctypes.c_ulonglong()
        size = 2 * int(np.prod(SHAPE))
        assert fake.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size)) == 0
        self.view = np.frombuffer((ctypes.c_char * size).from_address(at.value), np.float16).reshape(SHAPE)
        self.view[:] = np.random.default_rng(seed).random(SHAPE)
        self.__cuda_array_interface__ = {
            "data": (at.value, False), "shape": SHAPE, "typestr": "<f2", "strides": None, "version": 3}


class Stream:
    def __init__(self):
        stream = ctypes.c_void_p()
        assert fake.cuStreamCreate(ctypes.byref(stream), 1) == 0
        self.cuda_stream = stream.value


def main():
    context = ctypes.c_void_p()
    assert fake.cuDevicePrimaryCtxRetain(ctypes.byref(context), DEVICE) == 0
    assert fake.cuCtxSetCurrent(context) == 0
    there, here, stream = [CudaArray(layer) for layer in range(3)], [np.zeros(SHAPE, np.float16) for _ in range(3)], Stream()
    path = f"/dev/shm/cachalot_gpu_python_test.{os.getpid()}"
    with cachalot.EmbeddedKeeper(pool=path, block_bytes=GEOMETRY.block_bytes, capacity_blocks=64), \
         cachalot.Client(pool=path, model="test@1", geometry=GEOMETRY) as client:
        try:
            on_gpu = client.register_cache("vllm_kbnhc", there, pages=16, device=DEVICE, stream=stream)
        except cachalot.UnsupportedError as error:
            print("skipped:", error)
            return
        pairs = [(a.__cuda_array_interface__["data"][0], a.view.nbytes) for a in there]
        by_pairs = client.register_cache("vllm_kbnhc", pairs, pages=16, device=DEVICE)
        in_memory = client.register_cache("vllm_kbnhc", here, pages=16)
        pages = list(range(16))
        first, second = client.hash_tokens(range(64)), client.hash_tokens(range(100, 164))
        assert client.store(on_gpu, first, pages).written == 16
        assert client.load(in_memory, first, pages) == 16
        assert all(np.array_equal(a.view, b) for a, b in zip(there, here))
        with client.begin_store(on_gpu, second, pages, stream=stream.cuda_stream) as store:
            for layer in range(3):
                store.start_layer(layer)
            assert store.finish().written == 16
        for array in there:
            array.view[:] = 0
        with client.begin_load(by_pairs, second, pages) as load:
            for layer in range(3):
                load.start_layer(layer)
            assert not there[0].view.any()
            assert [load.load_layer(layer) for layer in range(3)] == [16, 16, 16]
        assert all(np.array_equal(a.view, b) for a, b in zip(there, here))
        for array in there:
            array.view[:] = 0
        assert client.load_async(on_gpu, first, pages, stream=stream).result(60) == 16
        assert client.store_async(by_pairs, first, pages).result(60) == 16
        assert all(np.array_equal(a.view, b) for a, b in zip(there, here))
    fake.fake_refused.restype = ctypes.c_ulonglong
    assert fake.fake_refused() == 0


main()
