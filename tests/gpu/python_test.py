"""Caches on a GPU through the Python package, on a libcuda.so.1 of emulated GPUs.

usage: python_test.py FAKE_LIBCUDA    (with the package on the path)
"""

import contextlib
import ctypes
import gc
import os
import sys
import time
import weakref

import numpy as np

fake = ctypes.CDLL(sys.argv[1])  # from now on, every dlopen of libcuda.so.1 gets it
fake.fake_add_copy_kernels()

import cachalot  # noqa: E402
import cachalot.tier  # noqa: E402

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
        empty = [CudaArray(0) for _ in range(3)]
        for array in empty:
            array.__cuda_array_interface__["shape"] = (2, 0, 4, 2, 32)
        for nothing in ([(pairs[0][0], 0)] * 3, empty):
            try:
                client.register_cache("vllm_kbnhc", nothing, pages=16, device=DEVICE)
                raise AssertionError("nothing was taken for a cache")
            except cachalot.InvalidArgumentError as error:
                assert " 0 bytes" in str(error), error
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
    tiers(stream)
    hand_over(stream)
    fake.fake_refused.restype = ctypes.c_ulonglong
    assert fake.fake_refused() == 0
    lost_gpu(path, stream)


def tiers(stream):
    """L1 on the GPU: what it evicts comes back out of page-locked host memory."""
    there = [CudaArray(layer) for layer in range(3)]

    def bytes_of(pages):
        return [array.view[:, pages].copy() for array in there]

    def refused(kind, words, tensors, **given):
        try:
            cachalot.tier.open("vllm_kbnhc", tensors, pages=16, model="test@1", geometry=GEOMETRY, **given)
        except kind as error:
            assert words in str(error), error
            return
        raise AssertionError("it was accepted")

    refused(TypeError, "tensor 0: bytearray(b'') (bytearray), expected memory of a GPU", [bytearray()] * 3, device=DEVICE)
    refused(TypeError, "device: 'cuda'", there, device="cuda")
    refused(cachalot.InvalidArgumentError, "expected memory of device 0", there, device=0)
    wide = CudaArray(0)
    wide.__cuda_array_interface__["typestr"] = "<f4"
    refused(cachalot.InvalidArgumentError, "numbers of 4 bytes (float32), expected 2", [wide] * 3, device=DEVICE)
    swapped = CudaArray(0)
    swapped.__cuda_array_interface__["shape"] = (SHAPE[1], SHAPE[0], *SHAPE[2:])
    refused(cachalot.InvalidArgumentError, "expected for layer 0 (2, 16, ", [swapped] * 3, device=DEVICE)
    with cachalot.tier.open("vllm_kbnhc", there, pages=16, model="test@1", geometry=GEOMETRY, device=DEVICE, stream=stream, host_ratio=4) as cache:
        computed = {}
        for first in (0, 100, 200, 0):
            prompt = list(range(first, first + 41))
            with cache.request(prompt) as request:
                start = request.start()
                for layer in range(3):
                    request.wait_layer(layer)
                assert fake.cuStreamSynchronize(ctypes.c_void_p(stream.cuda_stream)) == 0
                pages = start.pages[:10]
                if first in computed:
                    assert (start.cached_tokens, start.host_tokens) == (40, 40), start
                    assert all(np.array_equal(a, b) for a, b in zip(bytes_of(pages), computed[first]))
                else:
                    for array in there:
                        array.view[:, pages] = np.random.default_rng(first).random((2, 10, 4, 2, 32))
                    computed[first] = bytes_of(pages)
                request.commit(prompt)
            cache.flush(60)


