"""Lines in the engine's log; a repeated failure is told once in a while, with how often it has happened."""

import threading
import time
from typing import Any, Dict, List

_PAUSE_S = 30.0


class RateLimitedLog:
    """Threads: any."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._last: Dict[str, List[float]] = {}  # kind: when it was told, how many were not told since

    def info(self, text: str, *values: Any) -> None:
        self._logger.info("cachalot: " + text, *values)

    def warning(self, kind: str, text: str, *values: Any) -> None:
        """Tells at most one failure of a kind in 30 seconds."""
        now = time.monotonic()
        with self._lock:
            told = self._last.get(kind)
            if told is not None and now - told[0] < _PAUSE_S:
                told[1] += 1
                return
            untold = int(told[1]) if told is not None else 0
            self._last[kind] = [now, 0]
        more = f" ({untold} more since the last line)" if untold else ""
        self._logger.warning("cachalot: " + text + more, *values)
