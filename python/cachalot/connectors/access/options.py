"""What a user writes about the pool: the options that all connectors have."""

import difflib
import hashlib
import os
from dataclasses import MISSING, dataclass, fields
from typing import Any, Dict, Mapping, Optional, Tuple

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
class PoolOptions:
    """Names and defaults of the options that all connectors have."""

    #: the pool's path, or the paths of all its devices
    pool: Tuple[str, ...] = ()
    #: make the pool if it does not exist
    create: Optional[Create] = None
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
    #: on which CPUs these run, by device: "", "auto", or "0=0-31;1=32-63". Not of caches on a GPU
    copy_cpus: str = ""
    #: threads that run asynchronous loads and stores
    workers: int = 2
    #: "sample": identify weights by parts of their files. "all": by all bytes
    weights: str = "sample"
    #: checksums of blocks; None: only in pools without hardware coherence
    checksums: Optional[bool] = None
    #: added to the namespace: engines with another salt share nothing with this one
    salt: str = ""
    #: a file with a secret, which is added to the salt: equal prompts of two tenants have hashes that do not tell so
    salt_key_file: str = ""
    #: this machine's number in the pool
    host: int = 0
    #: use a pool that another user made
    allow_foreign_pool: bool = False
    #: seconds to wait for an answer of the keeper
    keeper_timeout: float = 5.0


def refuse(name: str, value: Any, expected: str) -> None:
    raise InvalidArgumentError(f"{name}: {value!r}, expected {expected}")


def check_names(name: str, given: Mapping[str, Any], kind: type) -> None:
    names = [field.name for field in fields(kind)]
    for key in given:
        if key in names:
            continue
        near = difflib.get_close_matches(key, names, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InvalidArgumentError(f"{name}: unknown option {key!r}{hint} Known: {', '.join(names)}")


def check_types(name: str, given: Mapping[str, Any], kind: type) -> None:
    for field in fields(kind):
        default = field.default
        if field.name not in given or default is MISSING or default is None or field.name in ("share_tp", "pool"):
            continue  # of several types, or none: parse() checks it
        value, wanted = given[field.name], type(default)
        if wanted is float and isinstance(value, int) and not isinstance(value, bool):
            continue
        if not isinstance(value, wanted) or isinstance(value, bool) and wanted is not bool:
            raise InvalidArgumentError(f"{name}: {field.name}: {value!r}, expected a {wanted.__name__}")


def _create_of(name: str, given: Any) -> Create:
    if not isinstance(given, Mapping):
        refuse(name, given, 'an object, as {"size": "64GiB"}')
    check_names(name, given, Create)
    check_types(name, given, Create)
    values: Dict[str, Any] = dict(given)
    if (values.get("size") is None) == (values.get("blocks") is None):
        raise InvalidArgumentError(f'{name}: expected either "size" or "blocks", as {{"size": "64GiB"}}')
    if values.get("size") is not None:
        values["size"] = parse_bytes(values["size"], f"{name}: size")
    elif isinstance(values["blocks"], bool) or not isinstance(values["blocks"], int) or values["blocks"] < 1:
        raise InvalidArgumentError(f"{name}: blocks: {values['blocks']!r}, expected a number above 0")
    return Create(**values)


def _salt_of(name: str, path: str) -> str:
    """A salt that only holders of the key can make. Raises InvalidArgumentError: no such file, or not a secret of 32 bytes."""
    try:
        with open(path, "rb") as file:
            mode, content = os.fstat(file.fileno()).st_mode, file.read(1024)
    except OSError as error:
        raise InvalidArgumentError(f"{name}: {path}: {error.strerror}") from None
    if mode & 0o077:
        raise InvalidArgumentError(f"{name}: {path}: other users may read it: chmod 600")
    if len(content) != 32:
        try:
            content = bytes.fromhex(content.decode().strip())
        except ValueError:
            content = b""
    if len(content) != 32:
        raise InvalidArgumentError(f"{name}: {path}: expected 32 bytes, or 64 hexadecimal digits")
    return hashlib.sha256(b"cachalot salt\0" + content).hexdigest()


def parse_pool(flag: str, given: Mapping[str, Any], kind: type, needs_pool: bool = True) -> Dict[str, Any]:
    """Checks names and types of all options, and values of those about the pool, before the engine serves.

    flag: the engine's, where the options stand. kind: a PoolOptions
    Returns what `kind` is made from. Raises InvalidArgumentError: an unknown option, a value of another type or out of
    range, no pool.
    """
    check_names(flag, given, kind)
    check_types(flag, given, kind)
    values: Dict[str, Any] = dict(given)
    pool = values.get("pool")
    paths = [pool] if isinstance(pool, str) else pool
    if paths is None and not needs_pool:
        paths = []
    elif not isinstance(paths, (list, tuple)) or not paths or not all(isinstance(p, str) and p for p in paths):
        refuse(f"{flag}: pool", pool, 'a path, as "/dev/shm/kv", or the paths of all devices')
    values["pool"] = tuple(paths)
    if values.get("create") is not None:
        values["create"] = _create_of(f"{flag}: create", values["create"])
        if len(paths) != 1:
            raise InvalidArgumentError(f"{flag}: create: makes pools of one device; "
                                       f"{len(paths)} paths were given: use `cachalot pool create`")
    if values.get("salt_key_file"):
        values["salt"] = values.get("salt", "") + " key " + _salt_of(f"{flag}: salt_key_file", values["salt_key_file"])
    defaults = {field.name: field.default for field in fields(PoolOptions)}

    def value(name: str) -> Any:
        return values.get(name, defaults[name])

    if value("weights") not in ("sample", "all"):
        refuse(f"{flag}: weights", value("weights"), "sample or all")
    for name in ("load_timeout", "store_timeout", "keeper_timeout"):
        if not 0 < value(name) <= 3600:
            refuse(f"{flag}: {name}", value(name), "seconds above 0, at most 3600")
    if not 0 <= value("storage_wait") <= 3600:
        refuse(f"{flag}: storage_wait", value("storage_wait"), "seconds from 0 to 3600")
    if not 0 < value("store_held") <= 0.9:
        refuse(f"{flag}: store_held", value("store_held"), "a share above 0, at most 0.9")
    for name in ("copy_threads", "workers"):
        if not 1 <= value(name) <= 256:
            refuse(f"{flag}: {name}", value(name), "1 to 256")
    if value("checksums") is not None and not isinstance(value("checksums"), bool):
        refuse(f"{flag}: checksums", value("checksums"), "true or false")
    return values
