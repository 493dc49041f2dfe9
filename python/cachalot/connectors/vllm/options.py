"""What a user writes into kv_connector_extra_config."""

import difflib
from dataclasses import MISSING, dataclass, fields
from typing import Any, Dict, Mapping, Optional, Tuple, Union

from cachalot.errors import InvalidArgumentError

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def parse_bytes(value: Any, name: str) -> int:
    """A number of bytes, or text with a unit: "64GiB"."""
    text = str(value).strip()
    digits = text.rstrip("BbIiKkMmGgTt ")
    unit = _UNITS.get(text[len(digits):].strip().upper())
    if isinstance(value, bool) or unit is None or not digits.isdigit() or int(digits) == 0:
        raise InvalidArgumentError(f"{name}: {value!r}, expected bytes above 0, as 1073741824 or \"64GiB\"")
    return int(digits) * unit


@dataclass(frozen=True)
class Create:
    """How to make a pool that does not exist yet. The first engine makes it and is its keeper while it runs."""

    #: bytes that the pool takes in all, or
    size: Optional[int] = None
    #: blocks that may be shared at a time
    blocks: Optional[int] = None
    #: clients that the pool has room for; 0: the default of `pool create`
    clients: int = 0
    #: eviction policy
    policy: str = "lru"
    #: "coherent", "noncoherent"; "": the default of `pool create`
    domain: str = ""


@dataclass(frozen=True)
class Transfer:
    """KV goes from the prefill to the decode engine, with or without a pool."""

    #: where this engine's workers can be reached: "tcp:IP:PORT" (port 0: any), or "auto": a socket of this machine
    listen: Tuple[str, ...] = ("auto",)
    #: seconds that a prompt is offered, and that a transfer may take; then it is computed
    deadline: float = 30.0
    #: verify every payload
    checksums: bool = False
    #: seconds of silence of a peer, while something waits for it
    peer_timeout: float = 5.0
    #: ranks of one machine that hold the same bytes (MLA, more ranks than KV heads) fetch them once, and copy
    once_per_machine: bool = True
    #: most seconds that an ended request's KV stands on offer, if the request asks for it; 0: none does
    standing: float = 60.0
    #: share of the engine's blocks that may stand on offer
    standing_held: float = 0.25
    #: of a KV cache on a GPU: page-locked memory between it and other engines, for the blocks of all open transfers
    bounce: str = "1GiB"


@dataclass(frozen=True)
class Options:
    """Names and defaults of all options. The guide's table lists the same."""

    #: the pool's path, or the paths of all its devices; may be empty with `transfer`
    pool: Tuple[str, ...] = ()
    #: prefill hands KV over to decode: an object, as {"listen": ["tcp:10.0.0.1:0"]}
    transfer: Optional[Transfer] = None
    #: make the pool if it does not exist
    create: Optional[Create] = None
    #: "async": a request waits for its blocks while others are computed. "sync": the step waits for them
    load: str = "async"
    #: seconds that a load may take; then the request computes the rest
    load_timeout: float = 10.0
    #: seconds that a request may wait for blocks that only the storage behind the pool has; 0: it never asks for them
    storage_wait: float = 2.0
    #: seconds that a store may take; then its blocks are not shared
    store_timeout: float = 10.0
    #: share of the engine's blocks that unfinished stores may hold
    store_held: float = 0.25
    #: threads that share the copies of one call
    copy_threads: int = 1
    #: threads that run asynchronous loads and stores
    workers: int = 2
    #: "sample": identify weights by parts of their files. "all": by all bytes
    weights: str = "sample"
    #: checksums of blocks; None: only in pools without hardware coherence
    checksums: Optional[bool] = None
    #: added to the namespace: engines with another salt share nothing with this one
    salt: str = ""
    #: engines of other tensor parallel sizes share, in pieces of so many groups of the model's KV heads. "auto": as
    #: many as it has heads; 0: only ranks with the same heads share
    share_tp: Union[int, str] = 0
    #: this machine's number in the pool
    host: int = 0
    #: use a pool that another user made
    allow_foreign_pool: bool = False
    #: seconds to wait for an answer of the keeper
    keeper_timeout: float = 5.0


def _refuse(name: str, value: Any, expected: str) -> None:
    raise InvalidArgumentError(f"kv_connector_extra_config: {name}: {value!r}, expected {expected}")


