"""Python classes that keep values, and some that do it wrong. What the plug-in expects of one: docs/extend/storage.md."""

import ctypes
import errno
import time
from pathlib import Path

_values = {}  # by folder: it is the same storage after it was opened again


class Dict:
    def __init__(self, folder):
        self.values = _values.setdefault(folder, {})

    def exists(self, keys, deadline_ns):
        return [key in self.values for key in keys]

    def get(self, keys, deadline_ns):
        return (self.values.get(key) for key in keys)

    def put(self, values, deadline_ns):
        self.values.update(values)

    def remove(self, keys, deadline_ns):
        for key in keys:
            self.values.pop(key, None)

    def list(self, deadline_ns):
        return list(self.values.values())


class InPieces(Dict):
    """Answers with several buffers a value."""

    def get(self, keys, deadline_ns):
        for value in super().get(keys, deadline_ns):
            yield value and [value[:5], bytearray(value[5:200]), value[200:]]


class Faulty(Dict):
    """Does what the file `fault` in its folder says."""

    def __init__(self, folder):
        super().__init__(folder)
        self.fault = Path(folder) / "fault"
        kind, *keys = self._read()
        keys = [bytes.fromhex(key) for key in keys]
        if kind == "bit_flipped":
            self.values[keys[0]] = self.values[keys[0]][:-1] + bytes([self.values[keys[0]][-1] ^ 1])
        elif kind == "truncated":
            self.values[keys[0]] = self.values[keys[0]][:-100]
        elif kind == "swapped":
            self.values[keys[0]] = self.values[keys[1]]

    def _read(self):
        try:
            return self.fault.read_text().split() or [""]  # empty: not written yet
        except FileNotFoundError:
            return [""]

    def _call(self, is_put=False):
        hung = False
        while (kind := self._read()[0]) in ("paused", "stuck"):
            if kind == "paused":
                time.sleep(0.01)
            else:
                ctypes.PyDLL(None).usleep(200_000)  # holds the interpreter's lock
            if not hung:
                self.fault.with_name("hung").touch()
            hung = True
        if hung:
            self.fault.with_name("over").touch()
        if kind == "raises":
            raise ConnectionError("the server is down")
        if kind == "full" and is_put:
            raise OSError(errno.ENOSPC, "no room")

    def exists(self, keys, deadline_ns):
        self._call()
        return super().exists(keys, deadline_ns)

    def get(self, keys, deadline_ns):
        self._call()
        return super().get(keys, deadline_ns)

    def put(self, values, deadline_ns):
        self._call(is_put=True)
        super().put([(key, bytes(value)) for key, value in values], deadline_ns)

    def list(self, deadline_ns):
        self._call()
        return super().list(deadline_ns)


class Wrong(Dict):
    """Breaks the rules of the protocol, as `how` says."""

    def __init__(self, folder, how):
        super().__init__(folder)
        self.how = how

    def exists(self, keys, deadline_ns):
        return None if self.how == "none" else super().exists(keys, deadline_ns)

    def get(self, keys, deadline_ns):
        if self.how == "few":
            return []
        if self.how == "many":
            return [None] * (len(keys) + 1)
        if self.how == "late":
            raise TimeoutError("not now")
        if self.how == "one":
            return [ValueError("only this one") if i == 0 else None for i in range(len(keys))]
        return ["text"] * len(keys)

    def put(self, values, deadline_ns):
        if self.how == "one":
            return [PermissionError("not this one"), *[None] * (len(values) - 1)]
        return [True] * len(values)

    def list(self, deadline_ns):
        return ["text"] if self.how == "text" else [b"short"]


class Printing(Dict):
    def __init__(self, folder):
        print("text of a class", flush=True)
        super().__init__(folder)


class NoList:
    exists = get = put = remove = print


class Refusing(Dict):
    def __init__(self, mode="none"):
        raise {"os": OSError(errno.EIO, "its disk"), "value": ValueError("mode is wrong")}[mode]
