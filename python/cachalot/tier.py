"""An engine's KV cache in tiers: pages in device memory (L1), host memory (L2), and a pool with its storage (L3).

    with cachalot.tier.open("vllm_bknhc", tensors, pages=4096, model="Qwen3-32B@9216db57", geometry=geometry,
                            pool="/dev/shm/kv", host_ratio=2.0) as tiers:
        with tiers.request(prompt) as request:       # finds the prefix, and begins to fetch what L3 has of the rest
            request.wait_ready()
            start = request.start()                   # start.pages; start.cached_tokens need no computation
            for layer in range(geometry.layers):
                request.wait_layer(layer)
                ...                                   # compute from start.cached_tokens on
            request.commit(prompt)                    # others find it from now on
            pages = request.grow(len(prompt) + 100)   # decode
            ...

It wraps include/cachalot/tier_c.h of libcachalot.so; cachalot/tier.h states what calls mean, docs/guide/tiers.md what the
options do (options() lists them). The tensors are memory of this process, or of a GPU: then copies run on streams of the
library, loads after the work that is on `stream` at start(), the others after what is on it at commit().
"""

import ctypes
import json
import os
import re
import threading
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

import cachalot
from cachalot import vmm
from cachalot._cachalot import _CacheMemory  # type: ignore[attr-defined]
from cachalot.errors import CLASSES

__all__ = ["Option", "Request", "Start", "Statistics", "TieredCache", "open", "options", "read_options"]

_U32, _U64, _SIZE, _POINTER, _TEXT = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p
_NO_TIMEOUT = 2**64 - 1
_DTYPES = {"f32": 0, "f16": 1, "bf16": 2, "f8": 3, "i8": 4}
_MOST_OPTION_BYTES, _MOST_NAME_PARTS = 1 << 20, 16  # of a file


class _Option(ctypes.Structure):
    _fields_ = [("name", _TEXT), ("value", _TEXT)]


class _Geometry(ctypes.Structure):
    _fields_ = [(name, _U32) for name in (
        "struct_size", "layers", "attention", "kv_heads", "head_dim", "kv_lora_rank", "qk_rope_head_dim", "dtype", "block_tokens",
        "tp_rank", "tp_size", "tp_replicas", "pp_rank", "pp_size")]


class _ClientOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", _U32), ("host", _U32), ("pool", _TEXT), ("model", _TEXT), ("salt", _TEXT), ("block_order", _TEXT),
        ("geometry", _Geometry), ("hash", _U32), ("copy_threads", _U32), ("workers", _U32), ("grant_blocks", _U32),
        ("python_hash_seed", _TEXT), ("keeper_timeout_ns", _U64), ("recovery_ns", _U64), ("record_requests", _TEXT),
        ("record_loads", _U32), ("reserved", _U32), ("pool_bypasses_caches", _U32), ("pinned_reads", _U32),
        ("allow_foreign_pool", _U32), ("reserved2", _U32), ("share_tp", _U32), ("counts_prompts", _U32),
        ("copy_cpus", _TEXT)]


class _Buffer(ctypes.Structure):
    _fields_ = [("data", _POINTER), ("bytes", _U64)]


class _Cache(ctypes.Structure):
    _fields_ = [
        ("struct_size", _U32), ("pages", _U32), ("layout", _TEXT), ("tensors", ctypes.POINTER(_Buffer)), ("tensor_count", _SIZE),
        ("page_tokens", _U32), ("reserved", _U32), ("page_stride_bytes", _U64), ("memory", _U32), ("device", _U32),
        ("stream", _POINTER), ("strides", _POINTER)]


class _StartResult(ctypes.Structure):
    _fields_ = [(name, _U64) for name in ("cached_tokens", "device_tokens", "host_tokens", "shared_tokens")]


class Start(NamedTuple):
    """What start() has found, in tokens, and the pages of the whole prompt.

    cached_tokens: need no computation; whole blocks, and fewer than the prompt's
    device_tokens, host_tokens: of these, were in L1; in L2
    shared_tokens: came from L3 for this request
    """

    cached_tokens: int
    device_tokens: int
    host_tokens: int
    shared_tokens: int
    pages: List[int]


