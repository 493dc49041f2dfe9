"""What the checks of torch_gpu_test.py stand on: what was expected, the library and the driver, memory in known places."""

import ctypes
import json

import torch

MIB = 1 << 20
failures, notes = [], []


def expect(condition, words):
    """Goes on where it is false: what comes next may say more."""
    if not condition:
        failures.append(words)
    return condition


def note(words):
    notes.append(words)


def start():
    """Cachalot in the place of PyTorch's allocator."""
    from cachalot import torch_allocator

    torch_allocator.use()
    return torch_allocator


def library():
    from cachalot import torch_allocator

    plugin = ctypes.CDLL(torch_allocator.library_path())
    plugin.cachalot_torch_malloc.restype = ctypes.c_void_p
    plugin.cachalot_torch_malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    plugin.cachalot_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    plugin.cachalot_torch_record_stream.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return plugin


def driver():
    return ctypes.CDLL("libcuda.so.1")


class Plain:
    """Memory of cuMemAlloc, as everybody has it, for torch.as_tensor()."""

    def __init__(self, *shape):
        address, count = ctypes.c_ulonglong(), 2
        for size in shape:
            count *= size
        code = driver().cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(count))
        if code != 0:
            raise MemoryError(f"cuMemAlloc: {code}")
        self.__cuda_array_interface__ = {"data": (address.value, False), "shape": shape, "strides": None, "typestr": "<i2", "version": 3}


def handles_of(tensor):
    """Pieces of physical memory that a tensor lies in, asked of the driver for each 2 MiB."""
    cuda, seen = driver(), set()
    end = tensor.data_ptr() + tensor.numel() * tensor.element_size()
    for address in range(tensor.data_ptr(), end, 2 * MIB):
        handle = ctypes.c_ulonglong()
        code = cuda.cuMemRetainAllocationHandle(ctypes.byref(handle), ctypes.c_void_p(address))
        if code != 0:
            note(f"cuMemRetainAllocationHandle: {code}")
            return 0
        seen.add(handle.value)
        cuda.cuMemRelease(handle)
    return len(seen)


def fragmented(allocator, count=24, size=10 * MIB):
    """Frees every other one of many tensors, so that a larger one has to be stitched; what stays is returned."""
    held = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(count)]
    torch.cuda.synchronize()
    before = allocator.stats()
    del held[::2]
    return held, before


def report():
    print(json.dumps({"failures": failures, "notes": notes}), flush=True)