def _known(name: str, given: Mapping[str, Any], kind: type) -> None:
    names = [field.name for field in fields(kind)]
    for key in given:
        if key in names:
            continue
        near = difflib.get_close_matches(key, names, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InvalidArgumentError(f"{name}: unknown option {key!r}{hint} Known: {', '.join(names)}")


def _check_types(name: str, given: Mapping[str, Any], kind: type) -> None:
    for field in fields(kind):
        default = field.default
        if field.name not in given or default is MISSING or default is None or field.name in ("share_tp", "pool"):
            continue  # of several types, or none: parse() checks it
        value, wanted = given[field.name], type(default)
        if wanted is float and isinstance(value, int) and not isinstance(value, bool):
            continue
        if not isinstance(value, wanted) or isinstance(value, bool) and wanted is not bool:
            raise InvalidArgumentError(f"{name}: {field.name}: {value!r}, expected a {wanted.__name__}")


def _create_of(given: Any) -> Create:
    name = "kv_connector_extra_config: create"
    if not isinstance(given, Mapping):
        _refuse("create", given, 'an object, as {"size": "64GiB"}')
    _known(name, given, Create)
    _check_types(name, given, Create)
    values: Dict[str, Any] = dict(given)
    if (values.get("size") is None) == (values.get("blocks") is None):
        raise InvalidArgumentError(f'{name}: expected either "size" or "blocks", as {{"size": "64GiB"}}')
    if values.get("size") is not None:
        values["size"] = parse_bytes(values["size"], f"{name}: size")
    elif isinstance(values["blocks"], bool) or not isinstance(values["blocks"], int) or values["blocks"] < 1:
        raise InvalidArgumentError(f"{name}: blocks: {values['blocks']!r}, expected a number above 0")
    return Create(**values)


def _transfer_of(given: Any) -> Transfer:
    name = "kv_connector_extra_config: transfer"
    if not isinstance(given, Mapping):
        _refuse("transfer", given, 'an object, as {"listen": ["tcp:10.0.0.1:0"]}')
    _known(name, given, Transfer)
    values: Dict[str, Any] = dict(given)
    listen = values.pop("listen", ("auto",))
    listen = [listen] if isinstance(listen, str) else listen
    if not isinstance(listen, (list, tuple)) or not listen or not all(isinstance(one, str) for one in listen):
        raise InvalidArgumentError(f'{name}: listen: {listen!r}, expected addresses, as ["tcp:10.0.0.1:0"]')
    _check_types(name, values, Transfer)
    transfer = Transfer(listen=tuple(listen), **values)
    for field in ("deadline", "peer_timeout"):
        if not 0 < getattr(transfer, field) <= 3600:
            raise InvalidArgumentError(f"{name}: {field}: {getattr(transfer, field)!r}, expected seconds above 0, at most 3600")
    if not 0 <= transfer.standing <= 3600:
        raise InvalidArgumentError(f"{name}: standing: {transfer.standing!r}, expected seconds from 0 to 3600")
    parse_bytes(transfer.bounce, f"{name}: bounce")
    if not 0 < transfer.standing_held <= 0.9:
        raise InvalidArgumentError(f"{name}: standing_held: {transfer.standing_held!r}, expected a share above 0, at most 0.9")
    return transfer


def parse(given: Mapping[str, Any]) -> Options:
    """Checks the options before the engine serves.

    Raises InvalidArgumentError: an unknown option, a value of another type or out of range, no pool.
    """
    _known("kv_connector_extra_config", given, Options)
    _check_types("kv_connector_extra_config", given, Options)
    values: Dict[str, Any] = dict(given)
    pool = values.get("pool")
    if values.get("transfer") is not None:
        values["transfer"] = _transfer_of(values["transfer"])
    paths = [pool] if isinstance(pool, str) else pool
    if paths is None and values.get("transfer") is not None:
        paths = []
    elif not isinstance(paths, (list, tuple)) or not paths or not all(isinstance(p, str) and p for p in paths):
        _refuse("pool", pool, 'a path, as "/dev/shm/kv", or the paths of all devices')
    values["pool"] = tuple(paths)
    if values.get("create") is not None:
        values["create"] = _create_of(values["create"])
        if len(paths) != 1:
            raise InvalidArgumentError("kv_connector_extra_config: create: makes pools of one device; "
                                       f"{len(paths)} paths were given: use `cachalot pool create`")
    options = Options(**values)
    for name, allowed in (("load", ("async", "sync")), ("weights", ("sample", "all"))):
        if getattr(options, name) not in allowed:
            _refuse(name, getattr(options, name), " or ".join(allowed))
    for name in ("load_timeout", "store_timeout", "keeper_timeout"):
        if not 0 < getattr(options, name) <= 3600:
            _refuse(name, getattr(options, name), "seconds above 0, at most 3600")
    if not 0 <= options.storage_wait <= 3600:
        _refuse("storage_wait", options.storage_wait, "seconds from 0 to 3600")
    if not 0 < options.store_held <= 0.9:
        _refuse("store_held", options.store_held, "a share above 0, at most 0.9")
    for name in ("copy_threads", "workers"):
        if not 1 <= getattr(options, name) <= 256:
            _refuse(name, getattr(options, name), "1 to 256")
    is_number = isinstance(options.share_tp, int) and not isinstance(options.share_tp, bool)
    if options.share_tp != "auto" and not (is_number and 0 <= options.share_tp < 2**32):
        _refuse("share_tp", options.share_tp, 'a number of groups of KV heads, "auto", or 0 (off)')
    if options.checksums is not None and not isinstance(options.checksums, bool):
        _refuse("checksums", options.checksums, "true or false")
    return options