class Statistics(NamedTuple):
    """Counts since the start; *_blocks of a tier: now. cachalot/tier.h explains each."""

    requests: int
    prompt_tokens: int
    device_tokens: int
    host_tokens: int
    shared_tokens: int
    device_blocks: int
    free_device_blocks: int
    host_blocks: int
    free_host_blocks: int
    evicted_device_blocks: int
    evicted_host_blocks: int
    demoted_blocks: int
    loaded_bytes: int
    backed_up_bytes: int
    fetched_bytes: int
    unused_fetched_bytes: int
    written_bytes: int
    unwritten_blocks: int
    fetches: int
    skipped_fetches: int
    recomputed_tokens: int
    ready_wait_ns: int
    layer_wait_ns: int


class _Statistics(ctypes.Structure):
    _fields_ = [("struct_size", _U32), ("reserved", _U32)] + [(word, _U64) for word in Statistics._fields]


class Option(NamedTuple):
    """A row of the table of options."""

    name: str
    values: str
    default: str
    meaning: str


_TOKENS = ctypes.POINTER(_U32)
_FUNCTIONS = {
    "make": [ctypes.POINTER(_Cache), ctypes.POINTER(_ClientOptions), ctypes.POINTER(_Option), _SIZE, _TEXT, ctypes.POINTER(_POINTER)],
    "destroy": [_POINTER],
    "attach_pool": [_POINTER, _TEXT],
    "detach_pool": [_POINTER],
    "set": [_POINTER, ctypes.POINTER(_Option), _SIZE],
    "open": [_POINTER, _TOKENS, _SIZE, _TEXT, _SIZE, ctypes.c_int32, _U64, ctypes.POINTER(_U64)],
    "wait_ready": [_POINTER, _U64, _U64, ctypes.POINTER(ctypes.c_int)],
    "start": [_POINTER, _U64, ctypes.POINTER(_StartResult), _TOKENS, _SIZE, ctypes.POINTER(_SIZE)],
    "wait_layer": [_POINTER, _U64, _U32],
    "grow": [_POINTER, _U64, _U64, _TOKENS, _SIZE, ctypes.POINTER(_SIZE)],
    "commit": [_POINTER, _U64, _TOKENS, _SIZE],
    "close": [_POINTER, _U64],
    "flush": [_POINTER, _U64],
    "clear": [_POINTER],
    "get_statistics": [_POINTER, ctypes.POINTER(_Statistics)],
}
_library = None
_kept: List[Any] = []  # until the process ends


def _load() -> ctypes.CDLL:
    global _library
    if _library is None:
        library = vmm._load()
        for name, arguments in _FUNCTIONS.items():
            function = getattr(library, f"cachalot_tier_{name}")
            function.argtypes, function.restype = arguments, None if name == "destroy" else ctypes.c_int
        for word in ("name", "values", "default", "meaning"):
            function = getattr(library, f"cachalot_tier_option_{word}")
            function.argtypes, function.restype = [_SIZE], _TEXT
        _library = library
    return _library


def _call(name: str, *arguments: Any) -> None:
    vmm._require(getattr(_load(), f"cachalot_tier_{name}")(*arguments))


def options() -> List[Option]:
    """The table of options: what open() and set() accept by name."""
    library, table = _load(), []
    while library.cachalot_tier_option_name(len(table)) is not None:
        row = [getattr(library, f"cachalot_tier_option_{word}")(len(table)).decode() for word in Option._fields]
        table.append(Option(*row))
    return table


def read_options(source: Union[str, os.PathLike]) -> Dict[str, Any]:
    """Options of a text or a file: a JSON object, "@FILE.json" or "@FILE.toml", as SGLang's extra config. In a TOML file
    they are in the table [tiers], or at the top."""
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"options: {source!r}, expected a text or a path")
    text = os.fspath(source)
    if not text.startswith("@"):
        found = _parse(text, json.loads, "the text")
    else:
        path = Path(text[1:])
        found = _parse(_read(path), _toml if path.suffix == ".toml" else json.loads, str(path))
    return found


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_OPTION_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: no path at all
        raise CLASSES["bad_input"](f"options: {str(path)!a}: {getattr(error, 'strerror', error)}, expected a file of options") from error
    if len(content) > _MOST_OPTION_BYTES:
        raise CLASSES["bad_input"](f"options: {path}: longer than 1 MiB, expected a file of options")
    return content


