"""How long this engine takes to compute prompts. A wait for their blocks is worth so much time, and no more."""

import statistics
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, Optional, Tuple

#: So many of the latest prompts count. The time of a shorter one is the time of a step, whatever its number of tokens.
_PROMPTS, _LEAST_TOKENS = 32, 64


class PrefillTimes:
    """Times go from the step that begins a prompt to the step that finds its first new token. What the engine does
    meanwhile for other requests is included: a prompt that is computed waits for that, too.

    Threads: vLLM's scheduler."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._begun: Dict[str, Tuple[float, int]] = {}  # request: when, so many tokens
        self._seconds: Deque[float] = deque(maxlen=_PROMPTS)  # a token

    def step(self, output: Any, request_of: Callable[[str], Any]) -> None:
        """output: what vLLM's scheduler decided. request_of: None if the request has ended."""
        now = self._now()
        for name in list(self._begun):
            request = request_of(name)
            if request is None:
                del self._begun[name]
            elif request.num_output_tokens > 0:
                self.ended(name)
        for new in output.scheduled_new_reqs:
            request = request_of(new.req_id)
            if request is not None and request.num_prompt_tokens - new.num_computed_tokens >= _LEAST_TOKENS:
                self._begun[new.req_id] = now, request.num_prompt_tokens - new.num_computed_tokens

    def ended(self, name: str) -> None:
        """The request has its first new token."""
        begun = self._begun.pop(name, None)
        if begun is not None:
            self._seconds.append((self._now() - begun[0]) / begun[1])

    def seconds_of(self, tokens: int) -> Optional[float]:
        """What computing so many tokens takes; nothing before the first prompt."""
        return tokens * statistics.median(self._seconds) if self._seconds else None
