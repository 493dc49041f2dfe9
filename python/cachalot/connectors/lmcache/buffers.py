"""The memory of LMCache's objects, as a client of a pool takes it.

Objects lie in LMCache's L1 buffer. It is registered once, so bytes go between it and the pool without a copy between. An
object elsewhere, as one that LMCache has compressed, goes through a staging buffer of the calling thread: one copy more.
"""

import ctypes
import threading
from typing import Any, Optional, Tuple

import numpy as np

from cachalot import Client
from cachalot.errors import UnsupportedError


def bytes_of(memory_object: Any) -> np.ndarray:
    """The logical bytes of a MemoryObj: a view. Raises UnsupportedError: a GPU has them."""
    if not getattr(getattr(memory_object, "raw_data", None), "is_cpu", True):
        raise UnsupportedError("an object in the memory of a GPU; expected LMCache's L1 cache in host memory")
    return np.frombuffer(memory_object.byte_array, np.uint8)


class Buffers:
    """Objects of one client. Threads: any."""

    def __init__(self, client: Client, l1: Optional[Tuple[int, int]]) -> None:
        """l1: address and bytes of the L1 buffer."""
        self._client = client
        self._begin, self._end = (l1[0], l1[0] + l1[1]) if l1 is not None else (0, 0)
        if l1 is not None:
            client.register_buffer((ctypes.c_ubyte * l1[1]).from_address(l1[0]))
        self._of_thread = threading.local()

    def _is_registered(self, data: np.ndarray) -> bool:
        address = data.__array_interface__["data"][0]
        return self._begin <= address and address + data.nbytes <= self._end

    def _stage(self, size: int) -> np.ndarray:
        held = getattr(self._of_thread, "buffer", None)
        if held is None or held.nbytes < size:
            if held is not None:
                self._client.unregister_buffer(held)
                del self._of_thread.buffer
            held = np.empty(size, np.uint8)
            self._client.register_buffer(held)
            self._of_thread.buffer = held
        return held[:size]

    def put(self, name: bytes, memory_object: Any) -> int:
        """Returns the bytes stored; 0: the pool has the object already."""
        data = bytes_of(memory_object)
        if not self._is_registered(data):
            stage = self._stage(data.nbytes)
            np.copyto(stage, data)
            data = stage
        return self._client.put(name, data)

    def get(self, name: bytes, memory_object: Any) -> int:
        """Returns the bytes read. Raises NotFoundError, and InvalidArgumentError: the object has another size."""
        data = bytes_of(memory_object)
        if self._is_registered(data):
            return self._client.get(name, data)
        stage = self._stage(data.nbytes)
        size = self._client.get(name, stage)
        np.copyto(data, stage)
        return size