def hand_over(stream):
    """From pages on the GPU to pages of this process, and back."""
    there, here = [CudaArray(layer) for layer in range(3)], [np.zeros(SHAPE, np.float16) for _ in range(3)]
    pages = list(range(16))

    def rank_of(name, tensors, **given):
        return cachalot.TransferRank(instance=name, model="test@1", geometry=GEOMETRY, layout="vllm_kbnhc", tensors=tensors, pages=16, **given)

    def take(giver, name, taker):
        offer = cachalot.random_offer_id()
        giver.offer(offer, pages, tokens=64, deadline_s=30)
        reference = {"instance": name, "id": offer, "tokens": 64, "tp_size": 1, "pp_size": 1, "addresses": [giver.addresses]}
        ask = taker.ask(reference, pages, deadline_s=30)
        status = taker.wait(ask)
        assert status["state"] == "done", status
        taker.release(ask)
        until = time.monotonic() + 30
        while offer not in (ended for ended, _ in giver.ended_offers()):  # its bounce pages are taken until then
            assert time.monotonic() < until, "the offer does not end"
            time.sleep(0.001)

    with contextlib.closing(rank_of("gpu", there, device=DEVICE, stream=stream)) as on_gpu, contextlib.closing(rank_of("cpu", here)) as in_memory:
        take(on_gpu, "gpu", in_memory)
        assert all(np.array_equal(a.view, b) for a, b in zip(there, here))
        wanted = [array.copy() for array in here]
        for array in there:
            array.view[:] = 0
        take(in_memory, "cpu", on_gpu)
        assert all(np.array_equal(a.view, b) for a, b in zip(there, wanted))
    try:
        rank_of("small", there, device=DEVICE, bounce_bytes=100)
        raise AssertionError("it was accepted")
    except cachalot.NoSpaceError as error:
        assert "bounce_bytes is 100" in str(error), error


def lost_gpu(path, stream):
    """What a GPU may still write to, of which a copy failed, is kept whatever becomes of the client.

    The last of all: this GPU has failed from then on."""
    def arrays():
        return [CudaArray(layer) for layer in range(3)]

    def refused(call):
        try:
            call()
        except cachalot.Error as error:
            assert error.code == "io", error
            return str(error)
        raise AssertionError("it did not fail")

    def client_of():
        return cachalot.Client(pool=path, model="test@1", geometry=GEOMETRY)

    with cachalot.EmbeddedKeeper(pool=path, block_bytes=GEOMETRY.block_bytes, capacity_blocks=64):
        client, dropped, released = client_of(), client_of(), client_of()
        fails, others, theirs, before = arrays(), arrays(), arrays(), arrays()
        here = [np.zeros(SHAPE, np.float16) for _ in range(3)]
        seen = {name: [weakref.ref(a) for a in all] for name, all in
                {"fails": fails, "others": others, "theirs": theirs, "before": before}.items()}
        seen["here"] = [weakref.ref(a) for a in here]
        cache = client.register_cache("vllm_kbnhc", fails, pages=16, device=DEVICE, stream=stream)
        client.register_cache("vllm_kbnhc", others, pages=16, device=DEVICE)
        client.register_cache("vllm_kbnhc", here, pages=16)
        earlier = released.register_cache("vllm_kbnhc", before, pages=16, device=DEVICE)
        theirs_id = dropped.register_cache("vllm_kbnhc", theirs, pages=16, device=DEVICE)
        hashes = client.hash_tokens(range(8))
        assert client.store(cache, hashes, [0, 1]).written == 2
        assert dropped.lookup(hashes) == 2
        released.unregister_cache(earlier)  # before anything failed
        # A layer load whose failure is not reported, because it is dropped.
        loading = dropped.begin_load(theirs_id, hashes, [2, 3])
        loading.start_layer(0)
        # The device's memory goes from under the copy: it faults.
        assert fake.cuMemFree_v2(ctypes.c_ulonglong(fails[0].__cuda_array_interface__["data"][0])) == 0
        refused(lambda: client.load_async(cache, hashes, [2, 3], stream=stream).result(60))
        loading = None
        message = refused(lambda: client.unregister_cache(cache))
        assert "keep the memory" in message, message
        refused(client.detach)
        released.detach()
        client = dropped = released = cache = theirs_id = earlier = fails = others = theirs = before = here = None
        gc.collect()
        alive = {name: [ref() is not None for ref in all] for name, all in seen.items()}
        assert alive == {"fails": [True] * 3, "others": [True] * 3, "theirs": [True] * 3,
                         "before": [False] * 3, "here": [False] * 3}, alive


main()
