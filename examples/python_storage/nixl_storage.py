"""Keeps Cachalot's values in files that NIXL's file backends write and read (PyPI: nixl, or nixl-cu12 with numpy).

    cachalot serve … --storage "plugin:PATH/libcachalot_python_storage.so?path=$PWD/examples/python_storage\
&module=nixl_storage&class=NixlStorage&folder=/ssd/kv"

One file a value; several keepers may share the folder. `backend` is POSIX (default), GDS or another plug-in of NIXL that moves bytes between DRAM and FILE.
path= also takes the folder of the package, after ":".
"""

import contextlib
import importlib
import itertools
import os
import threading
import time
import uuid
from pathlib import Path

import numpy as np

_HEAD_BYTES = 112
_LEFT_S = 3600.0  # a file that was begun so long ago is of a keeper that was killed
_names = itertools.count()


def _nixl():
    for name in ("nixl", "nixl_cu12", "nixl_cu13"):
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name + "._api")
    raise ModuleNotFoundError("none of nixl, nixl_cu12, nixl_cu13 is installed")


class NixlStorage:
    def __init__(self, folder, backend="POSIX"):
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for unfinished in self._folder.glob("new.*"):
            with contextlib.suppress(FileNotFoundError):  # its keeper has just finished it
                if time.time() - unfinished.stat().st_mtime > _LEFT_S:
                    unfinished.unlink()
        api = _nixl()
        self._name, self._lock = f"cachalot-{os.getpid()}-{next(_names)}", threading.Lock()
        self._agent = api.nixl_agent(self._name, api.nixl_agent_config(backends=[backend]))

    def close(self):
        self._agent = None

    def _path(self, key):
        return self._folder / key.hex()

    def _move(self, operation, buffers, files):
        """Moves all buffers to or from their files, each as a whole, in one transfer."""
        memory = [(buffer.ctypes.data, buffer.nbytes, 0, "") for buffer in buffers]
        places = [(0, buffer.nbytes, file, "") for buffer, file in zip(buffers, files)]
        with self._lock:
            registered = [self._agent.register_memory(memory, "DRAM"), self._agent.register_memory(places, "FILE")]
            try:
                transfer = self._agent.initialize_xfer(operation, registered[0].trim(), registered[1].trim(), self._name)
                state = self._agent.transfer(transfer)
                # Until it ends, whatever the deadline: it accesses the buffers. The plug-in's caller does not wait.
                while state == "PROC":
                    time.sleep(0)
                    state = self._agent.check_xfer_state(transfer)
                self._agent.release_xfer_handle(transfer)
            finally:
                for one in registered:
                    self._agent.deregister_memory(one)
        if state != "DONE":
            raise OSError(f"NIXL's transfer ended as {state}")

    def exists(self, keys, deadline_ns):
        return [self._path(key).exists() for key in keys]

    def get(self, keys, deadline_ns):
        answers = [None] * len(keys)
        with contextlib.ExitStack() as opened:
            files = []
            for i, key in enumerate(keys):
                with contextlib.suppress(FileNotFoundError):
                    files.append(opened.enter_context(open(self._path(key), "rb")).fileno())
                    answers[i] = np.empty(os.fstat(files[-1]).st_size, np.uint8)
            if files:
                self._move("READ", [answer for answer in answers if answer is not None], files)
        return answers

    def put(self, values, deadline_ns):
        """Under another name first: a value is there as a whole, or not at all."""
        if not values:
            return
        temporary = [self._folder / f"new.{uuid.uuid4().hex}" for _ in values]
        try:
            with contextlib.ExitStack() as opened:
                files = [opened.enter_context(open(path, "wb")).fileno() for path in temporary]
                self._move("WRITE", [np.frombuffer(value, np.uint8) for _, value in values], files)
            for (key, _), path in zip(values, temporary):
                path.rename(self._path(key))
        finally:
            for path in temporary:
                path.unlink(missing_ok=True)

    def remove(self, keys, deadline_ns):
        for key in keys:
            self._path(key).unlink(missing_ok=True)

    def list(self, deadline_ns):
        written = {}
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                written[path] = path.stat().st_mtime_ns
        for path in sorted(written, key=written.get):
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                yield file.read(_HEAD_BYTES) if len(path.name) == 64 else b""
