"""KV memory without a page table: the keys and values of a request lie in contiguous addresses, on a GPU or in
this machine's memory. Physical chunks are mapped as the request grows.

    with cachalot.vmm.open(layers=32, part_bytes=(2048, 2048), max_tokens=131072, device="cuda:0") as memory:
        request = memory.reserve(tokens=512)
        keys = torch.as_tensor(request.rows(layer=0, part=0, shape=(8, 128), typestr="<i2"), device="cuda:0")
        ...                           # keys[:512].view(torch.bfloat16): what attention reads
        request.prepare(514)          # the next step's memory, mapped while this step runs
        request.commit(513)           # mapped when this returns

It wraps include/cachalot/vmm.h of libcachalot.so one to one; that header states what calls mean and cost, and
docs/guide/contiguous-kv.md how an engine uses them. Needs neither the compiled part of this package nor PyTorch.
"""

import ctypes
import operator
import os
import threading
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, Sequence, Tuple

from cachalot.errors import CLASSES

__all__ = ["Range", "Rows", "Statistics", "Vmm", "library_path", "open"]

#: (to, from, bytes): copies on the device and returns when the copy has ended.
Copy = Callable[[int, int, int], None]

_U32, _U64 = ctypes.c_uint32, ctypes.c_uint64
_COPY = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, _U64, _U64, _U64)
_INTERNAL = 16


class _Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", _U32), ("layers", _U32), ("part_bytes", _U64 * 2), ("max_tokens", _U64), ("device", ctypes.c_char_p),
        ("layout", ctypes.c_char_p), ("chunk_bytes", _U64), ("limit_bytes", _U64), ("budget", ctypes.c_char_p),
        ("guaranteed_bytes", _U64), ("ready_bytes", _U64), ("idle_bytes", _U64), ("copy", _COPY), ("copy_context", ctypes.c_void_p)]


class Statistics(NamedTuple):
    """This process's memory on the device, and counts.

    ranges: reserved and not released
    physical_bytes: physical memory of this process on the device
    used_bytes: of those: mapped; each chunk counts once
    idle_bytes: of those: mapped by released ranges only
    ready_bytes: physical memory that is ready and not mapped
    stuck_bytes: memory that the device failed to unmap
    shared_bytes, shared_total_bytes: memory that sharing saves now; summed since the start
    copied_bytes: bytes of copied tails
    asked_bytes: bytes that other users of the budget ask for, out of what is above the guarantee
    prepared, waits, wait_ns: times that the background thread mapped; that a commit waited; total time of those waits
    creates, maps, accesses, unmaps: driver calls
    """

    ranges: int
    physical_bytes: int
    used_bytes: int
    idle_bytes: int
    ready_bytes: int
    stuck_bytes: int
    shared_bytes: int
    shared_total_bytes: int
    copied_bytes: int
    asked_bytes: int
    prepared: int
    waits: int
    wait_ns: int
    creates: int
    maps: int
    accesses: int
    unmaps: int


class _Statistics(ctypes.Structure):
    _fields_ = [("struct_size", _U32), ("ranges", _U32)] + [(word, _U64) for word in Statistics._fields[1:]]


_FUNCTIONS = {
    "open": [ctypes.POINTER(_Options), ctypes.POINTER(ctypes.c_void_p)],
    "close": [ctypes.c_void_p],
    "view": [ctypes.c_void_p, _U32, _U32, ctypes.POINTER(_U64), ctypes.POINTER(_U64)],
    "reserve": [ctypes.c_void_p, _U64, _U64, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(_U64)],
    "release": [ctypes.c_void_p],
    "commit": [ctypes.c_void_p, _U64],
    "prepare": [ctypes.c_void_p, _U64],
    "decommit": [ctypes.c_void_p, _U64],
    "alias": [ctypes.c_void_p, ctypes.c_void_p, _U64, ctypes.POINTER(_U64)],
    "get_statistics": [ctypes.c_void_p, ctypes.POINTER(_Statistics)],
    "notify": [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)],
}
_library = None


def library_path() -> str:
    """The path of libcachalot.so: CACHALOT_LIBRARY, next to this file, or as the loader finds it."""
    named = os.environ.get("CACHALOT_LIBRARY")
    if named:
        return named
    beside = Path(__file__).with_name("libcachalot.so")
    return str(beside) if beside.exists() else "libcachalot.so.0"


def _load() -> ctypes.CDLL:
    global _library
    if _library is None:
        try:
            library = ctypes.CDLL(library_path())
        except OSError as error:
            raise CLASSES["unsupported"](f"cachalot.vmm: {error}; CACHALOT_LIBRARY names the file") from error
        library.cachalot_last_message.restype = ctypes.c_char_p
        library.cachalot_code_name.restype = ctypes.c_char_p
        for name, arguments in _FUNCTIONS.items():
            function = getattr(library, f"cachalot_vmm_{name}")
            function.argtypes, function.restype = arguments, None if name == "release" else ctypes.c_int
        _library = library
    return _library