def _toml(text: str) -> Dict[str, Any]:
    import tomllib  # Python 3.11
    # The parser's time and memory grow with the square of a dotted name's parts.
    bare = re.sub(r'''"""[\s\S]*?"""|\'{3}[\s\S]*?\'{3}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|#[^\n]*''', "x", text)
    if re.search(r"(?<![\w-])(?:[\w-]+[ \t]*\.[ \t]*){%d}" % _MOST_NAME_PARTS, bare):
        raise ValueError(f"a name of more than {_MOST_NAME_PARTS} parts")
    found = tomllib.loads(text)
    return found.get("tiers", found)


def _parse(given: Union[str, bytes], parse: Any, name: str) -> Dict[str, Any]:
    try:
        found = parse(given.decode() if isinstance(given, bytes) else given)
        if not isinstance(found, dict):
            raise ValueError(f"{found!r:.100}, expected an object of names and values")
        for word, value in found.items():
            if isinstance(value, (dict, list)):
                raise ValueError(f"{word!a}: expected a text, a number, true or false")
            f"{word}{value}".encode()  # JSON has lone surrogates, which are no text
    except (ValueError, RecursionError) as error:  # RecursionError: brackets within brackets
        raise CLASSES["bad_input"](f"options: {name}: {error}") from error
    return found


def _table(given: Dict[str, Any]):
    rows = (_Option * len(given))()
    for row, (name, value) in zip(rows, given.items()):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        row.name, row.value = vmm._text("option", name), vmm._text(name, text)
    return rows


def _tokens(tokens: Sequence[int]):
    try:
        count = len(tokens)
    except TypeError:
        raise TypeError(f"tokens: {tokens!r}, expected a sequence of ints") from None
    interface = getattr(tokens, "__array_interface__", None)
    if interface is not None and interface["typestr"] == "<u4" and len(interface["shape"]) == 1 and not interface.get("strides") and interface["data"][0]:
        return ctypes.cast(interface["data"][0], _TOKENS), count
    return (_U32 * count)(*(vmm._count("token", token, 2**32 - 1) for token in tokens)), count


def _nanoseconds(timeout: Optional[float]) -> int:
    if timeout is None:
        return _NO_TIMEOUT
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout: {timeout!r}, expected seconds, or None")
    if not timeout >= 0:
        raise CLASSES["invalid_argument"](f"timeout: {timeout}, expected at least 0 seconds, or None")
    return int(min(timeout * 1e9, _NO_TIMEOUT))


def _client_options(pool: str, model: str, salt: str, geometry: "cachalot.KvGeometry", share_tp: int) -> _ClientOptions:
    if not isinstance(geometry, cachalot.KvGeometry):
        raise TypeError(f"geometry: {geometry!r}, expected a cachalot.KvGeometry")
    latent = geometry.attention == "latent"
    if not isinstance(model, str):
        raise TypeError(f"model: {model!r}, expected a str")
    if not model:
        raise CLASSES["invalid_argument"]("model: is empty; name the weights and their revision, so that no other model's KV is found")
    if not isinstance(salt, str):
        raise TypeError(f"salt: {salt!r}, expected a str")
    shape = _Geometry(struct_size=ctypes.sizeof(_Geometry), attention=int(latent), dtype=_DTYPES[geometry.dtype])
    for name in ("layers", "kv_heads", "head_dim", "kv_lora_rank", "qk_rope_head_dim", "block_tokens", "tp_rank", "tp_size",
                 "tp_replicas", "pp_rank", "pp_size"):
        setattr(shape, name, getattr(geometry, name))
    return _ClientOptions(struct_size=ctypes.sizeof(_ClientOptions), pool=vmm._text("pool", pool), model=vmm._text("model", model),
                          salt=vmm._text("salt", salt), geometry=shape, share_tp=vmm._count("share_tp", share_tp, 2**32 - 1))


