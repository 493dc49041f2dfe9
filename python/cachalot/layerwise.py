"""KV of which only some layers are in device memory; the others are in host memory and come back one layer ahead (LayerKV).

    with cachalot.layerwise.open(layers=32, part_bytes=(2048, 2048), max_tokens=131072, resident=8) as kv:
        request = kv.add()
        keys = numpy.asarray(request.rows(layer=0, part=0, shape=(8, 128), typestr="<i2"))
        ...                                      # made once; the addresses do not change
        with kv.step({request: new_tokens}):
            for layer in range(32):
                ...                              # projections: no KV
                with kv.layer(layer):            # waits until the layer is in device memory
                    ...                          # write the new rows, attention over all rows
                ...                              # the rest of the layer, while copies go on

It wraps include/cachalot/layerwise.h of libcachalot.so; that header states what calls mean, docs/guide/layerwise.md how an
engine uses them. Use a LayerwiseKv from one thread at a time.
"""

import contextlib
import ctypes
import os
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence, Tuple

from cachalot import vmm
from cachalot.errors import CLASSES

__all__ = ["LayerwiseKv", "Request", "Statistics", "fewest_resident", "open"]

_U32, _U64, _POINTER = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p


class _Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", _U32), ("layers", _U32), ("part_bytes", _U64 * 2), ("max_tokens", _U64), ("resident", _U64),
        ("device", ctypes.c_char_p), ("layout", ctypes.c_char_p), ("chunk_bytes", _U64), ("limit_bytes", _U64), ("host_bytes", _U64),
        ("copy", vmm._COPY), ("copy_context", _POINTER)]


class Statistics(NamedTuple):
    """Memory now, and sums since open().

    requests: added and not removed
    resident: layers that stay
    device_bytes, peak_device_bytes: KV in device memory: mapped now; the most so far
    all_bytes: what all layers of all requests would map
    host_bytes: host memory, also what is kept for the next request
    offloads, offloaded_bytes, offload_ns: layers to the host, bytes and time of the copies
    loads, loaded_bytes, load_ns: the same to the device
    map_ns: time of mapping and unmapping
    waits, wait_ns: times that a layer was waited for, and for how long
    step_ns, step_wait_ns: the last step, from its begin to the end of its last layer; of that, waits
    """

    requests: int
    resident: int
    device_bytes: int
    peak_device_bytes: int
    all_bytes: int
    host_bytes: int
    offloads: int
    offloaded_bytes: int
    offload_ns: int
    loads: int
    loaded_bytes: int
    load_ns: int
    map_ns: int
    waits: int
    wait_ns: int
    step_ns: int
    step_wait_ns: int


class _Statistics(ctypes.Structure):
    _fields_ = [("struct_size", _U32), ("requests", _U32)] + [(word, _U64) for word in Statistics._fields[1:]]


_FUNCTIONS = {
    "open": [ctypes.POINTER(_Options), ctypes.POINTER(_POINTER)],
    "close": [_POINTER],
    "view": [_POINTER, _U32, ctypes.POINTER(_U64), ctypes.POINTER(_U64)],
    "add": [_POINTER, _U64, ctypes.POINTER(_POINTER), ctypes.POINTER(_U64)],
    "remove": [_POINTER, _POINTER],
    "begin": [_POINTER, ctypes.POINTER(_POINTER), ctypes.POINTER(_U64), _U64],
    "acquire": [_POINTER, _U32],
    "release": [_POINTER, _U32],
    "cancel": [_POINTER],
    "set_resident": [_POINTER, _U64],
    "fewest_resident": [_U64, _U64, _U64, ctypes.c_double, ctypes.POINTER(_U64)],
    "get_statistics": [_POINTER, ctypes.POINTER(_Statistics)],
}
_functions: dict = {}


def _function(name: str) -> Any:
    if not _functions:
        library = vmm._load()
        found = {each: getattr(library, f"cachalot_layerwise_{each}") for each in _FUNCTIONS}
        for each, function in found.items():
            function.argtypes, function.restype = _FUNCTIONS[each], ctypes.c_int
        _functions.update(found)
    return _functions[name]


