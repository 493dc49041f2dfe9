"""A shared pool of KV-cache blocks for LLM inference engines."""

from collections.abc import Sequence as _Sequence
from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version

from cachalot._cachalot import (
    AsyncCall,
    BlockHash,
    BlockHashes,
    Cache,
    Client,
    EmbeddedKeeper,
    KvGeometry,
    LayerLoad,
    LayerStore,
    PartStrides,
    Segment,
    Statistics,
    Stored,
    TransferEndpoint,
    TransferRank,
    has_gpu_kernels,
    layout_names,
    model_names,
    random_offer_id,
)
from cachalot.errors import (
    BadInputError,
    BusyError,
    CancelledError,
    CorruptError,
    Error,
    InternalError,
    InvalidArgumentError,
    IoError,
    NoKeeperError,
    NoSpaceError,
    NotAPoolError,
    NotFoundError,
    PermissionError,
    RefusedError,
    StaleError,
    TimeoutError,
    UnsupportedError,
    VersionMismatchError,
)

_Sequence.register(BlockHashes)

try:
    __version__ = _version("cachalot-kv")
except _PackageNotFoundError:  # not installed, but built in place
    __version__ = "unknown"

# Without PermissionError and TimeoutError, so that `from cachalot import *` does not hide the builtins.
__all__ = [
    "AsyncCall",
    "BadInputError",
    "BlockHash",
    "BlockHashes",
    "BusyError",
    "Cache",
    "CancelledError",
    "Client",
    "CorruptError",
    "EmbeddedKeeper",
    "Error",
    "InternalError",
    "InvalidArgumentError",
    "IoError",
    "KvGeometry",
    "LayerLoad",
    "LayerStore",
    "NoKeeperError",
    "NoSpaceError",
    "NotAPoolError",
    "NotFoundError",
    "PartStrides",
    "RefusedError",
    "Segment",
    "StaleError",
    "Statistics",
    "Stored",
    "TransferEndpoint",
    "TransferRank",
    "UnsupportedError",
    "VersionMismatchError",
    "has_gpu_kernels",
    "layout_names",
    "model_names",
    "random_offer_id",
]
