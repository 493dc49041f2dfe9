"""Lets engines that speak NIXL only exchange paged KV with Cachalot (PyPI: nixl, or nixl-cu12 with numpy).

The bridge registers the tensors of a cachalot.TransferRank with a NIXL agent. Both then read and write the same pages, so
nothing is copied between them:

    bridge = NixlBridge("bridge", tensors)          # the tensors that the TransferRank has
    peer = bridge.connect(metadata)                 # get_agent_metadata() of the other agent
    bridge.read(peer, remote, local)                # KV of the other agent; then rank.offer(pages)
    bridge.write(peer, remote, local, b"request")   # KV that rank.ask() has brought; the agent gets the notification

`remote` and `local` are lists of views (numpy arrays, RemoteTensor[...]) with the same elements in the same order. Where
they lie in memory may differ: pages, heads of another tensor parallelism, the order of axes.
"""

import contextlib
import importlib
import math
import time

import numpy as np


def nixl_api():
    for name in ("nixl", "nixl_cu12", "nixl_cu13"):
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name + "._api")
    raise ModuleNotFoundError("none of nixl, nixl_cu12, nixl_cu13 is installed")


def open_agent(name):
    api = nixl_api()
    return api.nixl_agent(name, api.nixl_agent_config(backends=["UCX"]))


class RemoteTensor:
    """A tensor in another process. Indexing gives views that have addresses, and no elements that could be read."""

    def __init__(self, address, shape, strides, dtype):
        self._address = address
        self._shadow = np.lib.stride_tricks.as_strided(np.empty(1, dtype), shape, strides)
        self._start = self._shadow.__array_interface__["data"][0]

    def __getitem__(self, index):
        view = self._shadow[index]
        return RemoteView(view, self._address - self._start)

    @staticmethod
    def describe(tensor):
        """What the other process needs: JSON."""
        return {"address": tensor.__array_interface__["data"][0], "shape": tensor.shape, "strides": tensor.strides,
                "dtype": tensor.dtype.str}


class RemoteView:
    def __init__(self, view, distance):
        self.view, self.distance = view, distance

    def transpose(self, *axes):
        return RemoteView(self.view.transpose(*axes), self.distance)


def runs(views):
    """(address, bytes) of the contiguous runs of views, in the order of their elements."""
    found = []
    for one in views:
        view, distance = (one.view, one.distance) if isinstance(one, RemoteView) else (one, 0)
        length, axes = view.itemsize, view.ndim
        while axes > 0 and (view.shape[axes - 1] == 1 or view.strides[axes - 1] == length):
            length *= view.shape[axes - 1]
            axes -= 1
        base = view.__array_interface__["data"][0] + distance
        for index in np.ndindex(view.shape[:axes]):
            found.append((base + sum(i * stride for i, stride in zip(index, view.strides)), length))
    return found


def paired(remote, local):
    """Both lists of runs, cut so that they have as many entries and entry i of both is equally long, as NIXL wants it."""
    remote, local = runs(remote), runs(local)
    if sum(length for _, length in remote) != sum(length for _, length in local):
        raise ValueError("the views of both sides have not as many bytes")
    piece = math.gcd(*(length for _, length in remote + local))
    return ([(address + at, piece, 0) for address, length in side for at in range(0, length, piece)] for side in (remote, local))


class NixlBridge:
    def __init__(self, name, tensors):
        self.agent = open_agent(name)
        self._registered = self.agent.register_memory(
            [(tensor.__array_interface__["data"][0], tensor.nbytes, 0, "") for tensor in tensors], "DRAM")

    def close(self):
        self.agent.deregister_memory(self._registered)

    def connect(self, metadata):
        name = self.agent.add_remote_agent(metadata)
        return name.decode() if isinstance(name, bytes) else name

    def read(self, peer, remote, local, note=b"", timeout_s=30):
        """Into `local`. Returns when the bytes are there. `note` is sent to the peer then: its pages are free."""
        self._move("READ", peer, remote, local, note, timeout_s)

    def write(self, peer, remote, local, note=b"", timeout_s=30):
        """Out of `local`. The peer gets `note` after the bytes."""
        self._move("WRITE", peer, remote, local, note, timeout_s)

    def _move(self, operation, peer, remote, local, note, timeout_s):
        theirs, ours = (self.agent.get_xfer_descs(side, "DRAM") for side in paired(remote, local))
        handle = self.agent.initialize_xfer(operation, ours, theirs, peer, note)
        try:
            until = time.monotonic() + timeout_s
            state = self.agent.transfer(handle)
            while state == "PROC":
                if time.monotonic() > until:
                    raise TimeoutError(f"NIXL's {operation} has not ended in {timeout_s} s")
                time.sleep(0)
                state = self.agent.check_xfer_state(handle)
            if state != "DONE":
                raise OSError(f"NIXL's {operation} ended as {state}")
        finally:
            self.agent.release_xfer_handle(handle)
