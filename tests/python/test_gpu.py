"""What can be said of a GPU's caches without one. That blocks go there and back: tests/gpu/python_test.py."""

import numpy as np
import pytest

import cachalot
from conftest import attach


class Dlpack:
    """An array that says it lies somewhere else."""

    def __init__(self, array, device):
        self._array, self._device = array, device

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._device


class CudaArray:
    """What torch and CuPy show of a GPU's memory."""

    def __init__(self, array, **changes):
        self.array = array
        self.__cuda_array_interface__ = {
            "data": (array.ctypes.data, False),
            "shape": array.shape,
            "typestr": array.dtype.str,
            "strides": None,
            "version": 3,
            **changes,
        }


def zeros(dtype=np.float16):
    return [np.zeros((2, 16, 4, 2, 32), dtype) for _ in range(3)]


@pytest.fixture
def client(pool):
    with attach(pool) as client:
        yield client


def test_what_is_no_memory_of_the_gpu_is_named(client):
    def register(tensors, device=0):
        client.register_cache("vllm_kbnhc", tensors, pages=16, device=device)

    def refused(match, tensors, device=0):
        with pytest.raises(cachalot.InvalidArgumentError, match=match):
            register(tensors, device)

    refused(r"tensor 0: lies on .*type 1, number 0\), expected CUDA device 0", zeros())
    refused(r"tensor 0: .*type 2, number 1\), expected CUDA device 0", [Dlpack(a, (2, 1)) for a in zeros()])
    with pytest.raises(TypeError, match=r"tensor 0: b'abc' \(bytes\), expected memory of a GPU: DLPack"):
        register([b"abc"])
    refused("tensor 0: has numbers of 4 bytes", [CudaArray(a) for a in zeros(np.float32)])
    refused("tensor 0: is read-only", [CudaArray(a, data=(a.ctypes.data, True)) for a in zeros()])
    swapped = [CudaArray(a, strides=a.swapaxes(0, 1).strides) for a in zeros()]
    refused("tensor 0: is not contiguous", swapped)
    refused("tensor 0: has numbers of big-endian", [CudaArray(a, typestr=">f2") for a in zeros()])
    refused("tensor 0: its numbers are 'f'", [CudaArray(a, typestr="f") for a in zeros()])
    refused("tensor 1: its bytes: -1, expected 0 to", [(64, 64), (64, -1)])
    with pytest.raises(TypeError, match="tensor 0: its address: 'x'"):
        register([("x", 1)])
    refused("device: -1, expected 0 to 2147483647", [(64, 64)], device=-1)
    with pytest.raises(TypeError, match="device: 'cuda'"):
        register([(64, 64)], device="cuda")


HUGE = [
    # what is said of an array, and of what the error speaks
    (dict(shape=(2**62, 8)), "tensor 0: an array .* more bytes than there are addresses"),
    (dict(shape=(2**32, 2**32)), "more bytes than there are addresses"),
    (dict(shape=(0, 2**62, 2**62)), "more bytes than there are addresses"),
    (dict(shape=(2**63,)), "tensor 0: its shape: 9223372036854775808 is beyond 64 bits"),
    (dict(shape=(4, -1)), "tensor 0: its shape has a size of -1"),
    (dict(shape=(16,), strides=(2**63 - 1,)), "not contiguous"),
    (dict(shape=(2, 16), strides=(-(2**63), 2)), "not contiguous"),
    (dict(shape=(16,), strides=(-2,)), "not contiguous"),
    (dict(shape=(16,), strides=(2**63,)), "tensor 0: its strides: 9223372036854775808 is beyond 64 bits"),
    (dict(shape=(16,), strides=(2, 2)), "tensor 0: has 2 strides, expected as many as the 1 dimensions"),
    (dict(shape=(16,), data=(2**64 - 2, False)), "tensor 0: 32 bytes at 0xfffffffffffffffe end after"),
    (dict(data=(2**64, False)), "tensor 0: its address: 18446744073709551616"),
    *((dict(typestr=text), "tensor 0: its numbers are '")
      for text in ("<f0", "<f-2", "<f2x", "<f 2", "<f99999999999999999999", "<f", "")),
]


@pytest.mark.parametrize("changes, match", HUGE, ids=lambda value: str(value))
def test_sizes_beyond_all_memory_are_named(client, changes, match):
    with pytest.raises(cachalot.InvalidArgumentError, match=match):
        client.register_cache("vllm_kbnhc", [CudaArray(a, **changes) for a in zeros()], pages=16, device=0)


