"""One engine's way to the pool: clients that attach by themselves, as often as needed, and never delay a step."""

import os
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from cachalot import Client, Error
from cachalot.connectors.access.log import RateLimitedLog
from cachalot.connectors.access.group import Group
from cachalot.connectors.access.options import PoolOptions
from cachalot.errors import (
    BadInputError,
    InvalidArgumentError,
    NoKeeperError,
    NotAPoolError,
    NotFoundError,
    PermissionError,
    StaleError,
    TimeoutError,
    VersionMismatchError,
)

#: A pool that a user must mend: the engine does not start.
_FATAL = (BadInputError, InvalidArgumentError, NotAPoolError, PermissionError, VersionMismatchError)
#: The attachment is over.
_LOST = (StaleError, NotFoundError, NotAPoolError)
#: So it is if another pool is at the path now. If not, the client attaches to the next keeper by itself, and can read
#: meanwhile.
_PERHAPS_LOST = (NoKeeperError, TimeoutError)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
#: Between looks whether another pool is at the path.
_LOOK_PAUSE_S = 5.0


class _CacheRefusedError(Exception):
    """The pool cannot be used with the engine's pages, now or later."""


class Attachment:
    """A client of one namespace. get() never waits; a thread attaches while there is none.

    What keeps the engine's pages from the pool for good, as memory that a GPU cannot use, ends the attachment with one
    line in the log: is_over. The engine goes on.

    Threads: any.
    """

    def __init__(self, options: PoolOptions, group: Group, log: RateLimitedLog,
                 on_attach: Optional[Callable[[Client], Any]] = None, device: Optional[int] = None,
                 counts_prompts: bool = True) -> None:
        """on_attach: registers the engine's caches. device: CUDA's number of the GPU that has them; None: the CPU.
        counts_prompts: as Client takes it: the connector counts them itself."""
        self._options, self.group, self._log, self._on_attach = options, group, log, on_attach
        self.device = device
        self._counts_prompts = counts_prompts
        self._end_reason: Optional[str] = None
        self._lock = threading.Lock()
        self._client: Optional[Client] = None
        self._made: Any = None
        self._thread: Optional[threading.Thread] = None
        self._lost: List[Client] = []  # to be detached by the thread
        self._files: List[Any] = []
        self._next_look = 0.0
        self._registrations: List[float] = []
        self._abandoned: Optional[Client] = None  # kept until the process ends
        self._counted: Tuple[Optional[Client], Dict[str, int]] = (None, {})
        self._is_closed = False

    def _attach(self) -> None:
        options = self._options
        files = self._files_now()  # before: a pool that is replaced meanwhile must not pass for the new one
        client = Client(pool=list(options.pool), model=self.group.model, geometry=self.group.geometry,
                        block_order=self.group.order, share_tp=self.group.share_tp, salt=options.salt,
                        host=options.host, copy_threads=options.copy_threads, workers=options.workers,
                        checksums=options.checksums, keeper_timeout_s=options.keeper_timeout,
                        allow_foreign_pool=options.allow_foreign_pool, counts_prompts=self._counts_prompts,
                        copy_cpus=options.copy_cpus)
        made = self._register(client) if self._on_attach is not None else None
        with self._lock:
            if not self._is_closed and not self.is_over:
                self._client, self._made, self._files = client, made, files
                return
        self._detach(client)

    def _register(self, client: Client) -> Any:
        began = time.monotonic()
        try:
            made = self._on_attach(client)
        except Exception as error:
            self._detach(client)
            if isinstance(error, _LOST + _PERHAPS_LOST):
                raise
            raise _CacheRefusedError(str(error)) from error
        if self.device is not None:
            seconds = time.monotonic() - began
            self._log.info("the pool is registered with GPU %d, in %.1f s", self.device, seconds)
            with self._lock:
                self._registrations.append(seconds)
        return made

    def _files_now(self) -> List[Any]:
        """What tells the pool at the path from another one that is made there later."""
        found = []
        for path in self._options.pool:
            try:
                status = os.stat(path)
                found.append((status.st_dev, status.st_ino))
            except OSError:
                found.append(None)
        return found

    def attach(self, wait_s: float) -> bool:
        """Attaches now, if the pool can be had within this time; else goes on trying in the background.

        Raises the errors that only a user can mend: no permission, another format, blocks that are too small.
        """
        until = time.monotonic() + wait_s
        while True:
            try:
                self._attach()
                self._say_attached()
                return True
            except _FATAL:
                raise
            except _CacheRefusedError as error:
                self.end(str(error))
                return False
            except Error as error:
                if time.monotonic() >= until:
                    makes = getattr(self._options, "create", None)  # LMCache has no such option
                    if makes is not None and isinstance(error, NotFoundError):
                        self._log.info("waiting for the pool %s, which one of the engines makes", self._options.pool[0])
                    else:
                        self._log.warning("attach", "no pool yet at %s: %s; requests are computed meanwhile",
                                          ", ".join(self._options.pool), error)
                    self._start()
                    return False
            time.sleep(_FIRST_PAUSE_S)

    def _say_attached(self) -> None:
        if self._client is not None:
            self._log.info("attached to the pool %s", ", ".join(self._options.pool))

    def _start(self) -> None:
        with self._lock:
            if self._is_closed or self.is_over or self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="cachalot-attach", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._is_closed:
            self._detach_lost()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            try:
                self._attach()
            except _CacheRefusedError as error:
                self.end(str(error))
            except Exception as error:  # a thread that ends would never attach again
                self._log.warning("attach", "no pool at %s: %s", ", ".join(self._options.pool), error)
                continue
            with self._lock:
                if self._client is None and not self._is_closed and not self.is_over:
                    continue  # lost again
                self._thread = None
            if self.is_over:
                break
            self._say_attached()
            return
        self._detach_lost()

    @property
    def is_over(self) -> bool:
        """There is no client, and never will be one."""
        return self._end_reason is not None

    def end(self, reason: str) -> None:
        """Does not detach: a GPU that failed may still use the pool and the pages."""
        with self._lock:
            if self._end_reason is not None:
                return
            self._end_reason = reason
            self._abandoned, self._client, self._made = self._client, None, None
        self._log.warning("over", "nothing is shared any more, all is computed: %s", reason)

    def take_registrations(self) -> List[float]:
        """Seconds of each registration with a GPU since the last call: the first one page-locks the pool."""
        with self._lock:
            taken, self._registrations = self._registrations, []
        return taken

    def take_counts(self, names: Tuple[str, ...]) -> Dict[str, int]:
        """What these counters of the client's statistics have grown by since the last call."""
        with self._lock:
            client = self._client
            if client is None:
                return {}
            statistics = client.statistics
            now = {name: getattr(statistics, name) for name in names}
            before = self._counted[1] if self._counted[0] is client else {}
            self._counted = client, now
        return {name: value - before.get(name, 0) for name, value in now.items()}

    def get(self) -> Optional[Client]:
        """The client, or None: there is no pool now. A client that only reads does not notice that its pool was replaced by
        another one, so this looks at the path every five seconds."""
        client, now = self._client, time.monotonic()
        if client is not None and now >= self._next_look:
            self._next_look = now + _LOOK_PAUSE_S
            self._lose_if(client, self._is_replaced())
        return self._client

    def get_with(self) -> "tuple[Optional[Client], Any]":
        """The client, and what on_attach() returned for it."""
        with self._lock:
            return self._client, self._made

    def failed(self, client: Client, error: BaseException) -> None:
        """Tells that a call has failed. After the loss of the pool, attaches anew."""
        if not isinstance(error, _LOST + _PERHAPS_LOST):
            return
        self._lose_if(client, isinstance(error, _LOST) or self._is_replaced())

    def _is_replaced(self) -> bool:
        now = self._files_now()
        return None not in now and now != self._files

    def _lose_if(self, client: Client, is_lost: bool) -> None:
        with self._lock:
            if not is_lost or self.is_over or self._client is not client:
                return
            self._client = self._made = None
            self._lost.append(client)
        self._start()

    def _detach_lost(self) -> None:
        """May wait for calls in flight."""
        with self._lock:
            lost, self._lost = self._lost, []
        for client in lost:
            self._detach(client)

    @staticmethod
    def _detach(client: Client) -> None:
        try:
            client.detach()
        except Error:
            pass  # its pool is gone

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            client, self._client, self._made = self._client, None, None
        if client is not None:
            self._detach(client)
