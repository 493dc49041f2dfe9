"""PyTorch's device memory from Cachalot's stitching allocator.

    import cachalot.torch_allocator
    cachalot.torch_allocator.use()        # before anything else touches CUDA

or, with PyTorch's own allocator on top, for a part of a program:

    pool = cachalot.torch_allocator.mempool()
    with torch.cuda.use_mem_pool(pool):
        ...

When to use which, the settings CACHALOT_TORCH_*, and the limits: docs/guide/pytorch.md.
Importing this module raises ImportError without PyTorch with CUDA, or without a GPU.
"""

import ctypes
import os
import warnings
from pathlib import Path

try:
    import torch
except ImportError as error:
    raise ImportError("cachalot.torch_allocator: torch is not installed, expected PyTorch 2.3 or later with CUDA") from error
if torch.version.cuda is None:
    raise ImportError(f"cachalot.torch_allocator: torch {torch.__version__} is built without CUDA, expected one with")
if not torch.cuda.is_available():
    raise ImportError(f"cachalot.torch_allocator: torch {torch.__version__} finds no GPU, expected one")

__all__ = ["empty_cache", "library_path", "mempool", "stats", "use"]

#: PyTorch's setter of each callback, and our function. All are needed: without the first, memory that another stream still uses
#: would be reused; without the last three (other functions before 2.3), memory of captured graphs.
_CALLBACKS = {
    "set_record_stream_fn": "cachalot_torch_record_stream",
    "set_reset_fn": "cachalot_torch_empty_cache",
    "set_memory_fraction_fn": "cachalot_torch_set_memory_fraction",
    "set_begin_allocate_to_pool": "cachalot_torch_begin_pool",
    "set_end_allocate_to_pool_fn": "cachalot_torch_end_pool",
    "set_release_pool": "cachalot_torch_release_pool",
}
_WORDS = (
    "allocations",
    "frees",
    "live_bytes",
    "peak_live_bytes",
    "reserved_bytes",
    "peak_reserved_bytes",
    "stitches",
    "stitched_range_bytes",
    "driver_allocations",
    "refused",
    "device_bytes",
    "limit_bytes",
)


class _Statistics(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("is_open", ctypes.c_uint32)] + [(word, ctypes.c_uint64) for word in _WORDS]


_library = None
_allocators = {}


def library_path():
    """The path of libcachalot_torch.so: CACHALOT_TORCH_LIBRARY, next to this file, or as the loader finds it."""
    named = os.environ.get("CACHALOT_TORCH_LIBRARY")
    if named:
        return named
    beside = Path(__file__).with_name("libcachalot_torch.so")
    return str(beside) if beside.exists() else "libcachalot_torch.so"


def _load():
    global _library
    if _library is None:
        try:
            library = ctypes.CDLL(library_path())
        except OSError as error:
            raise RuntimeError(f"cachalot.torch_allocator: {error}; CACHALOT_TORCH_LIBRARY names the file") from error
        library.cachalot_torch_last_message.restype = ctypes.c_char_p
        library.cachalot_torch_get_statistics.argtypes = [ctypes.c_int, ctypes.POINTER(_Statistics)]
        _library = library
    return _library


def _require(code):
    if code != 0:
        raise RuntimeError(f"cachalot.torch_allocator: {_library.cachalot_torch_last_message().decode()}")


def _allocator(free):
    """PyTorch's allocator object for our functions, one per free function."""
    if free not in _allocators:
        _require(_load().cachalot_torch_check())
        made = torch.cuda.memory.CUDAPluggableAllocator(library_path(), "cachalot_torch_malloc", free)
        # Never freed: PyTorch keeps raw pointers to it and frees memory through them at interpreter exit, possibly
        # after this module was unloaded (vllm pull request 46050).
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made.allocator()))
        _allocators[free] = made
    return _allocators[free]


def use():
    """Makes Cachalot the allocator of all CUDA tensors of this process.

    Call it before CUDA is initialised (PyTorch requires that). Calling it again does nothing.

    Raises RuntimeError: CUDA is initialised already, no driver, an invalid CACHALOT_TORCH_ setting, or a PyTorch
    version that does not notify such allocators of other streams or graphs.
    """
    if "cachalot_torch_free" in _allocators:
        return
    if torch.cuda.is_initialized():
        raise RuntimeError("cachalot.torch_allocator: CUDA is initialised already, expected use() before any tensor is on a GPU")
    allocator = _allocator("cachalot_torch_free")
    try:
        inner = allocator.allocator()
        missing = [setter for setter in _CALLBACKS if not hasattr(inner, setter)]
        if missing:
            raise RuntimeError(f"cachalot.torch_allocator: torch {torch.__version__} has no {missing[0]}, expected PyTorch 2.3 or later")
        for setter, function in _CALLBACKS.items():
            getattr(inner, setter)(ctypes.cast(getattr(_load(), function), ctypes.c_void_p).value)
        torch.cuda.memory.change_current_allocator(allocator)
    except BaseException:
        del _allocators["cachalot_torch_free"]
        raise


def mempool(**options):
    """A torch.cuda.MemPool whose segments come from Cachalot; `options` are MemPool's own (use_on_oom, no_split).

    PyTorch's caching allocator stays on top of it. Needs PyTorch 2.5 or later. Raises RuntimeError: no driver, an invalid
    CACHALOT_TORCH_ setting.
    """
    settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") + os.environ.get("PYTORCH_ALLOC_CONF", "")
    if "expandable_segments:true" in settings.lower().replace(" ", ""):
        warnings.warn("expandable_segments is on: PyTorch may not ask a pool's allocator then (pytorch issue 147851)", stacklevel=2)
    return torch.cuda.MemPool(_allocator("cachalot_torch_free_segment").allocator(), **options)


def stats(device=None):
    """Statistics of a device (an index; default: the current one) as a dict of bytes and counts; zeros before its
    first use. `reserved_bytes`: taken from the device; `live_bytes`: used by tensors."""
    if device is None:
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    out = _Statistics(struct_size=ctypes.sizeof(_Statistics))
    _require(_load().cachalot_torch_get_statistics(device, ctypes.byref(out)))
    return {word: getattr(out, word) for word in _WORDS}


def empty_cache():
    """Returns all unused memory to the devices. After use(), torch.cuda.empty_cache() does the same."""
    _load().cachalot_torch_empty_cache()
