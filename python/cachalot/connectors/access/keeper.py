"""The pool's keeper among engines that may all make the pool: one of them has it, another takes over."""

import threading
from typing import List, Optional

from cachalot import EmbeddedKeeper, Error
from cachalot.connectors.access.log import RateLimitedLog
from cachalot.connectors.access.group import Group
from cachalot.connectors.access.options import Create, PoolOptions
from cachalot.errors import BusyError, InvalidArgumentError

_PAUSE_S = 0.5


class SharedKeeper:
    """Keeps the pool of the option `create` while no other process does. The pool stays when the engines end.

    Raises InvalidArgumentError: the size has no room for a block, or the pool exists with another size or smaller blocks.
    """

    def __init__(self, options: PoolOptions, create: Create, groups: List[Group], log: RateLimitedLog) -> None:
        self._path, self._create, self._log = options.pool[0], create, log
        self._allow_foreign_pool = options.allow_foreign_pool
        self._block_bytes = max(group.pool_block_bytes for group in groups)
        self._keeper: Optional[EmbeddedKeeper] = None
        self._is_over = threading.Event()
        if not self._try():
            log.info("another process keeps the pool %s", self._path)
        self._thread = threading.Thread(target=self._watch, name="cachalot-keeper", daemon=True)
        self._thread.start()

    def _try(self) -> bool:
        try:
            self._keeper = EmbeddedKeeper(
                pool=self._path, block_bytes=self._block_bytes, capacity_blocks=self._create.blocks or 0,
                size_bytes=self._create.size or 0, clients=self._create.clients, policy=self._create.policy, domain=self._create.domain,
                allow_foreign_pool=self._allow_foreign_pool, keep_pool=True)
        except BusyError:
            return False
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"create: {error}") from None
        self._log.info("this engine keeps the pool %s: blocks of %d bytes", self._path, self._block_bytes)
        return True

    def _watch(self) -> None:
        while not self._is_over.wait(_PAUSE_S):
            if self._keeper is not None and self._keeper.is_serving:
                continue
            try:
                self._end_keeper()
                self._try()
            except Error as error:
                self._log.warning("keeper", "the pool %s has no keeper: %s", self._path, error)

    def _end_keeper(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        try:
            keeper.stop()
        except Error as error:  # as it should be: another one has taken over, or the files are gone
            self._log.warning("keeper", "this engine keeps the pool %s no more: %s", self._path, error)

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._end_keeper()