def _require(code: int) -> None:
    if code == 0:
        return
    library = _load()
    name = library.cachalot_code_name(code).decode()
    raise CLASSES.get(name, CLASSES["internal"])(library.cachalot_last_message().decode(errors="replace"))


def _count(name: str, value: int, most: int = 2**64 - 1) -> int:
    """Rejects numbers that ctypes would truncate, and fractions that int() would drop."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: {value!r}, expected an int") from None
    if not 0 <= number <= most:
        raise CLASSES["invalid_argument"](f"{name}: {number}, expected 0 to {most}")
    return number


def _counts(name: str, values: Sequence[int]) -> Tuple[int, ...]:
    try:
        items = tuple(values)
    except TypeError:
        raise TypeError(f"{name}: {values!r}, expected a sequence of ints") from None
    return tuple(_count(name, value) for value in items)


def _text(name: str, value: Any) -> bytes:
    """Rejects zero bytes: C would ignore the text after them."""
    try:
        text = os.fsencode(value) if isinstance(value, (str, bytes, os.PathLike)) else str(value).encode()
    except UnicodeEncodeError:  # a lone surrogate, as JSON can say it
        raise CLASSES["invalid_argument"](f"{name}: {value!r} is no text of Unicode characters") from None
    if b"\0" in text:
        raise CLASSES["invalid_argument"](f"{name}: {value!r} contains a zero byte")
    return text


def _interface(address: int, outer: Tuple[int, ...], outer_strides: Tuple[int, ...], stride: int, row_bytes: int, count: int,
               shape: Sequence[int], typestr: str) -> dict:
    """What NumPy needs to know of an array (*outer, count, *shape) whose rows of `row_bytes` are `stride` apart."""
    if not isinstance(typestr, str) or not typestr[2:].isdecimal():
        raise CLASSES["invalid_argument"](f'rows: numbers "{typestr}", expected a type as NumPy writes it')
    sizes = _counts("shape", shape)
    strides = [int(typestr[2:])]
    for size in reversed(sizes):
        strides.insert(0, strides[0] * size)
    if strides[0] != row_bytes:
        raise CLASSES["invalid_argument"](f"rows: {sizes} of {typestr} are {strides[0]} bytes, expected {row_bytes}")
    return {"data": (address, False), "shape": (*outer, count, *sizes), "typestr": typestr,
            "strides": (*outer_strides, stride, *strides[1:]), "version": 3}


class Rows:
    """A layer's keys or values of one range: `__array_interface__` (numpy.asarray()) in this machine's memory,
    `__cuda_array_interface__` (torch.as_tensor(), cupy.asarray()) on a GPU. Only committed memory may be accessed. Arrays
    made from it keep the Vmm open until close() is called."""

    def __init__(self, owner: "Range", interface: dict, is_cuda: bool):
        self.owner = owner
        if is_cuda:
            self.__cuda_array_interface__ = interface
        else:
            self.__array_interface__ = interface


class Range:
    """The addresses of one request, from Vmm.reserve(). Use it from one thread at a time."""

    def __init__(self, vmm: "Vmm", pointer: int, base: int, max_tokens: int):
        self._vmm, self._pointer = vmm, pointer
        #: Address of token 0 of the view with offset 0; constant.
        self.base = base
        self.max_tokens = max_tokens

    def commit(self, tokens: int) -> None:
        """Returns when memory for `tokens` is mapped. Raises NoSpaceError: let the request wait, or preempt another."""
        self._call("commit", _count("tokens", tokens))

    def prepare(self, tokens: int) -> None:
        """Maps memory for `tokens` in the background; the next commit reports errors."""
        self._call("prepare", _count("tokens", tokens))

    def decommit(self, tokens: int) -> None:
        """Unmaps the memory after `tokens`. No kernel may use it any more."""
        self._call("decommit", _count("tokens", tokens))

    def alias(self, source: "Range", tokens: int) -> int:
        """Puts the first `tokens` of `source` at the start of this range, which must have no memory. Returns their number:
        fewer than `tokens` if the device cannot copy the tokens after the last full chunk."""
        shared = _U64()
        if not isinstance(source, Range):
            raise TypeError(f"alias: {source!r}, expected a range")
        if source._vmm is not self._vmm:  # whose memory may be gone by now
            raise CLASSES["invalid_argument"]("alias: ranges of two vmms, expected one")
        if source._pointer is None:
            raise CLASSES["invalid_argument"]("alias: the source was released")
        self._vmm._copy_error = None
        try:
            self._call("alias", source._pointer, _count("tokens", tokens), ctypes.byref(shared))
        except CLASSES["internal"]:
            if self._vmm._copy_error is not None:
                raise self._vmm._copy_error from None
            raise
        return shared.value

    def release(self) -> None:
        """Ends the request. No kernel may use its memory any more. Calling it again does nothing."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None and self._vmm._pointer is not None:
            self._vmm._call("release", pointer)

    def rows(self, layer: int, part: int, shape: Sequence[int], typestr: str, tokens: Optional[int] = None) -> Rows:
        """Keys (part 0) or values (part 1) of a layer as an array (tokens, *shape) over the addresses, mapped or not; default
        of `tokens`: max_tokens. `typestr` is NumPy's, "<f2"; for bfloat16 use "<i2" and view it. On a GPU PyTorch needs the
        first token to be mapped."""
        offset, stride = self._vmm.view(layer, part)
        return self._rows(offset, (), (), stride, self._vmm.part_bytes[part], shape, typestr, tokens)

    def all_rows(self, shape: Sequence[int], typestr: str, tokens: Optional[int] = None) -> Rows:
        """As rows(), for all layers and parts: an array (layers, parts, tokens, *shape). Keys and values must have one size."""
        vmm = self._vmm
        layers, parts = vmm.layers, 2 if vmm.part_bytes[1] else 1
        if parts == 2 and vmm.part_bytes[0] != vmm.part_bytes[1]:
            raise CLASSES["invalid_argument"](f"all_rows: parts of {vmm.part_bytes} bytes, expected one size")
        offset, stride = vmm.view(0, 0)
        a_layer = vmm.view(1, 0)[0] - offset if layers > 1 else stride
        a_part = vmm.view(0, 1)[0] - offset if parts > 1 else stride
        for layer in range(layers):
            for part in range(parts):
                if vmm.view(layer, part) != (offset + layer * a_layer + part * a_part, stride):
                    raise CLASSES["unsupported"](f"all_rows: part {part} of layer {layer} is not at a constant stride")
        return self._rows(offset, (layers, parts), (a_layer, a_part), stride, vmm.part_bytes[0], shape, typestr, tokens)

    def _rows(self, offset: int, outer: Tuple[int, ...], outer_strides: Tuple[int, ...], stride: int, row_bytes: int,
              shape: Sequence[int], typestr: str, tokens: Optional[int]) -> Rows:
        if self._pointer is None:
            raise CLASSES["invalid_argument"]("rows: the range was released")
        if self._vmm.device == "model":
            raise CLASSES["unsupported"]("rows: the device is model, which has no memory")
        count = self.max_tokens if tokens is None else _count("tokens", tokens, self.max_tokens)
        interface = _interface(self.base + offset, outer, outer_strides, stride, row_bytes, count, shape, typestr)
        return Rows(self, interface, self._vmm.device.startswith("cuda"))

    def _call(self, name: str, *arguments: Any) -> None:
        if self._pointer is None:
            raise CLASSES["invalid_argument"](f"{name}: the range was released")
        self._vmm._call(name, self._pointer, *arguments)