class Request:
    """The addresses of one request, from LayerwiseKv.add()."""

    def __init__(self, kv: "LayerwiseKv", pointer: int, bases: Tuple[int, ...], max_tokens: int):
        self._kv, self._pointer = kv, pointer
        #: Address of token 0 of the view with offset 0, of each layer; constant.
        self.bases = bases
        self.max_tokens = max_tokens

    def rows(self, layer: int, part: int, shape: Sequence[int], typestr: str) -> vmm.Rows:
        """Keys (part 0) or values (part 1) of a layer as an array (max_tokens, *shape) over its addresses. Access rows only while
        the layer is acquired, and only those of the request's tokens. `typestr` is NumPy's, "<f4"."""
        kv = self._kv
        if kv._pointer is None or self._pointer is None:
            raise CLASSES["invalid_argument"]("rows: the request was removed")
        if kv.device == "model":
            raise CLASSES["unsupported"]("rows: the device is model, which has no memory")
        if vmm._count("layer", layer) >= kv.layers:
            raise CLASSES["invalid_argument"](f"rows: layer {layer}, expected one of {kv.layers}")
        offset, stride = kv.view(part)
        interface = vmm._interface(self.bases[layer] + offset, (), (), stride, kv.part_bytes[part], self.max_tokens, shape, typestr)
        return vmm.Rows(self, interface, kv.device.startswith("cuda"))

    def remove(self) -> None:
        """Ends the request, between steps. Its arrays must not be used again. Calling it again does nothing."""
        pointer = self._pointer
        if pointer is not None and self._kv._pointer is not None:
            self._kv._call("remove", pointer)
        self._pointer = None


class LayerwiseKv:
    """The KV of a device, of which some layers are in host memory. Closed at the end of a `with`, or with its last reference."""

    def __init__(self, options: _Options, copy: Optional[vmm.Copy], device: str):
        self._pointer: Optional[int] = None
        self._process = os.getpid()
        self._copy_error: Optional[BaseException] = None
        if copy is not None:
            options.copy = vmm._COPY(lambda _, to, source, count: self._copied(copy, to, source, count))
        self._options = options  # keeps the callback alive: the library has its pointer
        self.device = device
        self.layers: int = options.layers
        self.part_bytes: Tuple[int, int] = (options.part_bytes[0], options.part_bytes[1])
        self.max_tokens: int = options.max_tokens
        pointer = _POINTER()
        vmm._require(_function("open")(ctypes.byref(options), ctypes.byref(pointer)))
        self._pointer = pointer.value

    def view(self, part: int) -> Tuple[int, int]:
        """(offset, stride) in bytes: token t of this part is at request.bases[layer] + offset + t * stride."""
        offset, stride = _U64(), _U64()
        self._call("view", vmm._count("part", part, 2**32 - 1), ctypes.byref(offset), ctypes.byref(stride))
        return offset.value, stride.value

    def add(self, max_tokens: Optional[int] = None) -> Request:
        """Reserves addresses for a request of at most `max_tokens`."""
        most = self.max_tokens if max_tokens is None else vmm._count("max_tokens", max_tokens)
        pointer, bases = _POINTER(), (_U64 * self.layers)()
        self._call("add", most, ctypes.byref(pointer), bases)
        return Request(self, pointer.value or 0, tuple(bases), most)

    def begin(self, tokens: Mapping[Request, int]) -> None:
        """Begins a step in which each of these requests computes so many new tokens. Raises NoSpaceError: not enough host memory;
        nothing has changed."""
        count = len(tokens)
        for request in tokens:
            if not isinstance(request, Request):
                raise TypeError(f"begin: {request!r}, expected a request")
            if request._kv is not self:
                raise CLASSES["invalid_argument"]("begin: a request of another LayerwiseKv")
            if request._pointer is None:
                raise CLASSES["invalid_argument"]("begin: the request was removed")
        self._call("begin", (_POINTER * count)(*[request._pointer for request in tokens]),
                   (_U64 * count)(*[vmm._count("tokens", each) for each in tokens.values()]), count)

    def acquire(self, layer: int) -> None:
        """Returns when the layer, the next one of the step, is in device memory. Raises NoSpaceError: call it again, or cancel()."""
        self._call("acquire", vmm._count("layer", layer, 2**32 - 1))

    def release(self, layer: int) -> None:
        """The layer's new rows are written and no kernel uses it any more. Never waits."""
        self._call("release", vmm._count("layer", layer, 2**32 - 1))

    def cancel(self) -> None:
        """Ends the step as if it had not begun."""
        self._call("cancel")

    @contextlib.contextmanager
    def step(self, tokens: Mapping[Request, int]) -> Iterator[None]:
        """begin(), and cancel() if an exception leaves the block."""
        self.begin(tokens)
        try:
            yield
        except BaseException:
            with contextlib.suppress(CLASSES["invalid_argument"]):  # the last layer was released
                self.cancel()
            raise

    @contextlib.contextmanager
    def layer(self, layer: int) -> Iterator[None]:
        """acquire(), then release() unless an exception leaves the block."""
        self.acquire(layer)
        yield
        self.release(layer)

    def set_resident(self, resident: int) -> None:
        """Between steps: so many layers stay from now on. Raises NoSpaceError: not enough host memory."""
        self._call("set_resident", vmm._count("resident", resident))

    def statistics(self) -> Statistics:
        """Memory, copies and waits."""
        out = _Statistics(struct_size=ctypes.sizeof(_Statistics))
        self._call("get_statistics", ctypes.byref(out))
        return Statistics(*(getattr(out, word) for word in Statistics._fields))

    def close(self) -> None:
        """Frees everything, including requests: do not use arrays over them again. Calling it again does nothing."""
        if os.getpid() != self._process:  # the thread belongs to the parent
            return
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            vmm._require(_function("close")(pointer))

    def __enter__(self) -> "LayerwiseKv":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_pointer", None) is not None:
            self.close()

    def _call(self, name: str, *arguments: Any) -> None:
        if os.getpid() != self._process:
            raise CLASSES["unsupported"](f"{name}: this process is a fork of the one that opened it")
        if self._pointer is None:
            raise CLASSES["invalid_argument"](f"{name}: it was closed")
        try:
            vmm._require(_function(name)(self._pointer, *arguments))
        except CLASSES["internal"]:
            if self._copy_error is not None:
                raise self._copy_error from None
            raise

    def _copied(self, copy: vmm.Copy, to: int, source: int, count: int) -> int:
        try:
            copy(to, source, count)
        except BaseException as error:  # must not propagate through the library; the next call raises it again
            self._copy_error = error
            return vmm._INTERNAL
        return 0


