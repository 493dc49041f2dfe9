"""What a user writes into linker_extra_config, or into HiCache's hicache_storage_backend_extra_config."""

from dataclasses import dataclass
from typing import Any, Mapping

from cachalot.connectors.access.options import PoolOptions, parse_pool

LINKER_FLAG = "linker_extra_config"
BACKEND_FLAG = "hicache_storage_backend_extra_config"


@dataclass(frozen=True)
class Options(PoolOptions):
    """Names and defaults of all options. The guide's table lists the same."""

    #: seconds that the scheduler may wait for blocks that only the storage behind the pool has; nothing runs meanwhile
    storage_wait: float = 0.2
    #: one thread keeps the order of stores: a block's parent is in the pool before it
    workers: int = 1


def parse(given: Mapping[str, Any], flag: str) -> Options:
    """Checks the options before the engine serves.

    Raises InvalidArgumentError: an unknown option, a value of another type or out of range, no pool.
    """
    return Options(**parse_pool(flag, given, Options))