class Vmm:
    """The ranges of a device. Threads may share it. Closed at the end of a `with`, or with its last reference."""

    def __init__(self, options: _Options, copy: Optional[Copy], device: str):
        self._pointer: Optional[int] = None
        self._calls, self._quiet, self._process = 0, threading.Condition(), os.getpid()
        self._copy_error: Optional[BaseException] = None
        if copy is not None:
            options.copy = _COPY(lambda _, to, source, count: self._copied(copy, to, source, count))
        self._options = options  # keeps the callback alive: the library has its pointer
        self.device = device
        self.part_bytes: Tuple[int, int] = (options.part_bytes[0], options.part_bytes[1])
        self.layers: int = options.layers
        self.max_tokens: int = options.max_tokens
        pointer = ctypes.c_void_p()
        _require(_load().cachalot_vmm_open(ctypes.byref(options), ctypes.byref(pointer)))
        self._pointer = pointer.value

    def view(self, layer: int, part: int) -> Tuple[int, int]:
        """(offset, stride) in bytes: token t of this layer and part is at base + offset + t * stride, in every range."""
        offset, stride = _U64(), _U64()
        self._call("view", self._pointer, _count("layer", layer, 2**32 - 1), _count("part", part, 2**32 - 1),
                   ctypes.byref(offset), ctypes.byref(stride))
        return offset.value, stride.value

    def reserve(self, tokens: int = 0, max_tokens: Optional[int] = None) -> Range:
        """Reserves addresses for a request of at most `max_tokens`, with memory for `tokens`. Ranges that are not released stay
        until close(). Raises NoSpaceError: not enough chunks at the moment."""
        most = self.max_tokens if max_tokens is None else _count("max_tokens", max_tokens)
        pointer, base = ctypes.c_void_p(), _U64()
        self._call("reserve", self._pointer, _count("tokens", tokens), most, ctypes.byref(pointer), ctypes.byref(base))
        return Range(self, pointer.value or 0, base.value, most)

    def statistics(self) -> Statistics:
        """This process's memory on the device, and counts of calls."""
        out = _Statistics(struct_size=ctypes.sizeof(_Statistics))
        self._call("get_statistics", self._pointer, ctypes.byref(out))
        return Statistics(*(getattr(out, word) for word in Statistics._fields))

    def notify(self) -> int:
        """A file descriptor that becomes readable when another process of the budget asks for memory. The Vmm closes it."""
        fd = ctypes.c_int()
        self._call("notify", self._pointer, ctypes.byref(fd))
        return fd.value

    def close(self) -> None:
        """Waits for calls in flight, then frees everything, including ranges: do not use arrays over them again. Calling it again
        does nothing."""
        if os.getpid() != self._process:  # the threads belong to the parent
            return
        with self._quiet:
            pointer, self._pointer = self._pointer, None
            while self._calls:
                self._quiet.wait()
        if pointer is not None:
            _require(_load().cachalot_vmm_close(pointer))

    def __enter__(self) -> "Vmm":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_pointer", None) is not None:
            self.close()

    def _call(self, name: str, *arguments: Any) -> None:
        if os.getpid() != self._process:
            raise CLASSES["unsupported"](f"{name}: this process is a fork of the one that opened it")
        with self._quiet:
            if self._pointer is None:
                raise CLASSES["invalid_argument"](f"{name}: it was closed")
            self._calls += 1
        try:
            code = getattr(_load(), f"cachalot_vmm_{name}")(*arguments)
            if code is not None:
                _require(code)
        finally:
            with self._quiet:
                self._calls -= 1
                if not self._calls:
                    self._quiet.notify_all()

    def _copied(self, copy: Copy, to: int, source: int, count: int) -> int:
        try:
            copy(to, source, count)
        except BaseException as error:  # must not propagate through the library; alias() raises it again
            self._copy_error = error
            return _INTERNAL
        return 0