class Request:
    """An open request, from TieredCache.request(). Its calls: one at a time. `with` closes it."""

    def __init__(self, tiers: "TieredCache", number: int, tokens: int):
        self._tiers, self._number, self._count = tiers, number, tokens

    def __enter__(self) -> "Request":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._number is not None and self._tiers._pointer is not None and not self._tiers._is_forked():
            self.close()

    def _call(self, name: str, *arguments: Any) -> None:
        if self._number is None:
            raise CLASSES["invalid_argument"](f"{name}: the request is closed")
        try:
            self._tiers._call(name, self._number, *arguments)
        except CLASSES["io"]:
            self._tiers._is_lost = True
            raise

    def is_ready(self) -> bool:
        """Whether start() would not wait for L3."""
        return self.wait_ready(0)

    def wait_ready(self, timeout: Optional[float] = None) -> bool:
        """Waits until is_ready(), at most so many seconds."""
        ready = ctypes.c_int()
        self._call("wait_ready", _nanoseconds(timeout), ctypes.byref(ready))
        return bool(ready.value)

    def start(self) -> Start:
        """Ends the fetch, takes pages for the whole prompt, begins to load what is in L2.
        NoSpaceError: L1 is full of pages of open requests; close one, and start again."""
        result, pages, count = _StartResult(), self._tiers._pages_of(self._count), _SIZE()
        self._call("start", ctypes.byref(result), pages, len(pages), ctypes.byref(count))
        return Start(result.cached_tokens, result.device_tokens, result.host_tokens, result.shared_tokens, pages[: count.value])

    def wait_layer(self, layer: int) -> None:
        """Returns when the layer of all cached tokens is in L1. On a GPU: when the stream of open() follows its copy; what is put on
        that stream from now on sees the layer, and what runs elsewhere has to wait for the stream."""
        self._call("wait_layer", vmm._count("layer", layer, 2**32 - 1))

    def grow(self, tokens: int) -> List[int]:
        """Takes pages until they are enough for so many tokens; all pages of the request."""
        tokens = vmm._count("tokens", tokens, 2**40)
        pages, count = self._tiers._pages_of(max(tokens, self._count)), _SIZE()
        self._call("grow", tokens, pages, len(pages), ctypes.byref(count))
        self._count = max(tokens, self._count)
        return pages[: count.value]

    def commit(self, tokens: Sequence[int]) -> None:
        """The KV of these tokens is computed and in the request's pages: whole blocks are shared from now on."""
        self._call("commit", *_tokens(tokens))

    def close(self) -> None:
        """Its pages may be evicted."""
        self._call("close")
        self._number = None


