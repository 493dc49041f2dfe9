"""Runs a script with the real PyTorch, and a GPU that is pretended: tensors lie in this machine's memory, streams and graphs do
nothing, the driver is the emulated one. A rehearsal of scripts for machines with a GPU, so that the first one does not find a name
that is misspelt; what they find is another question.

usage: pretend_gpu.py SCRIPT [ARGUMENT...]    with FAKE_LIBCUDA in the environment
"""

import contextlib
import ctypes
import os
import runpy
import sys
import types

import numpy
import torch

FACTORIES = ("empty", "ones", "zeros", "full", "randn", "rand", "arange", "tensor", "randint", "empty_like", "full_like", "randperm")


def here(options):
    if str(options.get("device", "")).startswith("cuda"):
        options["device"] = "cpu"
    options.pop("pin_memory", None)
    return options


def wrap(function):
    return lambda *arguments, **options: function(*arguments, **here(options))


class Shown:
    def __init__(self, interface):
        self.__array_interface__ = interface


real_as_tensor, real_to = torch.as_tensor, torch.Tensor.to


def as_tensor(value, **options):
    interface = getattr(value, "__cuda_array_interface__", None) or getattr(value, "__array_interface__", None)
    if interface is None:
        return real_as_tensor(value, **here(options))
    shown = Shown(interface)
    shown.owner = value
    return torch.from_numpy(numpy.asarray(shown))


class Function:
    def __init__(self, real, name):
        self.real, self.name = real, name

    def __call__(self, *arguments):
        try:
            function = getattr(self.real, self.name)
        except AttributeError:
            return 0
        return function(*arguments)


class Driver:
    """The emulated one; what it does not have does nothing."""

    def __init__(self, real):
        self.real, self.functions = real, {}

    def __getattr__(self, name):
        return self.functions.setdefault(name, Function(self.real, name))


class Stream:
    cuda_stream = 0x5000

    def __init__(self, *_):
        pass

    def wait_stream(self, other):
        assert isinstance(other, Stream)

    synchronize = query = record_event = lambda self: None


class Event:
    """Never over: what it stands behind is done at once, but a check may want to see that it is not."""

    record = synchronize = lambda self, *_: None
    query = lambda self: False  # noqa: E731


class Graph:
    replay = reset = lambda self: None


def pretend():
    fake = ctypes.CDLL(os.environ["FAKE_LIBCUDA"])  # from now on, every dlopen of libcuda.so.1 gets it
    context = ctypes.c_void_p()
    assert fake.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and fake.cuCtxSetCurrent(context) == 0
    real_cdll = ctypes.CDLL
    ctypes.CDLL = lambda name, *more, **options: Driver(fake) if name == "libcuda.so.1" else real_cdll(name, *more, **options)
    for name in FACTORIES:
        setattr(torch, name, wrap(getattr(torch, name)))
    torch.as_tensor = as_tensor
    torch.Tensor.to = lambda self, *arguments, **options: real_to(
        self, *["cpu" if isinstance(a, str) and a.startswith("cuda") else a for a in arguments], **here(options))
    torch.Tensor.record_stream = lambda self, stream: None
    cuda = torch.cuda
    cuda.is_available, cuda.is_initialized, cuda.current_device = lambda: True, lambda: False, lambda: 0
    cuda.synchronize = cuda.empty_cache = cuda._sleep = lambda *_: None
    cuda.set_per_process_memory_fraction = lambda fraction, device=None: None
    cuda.get_device_name = lambda *_: "no GPU, but a pretended one"
    cuda.get_device_properties = lambda *_: types.SimpleNamespace(multi_processor_count=4, total_memory=100 << 30)
    cuda.Stream = cuda.ExternalStream = Stream
    cuda.current_stream = Stream
    cuda.Event = lambda **_: Event()
    cuda.stream = lambda stream: contextlib.nullcontext(stream)
    cuda.CUDAGraph, cuda.graph = Graph, lambda graph, **_: contextlib.nullcontext(graph)
    cuda.make_graphed_callables = lambda module, arguments: module
    cuda.MemPool = lambda allocator, **_: object()
    cuda.use_mem_pool = lambda pool: contextlib.nullcontext(pool)
    torch.nn.Linear = wrap(torch.nn.Linear)
    try:
        from cachalot import vmm
    except ImportError:
        return
    real_open = vmm.open
    vmm.open = lambda **options: real_open(**{**options, "device": "memfd"})


if __name__ == "__main__":
    pretend()
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