def open(  # as the C function is called, and as files are opened
    *,
    layers: int,
    part_bytes: Sequence[int],
    max_tokens: int,
    device: str = "memfd",
    layout: str = "folded",
    chunk_bytes: int = 0,
    limit_bytes: int = 0,
    budget: Optional[str] = None,
    guaranteed_bytes: int = 0,
    ready_bytes: int = 0,
    idle_bytes: int = 0,
    copy: Optional[Copy] = None,
) -> Vmm:
    """Opens the KV memory of a device.

    layers: at most 65,536
    part_bytes: bytes that a layer keeps of a token: (keys, values), or (latent,)
    max_tokens: tokens of the longest request; every range has addresses for them
    device: "memfd": this machine's memory; "cuda:N"; "model": no memory, for counting
    layout: "folded": all layers of a token side by side; "per_layer"; "folded_parts"
    chunk_bytes: unit of mapping; 0: 2 MiB
    limit_bytes: of physical memory; 0: no limit. With a budget: the limit of all its users together
    budget: a file, or shm:NAME, through which processes share limit_bytes
    guaranteed_bytes: with a budget: bytes that this process gets back when it asks
    ready_bytes: physical memory that the background thread keeps ready
    idle_bytes: bytes that released ranges may keep mapped; 0: no limit; less than a chunk: nothing
    copy: (to, from, bytes), copies the tail of an alias and returns when the copy has ended; None: memcpy on memfd,
        other devices share no tail

    Raises UnsupportedError: no such device here, no libcachalot.so; InvalidArgumentError: sizes that do not match each other, or
    options that differ from the budget file's.
    """
    parts = _counts("part_bytes", part_bytes)
    if len(parts) not in (1, 2):
        raise CLASSES["invalid_argument"](f"part_bytes: {len(parts)} numbers, expected 1 or 2")
    options = _Options(
        struct_size=ctypes.sizeof(_Options), layers=_count("layers", layers, 2**32 - 1), part_bytes=(_U64 * 2)(*parts),
        max_tokens=_count("max_tokens", max_tokens), device=_text("device", device), layout=_text("layout", layout),
        chunk_bytes=_count("chunk_bytes", chunk_bytes), limit_bytes=_count("limit_bytes", limit_bytes),
        budget=None if budget is None else _text("budget", budget), guaranteed_bytes=_count("guaranteed_bytes", guaranteed_bytes),
        ready_bytes=_count("ready_bytes", ready_bytes), idle_bytes=_count("idle_bytes", idle_bytes))
    return Vmm(options, copy, str(device))  # also accepts a torch.device