def test_what_is_no_description_of_memory_is_named(client):
    def refused(kind, match, *tensors):
        with pytest.raises(kind, match=match):
            client.register_cache("vllm_kbnhc", list(tensors), pages=16, device=0)

    class NoDict:
        __cuda_array_interface__ = 7

    for missing in ("data", "shape", "typestr"):
        array = CudaArray(zeros()[0])
        del array.__cuda_array_interface__[missing]
        refused(cachalot.InvalidArgumentError, f"tensor 0: its __cuda_array_interface__ has no '{missing}'", array)
    array = CudaArray(zeros()[0])
    del array.__cuda_array_interface__["strides"]  # may be left out
    with pytest.raises((cachalot.UnsupportedError, cachalot.InvalidArgumentError), match="cuda: |CUDA"):
        client.register_cache("vllm_kbnhc", [array] * 3, pages=16, device=0)
    refused(TypeError, "tensor 0: its __cuda_array_interface__: 7", NoDict())
    refused(TypeError, "tensor 0: its data: None", CudaArray(zeros()[0], data=None))
    refused(TypeError, "tensor 0: its shape: 16", CudaArray(zeros()[0], shape=16))
    refused(TypeError, "tensor 0: its shape: 1.5", CudaArray(zeros()[0], shape=(1.5,)))
    refused(TypeError, "tensor 0: its strides: 'x'", CudaArray(zeros()[0], strides=("x",) * 5))
    refused(TypeError, "tensor 0: its typestr: 2", CudaArray(zeros()[0], typestr=2))
    refused(cachalot.InvalidArgumentError, "end after the last address", (2**64 - 1, 16))
    array = zeros()[0]
    refused(cachalot.InvalidArgumentError, r"type 1099511627776, number 0\)", Dlpack(array, (2**40, 0)))
    refused(cachalot.InvalidArgumentError, r"its DLPack device: 1180591620717411303424 is", Dlpack(array, (2**70, 0)))
    refused(TypeError, "tensor 0: its DLPack device: 7", Dlpack(array, 7))
    refused(TypeError, "tensor 0: its DLPack device: 'x'", Dlpack(array, ("x", 0)))


def test_strides_beyond_all_memory_are_gaps(client):
    far = np.lib.stride_tricks.as_strided(np.zeros(8, np.float16), (2, 4), (2**62, 2))
    for tensor in (far, Dlpack(far, (1, 0)), Dlpack(np.flip(np.zeros((2, 16, 4, 2, 32), np.float16)), (1, 0))):
        with pytest.raises(cachalot.InvalidArgumentError, match="tensor 0: is not contiguous"):
            client.register_cache("vllm_kbnhc", [tensor] * 3, pages=16)


def test_a_library_that_finds_no_gpu_says_so(client):
    arrays = zeros()
    for tensors in (
        [Dlpack(a, (2, 0)) for a in arrays],
        [CudaArray(a) for a in arrays],
        [CudaArray(a, strides=a.strides) for a in arrays],
        [(a.ctypes.data, a.nbytes) for a in arrays],
    ):
        try:
            client.register_cache("vllm_kbnhc", tensors, pages=16, device=0)
        except cachalot.UnsupportedError as error:
            assert "cuda: " in str(error)
        except cachalot.InvalidArgumentError as error:  # there is a GPU: this is not its memory
            assert "nothing that CUDA knows" in str(error)
        else:
            pytest.fail("memory of the host was taken for a GPU's")


def test_a_stream_belongs_to_a_gpus_cache(engine):
    class Stream:
        cuda_stream = 0x5000

    hashes = engine.client.hash_tokens(range(4))
    for call in (
        lambda stream: engine.client.load(engine.cache, hashes, [0], stream=stream),
        lambda stream: engine.client.load_tokens(engine.cache, hashes, [0], [None], stream=stream),
        lambda stream: engine.client.store(engine.cache, hashes, [0], stream=stream),
        lambda stream: engine.client.load_async(engine.cache, hashes, [0], stream=stream).result(),
        lambda stream: engine.client.store_async(engine.cache, hashes, [0], stream=stream).result(),
        lambda stream: engine.client.begin_load(engine.cache, hashes, [0], stream=stream),
        lambda stream: engine.client.begin_store(engine.cache, hashes, [0], stream=stream),
        lambda stream: engine.client.register_cache("vllm_kbnhc", engine.tensors, pages=16, stream=stream),
    ):
        for stream in (0x5000, Stream()):
            with pytest.raises(cachalot.InvalidArgumentError, match="stream"):
                call(stream)
        with pytest.raises(TypeError, match="stream: 'x'"):
            call("x")
        with pytest.raises(cachalot.InvalidArgumentError, match="stream: -1"):
            call(-1)


def test_layers_of_other_caches_are_not_started(engine):
    hashes = engine.client.hash_tokens(range(4))
    with engine.client.begin_store(engine.cache, hashes, [0]) as store:
        for layer in range(3):
            store.start_layer(layer)
            store.store_layer(layer)
        assert store.finish().written == 1
    with engine.client.begin_load(engine.cache, hashes, [1]) as load:
        load.start_layer(0)
        load.start_layer(0)
        assert [load.load_layer(layer) for layer in range(3)] == [1, 1, 1]
        with pytest.raises(cachalot.InvalidArgumentError, match="layer: 3"):
            load.start_layer(3)
    assert engine.block(0) == engine.block(1)


def test_a_pinned_load_is_for_clients_that_said_so(pool, engine):
    hashes = engine.client.hash_tokens(range(4))
    engine.client.store(engine.cache, hashes, [0])
    with pytest.raises(cachalot.UnsupportedError, match="pin"):
        engine.client.begin_load(engine.cache, hashes, [1], pinned=True)
    with attach(pool, pinned_reads=True) as client:
        tensors = zeros()
        cache = client.register_cache("vllm_kbnhc", tensors, pages=16)
        with client.begin_load(cache, hashes, [1], pinned=True) as load:
            assert [load.load_layer(layer) for layer in range(3)] == [1, 1, 1]
        assert np.array_equal(tensors[2][:, 1], engine.tensors[2][:, 0])
