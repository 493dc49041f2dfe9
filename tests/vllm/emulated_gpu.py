"""vLLM's CPU workers, whose KV caches the connector takes for those of GPUs: an emulated driver adopts the tensors' memory.

The driver does the work of streams as late as it may: a copy that waits for nothing reads and writes at another time than one
that waits for the right event. CACHALOT_FAKE_LIBCUDA names its library, which must be loaded before cachalot.
"""

import ctypes
import os
import threading

FAKE = ctypes.CDLL(os.environ["CACHALOT_FAKE_LIBCUDA"])  # from now on, every dlopen of libcuda.so.1 gets it
FAKE.fake_add_copy_kernels()
FAKE.fake_set_devices(8)  # one for each rank
FAKE.fake_adopt.argtypes = (ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_int)
FAKE.fake_fail.argtypes = (ctypes.c_char_p, ctypes.c_int)
FAKE.fake_refused.restype = ctypes.c_ulonglong


def call(function, *arguments):
    result = getattr(FAKE, function)(*arguments)
    assert result == 0, f"{function}: {result}"


def enter(device):
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)


def make_stream():
    stream = ctypes.c_void_p()
    call("cuStreamCreate", ctypes.byref(stream), 1)
    return stream.value


def adopt(tensor, device):
    storage = tensor.untyped_storage()
    FAKE.fake_adopt(storage.data_ptr(), storage.nbytes(), device)


class Streams:
    """As cachalot.connectors.vllm.streams.Streams, over the driver itself: a PyTorch for CPUs has no streams."""

    def __init__(self, device):
        self._device, self._of_thread = device, threading.local()
        enter(device)
        self.engine = make_stream()  # the one that the engine computes on

    def mark(self):
        enter(self._device)
        event = ctypes.c_void_p()
        call("cuEventCreate", ctypes.byref(event), 2)
        call("cuEventRecord", event, ctypes.c_void_p(self.engine))
        return event

    def behind(self, mark):
        enter(self._device)
        if not hasattr(self._of_thread, "stream"):
            self._of_thread.stream = make_stream()
        call("cuStreamWaitEvent", ctypes.c_void_p(self._of_thread.stream), mark, 0)
        return self._of_thread.stream


def pretend(device):
    """In this process, the connector's tensors are on this device."""
    from cachalot.connectors.vllm import connector, layout

    def device_of(tensor):
        adopt(tensor, device)
        return device

    layout.device_of, connector.streams_of = device_of, Streams


try:
    from pipeline_worker import PipelineWorker
    from vllm.v1.worker.cpu_worker import CPUWorker
except ImportError:  # a test of the streams alone
    pass
else:
    class _Emulated:
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            pretend(self.local_rank)
            if failing := os.environ.get("CACHALOT_FAKE_FAIL"):
                function, result = failing.split("=")
                FAKE.fake_fail(function.encode(), int(result))

    class EmulatedGpuWorker(_Emulated, CPUWorker):
        pass

    class EmulatedGpuPipelineWorker(_Emulated, PipelineWorker):
        pass