def open(  # noqa: A001
    *,
    layers: int,
    part_bytes: Sequence[int],
    max_tokens: int,
    resident: int = 0,
    device: str = "memfd",
    layout: str = "per_layer",
    chunk_bytes: int = 0,
    limit_bytes: int = 0,
    host_bytes: int = 0,
    copy: Optional[vmm.Copy] = None,
) -> LayerwiseKv:
    """Opens the KV memory of a device and of the host.

    layers: at most 65,536
    part_bytes: bytes that a layer keeps of a token: (keys, values), or (latent,)
    max_tokens: tokens of the longest request
    resident: layers that stay in device memory; layers - 2 or more: all
    device: "memfd": this machine's memory; "cuda:N"; "model": no memory, for counting
    layout: "per_layer": keys apart from values; "folded": side by side
    chunk_bytes: unit of mapping; 0: 2 MiB
    limit_bytes: of device memory; 0: no limit
    host_bytes: of host memory; 0: no limit
    copy: (to, from, bytes), copies between device and host, both ways, and returns when the copy has ended; called by a thread.
        None: memcpy on memfd

    Raises UnsupportedError: no such device here, no libcachalot.so; InvalidArgumentError: sizes that do not match each other.
    """
    parts = vmm._counts("part_bytes", part_bytes)
    if len(parts) not in (1, 2):
        raise CLASSES["invalid_argument"](f"part_bytes: {len(parts)} numbers, expected 1 or 2")
    options = _Options(
        struct_size=ctypes.sizeof(_Options), layers=vmm._count("layers", layers, 2**32 - 1), part_bytes=(_U64 * 2)(*parts),
        max_tokens=vmm._count("max_tokens", max_tokens), resident=vmm._count("resident", resident), device=vmm._text("device", device),
        layout=vmm._text("layout", layout), chunk_bytes=vmm._count("chunk_bytes", chunk_bytes),
        limit_bytes=vmm._count("limit_bytes", limit_bytes), host_bytes=vmm._count("host_bytes", host_bytes))
    return LayerwiseKv(options, copy, str(device))


def fewest_resident(layers: int, layer_bytes: int, compute_ns: int, bytes_per_second: float) -> int:
    """The fewest resident layers with which copies of `layer_bytes` for each other layer take no longer than `compute_ns`. Of a
    prefill: time without waits, and the bandwidth of offloads; of a decode step, that of loads."""
    out = _U64()
    vmm._require(_function("fewest_resident")(vmm._count("layers", layers), vmm._count("layer_bytes", layer_bytes),
                                              vmm._count("compute_ns", compute_ns), float(bytes_per_second), ctypes.byref(out)))
    return out.value
