"""What a user writes into adapter_params."""

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Tuple

from cachalot.connectors.access.options import parse_pool
from cachalot.errors import InvalidArgumentError

FLAG = "adapter_params"
_MOST_WORKERS = 64


@dataclass(frozen=True)
class Options:
    """Names and defaults of all options. The guide's table lists the same.

    Those of PoolOptions that mean something here: LMCache decides itself how long it waits, and what it holds.
    """

    #: the pool's path, or the paths of all its devices
    pool: Tuple[str, ...] = ()
    #: threads of loads, and as many of stores
    workers: int = 2
    #: threads that share the copies of one object
    copy_threads: int = 1
    #: on which CPUs these run, by device: "", "auto", or "0=0-31;1=32-63"
    copy_cpus: str = ""
    #: checksums of objects; None: only in pools without hardware coherence
    checksums: Optional[bool] = None
    #: added to the namespace: LMCache with another salt shares nothing with this one
    salt: str = ""
    #: this machine's number in the pool
    host: int = 0
    #: use a pool that another user made
    allow_foreign_pool: bool = False
    #: seconds to wait for an answer of the keeper
    keeper_timeout: float = 5.0


def parse(given: Mapping[str, Any]) -> Options:
    """Raises InvalidArgumentError: an unknown option, a value of another type or out of range, no pool."""
    options = Options(**parse_pool(FLAG, given, Options))
    if options.workers > _MOST_WORKERS:
        raise InvalidArgumentError(f"{FLAG}: workers: {options.workers}, expected 1 to {_MOST_WORKERS}")
    return options