class TieredCache:
    """From open(). Use it from any threads; each request from one at a time."""

    def __init__(self, pointer: _POINTER, memory: Sequence[Any], block_tokens: int, pages_per_block: int):
        self._pointer, self._memory = pointer, memory  # of the tensors: stays until close()
        self._calls, self._quiet, self._process = 0, threading.Condition(), os.getpid()
        self._is_lost = False  # a copy of a GPU's has failed, and may still write
        self._block_tokens, self._pages_per_block = block_tokens, pages_per_block

    def __enter__(self) -> "TieredCache":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _is_forked(self) -> bool:
        return os.getpid() != self._process

    def _call(self, name: str, *arguments: Any) -> None:
        if self._is_forked():
            raise CLASSES["unsupported"](f"{name}: this process is a fork of the one that opened the tiers")
        with self._quiet:
            pointer = self._pointer
            if pointer is None:
                raise CLASSES["invalid_argument"]("the tiers are closed")
            self._calls += 1
        try:
            _call(name, pointer, *arguments)
        finally:
            with self._quiet:
                self._calls -= 1
                self._quiet.notify_all()

    def _pages_of(self, tokens: int):
        return (_U32 * (-(-tokens // self._block_tokens) * self._pages_per_block))()

    def close(self) -> None:
        """Waits for calls in flight, ends fetches and writes, detaches from the pool. In a forked child it does nothing."""
        if self._is_forked():  # its threads are the parent's: the child would wait for them for ever
            return
        with self._quiet:
            pointer, self._pointer = self._pointer, None
            while self._calls:
                self._quiet.wait()
        if pointer is not None:
            _load().cachalot_tier_destroy(pointer)
            if self._is_lost:
                _kept.append(self._memory)
            self._memory = []

    def attach_pool(self, pool: Union[str, os.PathLike]) -> None:
        """L3, while serving."""
        self._call("attach_pool", vmm._text("pool", pool))

    def detach_pool(self) -> None:
        """Requests go on with what has arrived."""
        self._call("detach_pool")

    def set(self, **given: Any) -> None:
        """Changes prefetch_* options, write_policy or selective_uses while serving."""
        rows = _table(given)
        self._call("set", rows, len(rows))

    def request(self, prompt: Sequence[int], *, extra: bytes = b"", priority: int = 0, round: int = 0) -> Request:
        """Opens a request: finds the prompt's longest prefix in L1 and L2, keeps it there, begins to fetch from L3.
        extra: separates equal tokens (adapter, salt, image). round: the same number on all ranks."""
        number, (tokens, count) = _U64(), _tokens(prompt)
        if not isinstance(extra, (bytes, bytearray)):
            raise TypeError(f"extra: {extra!r}, expected bytes")
        extra = bytes(extra)
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise TypeError(f"priority: {priority!r}, expected an int")
        if not -2**31 <= priority < 2**31:
            raise CLASSES["invalid_argument"](f"priority: {priority}, expected -2^31 to 2^31 - 1")
        self._call("open", tokens, count, extra, len(extra), priority, vmm._count("round", round), ctypes.byref(number))
        return Request(self, number.value, count)

    def flush(self, timeout: Optional[float] = None) -> None:
        """Waits until committed blocks are in the tiers they are written to."""
        self._call("flush", _nanoseconds(timeout))

    def clear(self) -> None:
        """Forgets everything in L1 and L2."""
        self._call("clear")

    def statistics(self) -> Statistics:
        found = _Statistics(struct_size=ctypes.sizeof(_Statistics))
        self._call("get_statistics", ctypes.byref(found))
        return Statistics(*(getattr(found, word) for word in Statistics._fields))


def open(layout: str, tensors: Sequence[Any], *, pages: int, model: str, geometry: "cachalot.KvGeometry", page_tokens: int = 0,
         pool: Union[str, os.PathLike] = "", salt: str = "", ranks: Optional[Union[str, os.PathLike]] = None,
         config: Optional[Union[str, os.PathLike]] = None, share_tp: int = 0, device: Optional[int] = None, stream: Any = 0,
         **given: Any) -> TieredCache:
    """Makes the tiers of one engine, or of one rank of it.

    layout, tensors, pages, page_tokens: L1, as Client.register_cache() takes them, on the CPU or, with `device`, on a GPU
    device: CUDA's number of the GPU; stream: the engine's, a number or an object with `cuda_stream`; 0: the legacy default one
    model, salt, geometry, share_tp, pool: as Client; "": no pool is attached yet
    ranks: a new file in which the ranks of one machine agree, made for these ranks alone; the geometry has this rank and their number
    config: options as JSON text, "@FILE.json" or "@FILE.toml"; keyword options win over it
    """
    if not isinstance(geometry, cachalot.KvGeometry):
        raise TypeError(f"geometry: {geometry!r}, expected a cachalot.KvGeometry")
    for name, value, empty in (("layout", layout, False), ("pool", pool, False), ("ranks", ranks, True), ("config", config, True)):
        if not isinstance(value, (str, os.PathLike)) and not (empty and value is None):
            raise TypeError(f"{name}: {value!r}, expected a str" + ("" if name == "layout" else " or a path"))
    if not hasattr(tensors, "__len__"):
        raise TypeError(f"tensors: {tensors!r}, expected a sequence of buffers")
    merged = dict(read_options(config)) if config is not None else {}
    merged.update(given)
    rows = _table(merged)
    memory = _CacheMemory(layout, tensors, pages, page_tokens, geometry, device)
    buffers = (_Buffer * len(memory.buffers()))(*memory.buffers())
    cache = _Cache(struct_size=ctypes.sizeof(_Cache), pages=vmm._count("pages", pages, 2**32 - 1), layout=vmm._text("layout", layout),
                   tensors=buffers, tensor_count=len(buffers), page_tokens=vmm._count("page_tokens", page_tokens, 2**32 - 1),
                   memory=int(device is not None), device=device or 0,
                   stream=vmm._count("stream", getattr(stream, "cuda_stream", stream), 2**64 - 1))
    shared = _client_options(os.fspath(pool), model, salt, geometry, share_tp)
    pointer = _POINTER()
    _call("make", ctypes.byref(cache), ctypes.byref(shared), rows, len(rows), None if ranks is None else vmm._text("ranks", ranks),
          ctypes.byref(pointer))
    block = geometry.block_tokens
    return TieredCache(pointer, memory, block, block // (page_tokens or block))
